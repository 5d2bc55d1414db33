"""Pictures of a comparison, as SVG text for the report. Importing this imports matplotlib."""

# matplotlib does not state its types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import io
import math
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from nanofw.compare.analysis import Analysis
from nanofw.compare.experiment import AA
from nanofw.compare.metrics import Metric
from nanofw.compare.row import ArmMetric
from nanofw.compare.runner import Results

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Of arms, in turn; they can be told apart with any colour vision (Okabe and Ito)."""
MARKERS = "osD^vPX"
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # an arm may be called $x$
    "svg.hashsalt": "nanofw",  # the same result, the same file
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "axes.axisbelow": True,
}
_WIDEST = 50.0  # ratios beyond this are cut off


def effects(results: Results, analysis: Analysis, point: float | None) -> str:
    """Every ratio with its interval, a line for each arm; empty where there is none to draw."""
    rows = [row for row in analysis.rows if row.point == point and _is_drawn(row)]
    metrics = list(dict.fromkeys(row.metric for row in rows if row.arm != AA))
    if not metrics:
        return ""
    arms = [arm for arm in _arms(results) if any(row.arm == arm for row in rows)]
    place = {metric: -i * (len(arms) + 1) for i, metric in enumerate(metrics)}
    with _drawing(7.2, 0.7 + 0.17 * len(metrics) * (len(arms) + 1)) as (figure, axes):
        axes.axvline(1, color="#444444", linewidth=1)
        for number, arm in enumerate(arms):
            some = [row for row in rows if row.arm == arm and row.metric in place]
            _draw_intervals(axes, some, [place[row.metric] - number for row in some],
                            arm, _look(results, arm))  # fmt: skip
        middle = (len(arms) - 1) / 2
        axes.set_yticks([place[metric] - middle for metric in metrics], metrics)
        axes.set_ylim(min(place.values()) - len(arms), 1)
        axes.grid(axis="y", visible=False)
        _scale_of_ratios(axes, [row for row in rows if row.arm != AA])
        axes.set_xlabel(f"ratio to {results.experiment.baseline}, with its interval")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        return _text(figure, f"effects-{point}")


def runs(results: Results, point: float | None, metric: str) -> str:
    """Each run of each arm, those of one seed joined; empty where nothing is defined."""
    arms = list(results.experiment.arms)
    values = {arm: _values(results, point, arm, metric) for arm in arms}
    if not any(math.isfinite(value) for some in values.values() for value in some.values()):
        return ""
    with _drawing(1.2 + 1.1 * len(arms), 2.6) as (figure, axes):
        for repeat in sorted({repeat for some in values.values() for repeat in some}):
            line = [values[arm].get(repeat, math.nan) for arm in arms]
            axes.plot(range(len(arms)), line, color="#b5b5b5", linewidth=0.8, zorder=1)
        for place, arm in enumerate(arms):
            colour, marker = _look(results, arm)
            some = list(values[arm].values())
            axes.scatter([place] * len(some), some, color=colour, marker=marker, s=22, zorder=2)
        axes.set_xticks(range(len(arms)), arms)
        axes.set_xlim(-0.4, len(arms) - 0.6)
        axes.set_ylabel(_with_unit(metric))
        return _text(figure, f"runs-{point}-{metric}")


def by_load(results: Results, metric: str) -> str:
    """Means over the loads, with the range of the runs; empty with fewer than two loads."""
    points = [point for point in results.points if point is not None]
    if len(points) < 2:
        return ""
    unit = "arrival rate, requests/s" if results.experiment.options.rates else "load"
    with _drawing(5.6, 3.0) as (figure, axes):
        highest, lowest = 0.0, math.inf
        for arm in results.experiment.arms:
            some = [np.array([*_values(results, point, arm, metric).values()]) for point in points]
            defined = [values[np.isfinite(values)] for values in some]
            means = [float(values.mean()) if len(values) else math.nan for values in defined]
            low = [float(values.min()) if len(values) else math.nan for values in defined]
            high = [float(values.max()) if len(values) else math.nan for values in defined]
            colour, marker = _look(results, arm)
            axes.fill_between(points, low, high, color=colour, alpha=0.1, linewidth=0)
            axes.plot(points, means, color=colour, marker=marker, markersize=4, label=arm)
            finite = [mean for mean in means if math.isfinite(mean)]
            highest, lowest = max([highest, *finite]), min([lowest, *finite])
        if lowest > 0 and highest > 10 * lowest:
            axes.set_yscale("log")
        axes.set_xticks(points)
        axes.xaxis.set_major_formatter(FuncFormatter(_four_digits))
        axes.set_xlabel(unit)
        axes.set_ylabel(_with_unit(metric))
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        return _text(figure, f"loads-{metric}")


def _draw_intervals(
    axes: Axes,
    rows: Sequence[ArmMetric],
    places: Sequence[float],
    arm: str,
    look: tuple[str, str],
) -> None:
    colour, marker = look
    label: str | None = arm
    for row, place in zip(rows, places, strict=True):
        effect = row.effect
        assert effect is not None
        axes.plot([effect.low, effect.high], [place, place], color=colour, linewidth=1.6)
        axes.plot(
            [effect.estimate], [place], color=colour, marker=marker, markersize=5, label=label,
            markerfacecolor="white" if arm == AA else colour, linestyle="none",
        )  # fmt: skip
        label = None


def _scale_of_ratios(axes: Axes, rows: Sequence[ArmMetric]) -> None:
    """Logarithmic, as wide as the arms need; the A/A's intervals may run out of it."""
    bounds = [
        bound
        for row in rows
        if row.effect is not None
        for bound in (row.effect.low, row.effect.high, row.effect.estimate)
    ]
    reach = min(max([1.02, *(max(b, 1 / b) for b in bounds if b > 0)]) ** 1.08, _WIDEST)
    axes.set_xscale("log")
    axes.set_xlim(1 / reach, reach)
    steps = [1.0]
    for step in (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 5, 10, 20):
        if reach**0.35 < step < reach and len(steps) < 5:
            steps = [1 / step, *steps, step]
    axes.set_xticks(steps)
    axes.xaxis.set_major_formatter(FuncFormatter(_three_digits))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()


def _three_digits(value: float, _: int) -> str:
    return f"{value:.3g}"


def _four_digits(value: float, _: int) -> str:
    return f"{value:.4g}"


def _with_unit(metric: str) -> str:
    return f"{metric}, s" if Metric.parse(metric).is_latency else metric


def _is_drawn(row: ArmMetric) -> bool:
    effect = row.effect
    if effect is None or effect.scale != "ratio":
        return False
    return effect.low > 0 and math.isfinite(effect.high) and math.isfinite(effect.estimate)


def _arms(results: Results) -> list[str]:
    others = [arm for arm in results.experiment.arms if arm != results.experiment.baseline]
    return [*others, AA]


def _look(results: Results, arm: str) -> tuple[str, str]:
    """Colour and marker of an arm, the same in every picture."""
    if arm == AA:
        return "#9a9a9a", "o"
    number = list(results.experiment.arms).index(arm)
    return COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]


def _values(results: Results, point: float | None, arm: str, metric: str) -> dict[int, float]:
    """By the number of the run."""
    some = results.runs.get((point, arm), ())
    numbers = results.repeats(point, arm)
    return {
        number: run.values.get(metric, math.nan) for number, run in zip(numbers, some, strict=True)
    }


@contextmanager
def _drawing(width: float, height: float) -> Generator[tuple[Figure, Axes], None, None]:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()


def _text(figure: Figure, name: str) -> str:
    """The SVG element alone, as HTML holds it; its ids begin with the name, unlike others'."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    text = file.getvalue()
    prefix = re.sub(r"\W", "-", name)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{prefix}-", text)
    return text[text.index("<svg") :]
