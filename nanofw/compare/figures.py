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
from nanofw.compare.metrics import UNITS, Metric
from nanofw.compare.results import Results
from nanofw.compare.row import ArmMetric
from nanofw.compare.run_curves import PERCENTS

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Of arms, in turn; they can be told apart with any colour vision (Okabe and Ito)."""
MARKERS = "osD^vPX"
LINES = ("-", "--", ":", "-.")
"""Of arms too: those that share a colour have other markers and lines."""
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
WIDTH = 5.2
"""Of most pictures, in inches: their text can still be read when a narrow screen shrinks them."""
_LETTERS = 75  # that a line of a legend has room for
_WIDEST = 50.0  # ratios beyond this are cut off


def effects(results: Results, analysis: Analysis, point: float | None) -> str:
    """Every ratio with its interval, a line for each arm; empty where there is nothing to draw."""
    rows = [row for row in analysis.rows if row.point == point and _is_drawn(row)]
    metrics = list(dict.fromkeys(row.metric for row in rows if row.arm != AA))
    if not metrics:
        return ""
    arms = [arm for arm in _arms(results) if any(row.arm == arm for row in rows)]
    place = {metric: -i * (len(arms) + 1) for i, metric in enumerate(metrics)}
    with _drawing(WIDTH, 0.7 + 0.17 * len(metrics) * (len(arms) + 1)) as (figure, axes):
        axes.axvline(1, color="#444444", linewidth=1)
        reach = _scale_of_ratios(axes, [row for row in rows if row.arm != AA])
        for number, arm in enumerate(arms):
            some = [row for row in rows if row.arm == arm and row.metric in place]
            _draw_intervals(axes, some, [place[row.metric] - number for row in some],
                            (arm, *_look(results, arm)), reach)  # fmt: skip
        middle = (len(arms) - 1) / 2
        labels = [f"{metric} {_better(metric)}" for metric in metrics]
        axes.set_yticks([place[metric] - middle for metric in metrics], labels)
        axes.set_ylim(min(place.values()) - len(arms), 1)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"ratio to {results.experiment.baseline}, with its interval")
        _legend(figure, axes)
        return _text(figure, f"effects-{point}")


def runs(results: Results, point: float | None, metric: str) -> str:
    """Each run of each arm, those of one seed joined; empty where nothing is defined."""
    arms = list(results.experiment.arms)
    values = {arm: _values(results, point, arm, metric) for arm in arms}
    if not any(math.isfinite(value) for some in values.values() for value in some.values()):
        return ""
    with _drawing(min(1.2 + 1.1 * len(arms), max(WIDTH, 1.2 + 0.35 * len(arms))), 2.6) as (
        figure,
        axes,
    ):
        for repeat in sorted({repeat for some in values.values() for repeat in some}):
            line = [values[arm].get(repeat, math.nan) for arm in arms]
            axes.plot(range(len(arms)), line, color="#b5b5b5", linewidth=0.8, zorder=1)
        for place, arm in enumerate(arms):
            colour, marker = _look(results, arm)
            some = list(values[arm].values())
            axes.scatter([place] * len(some), some, color=colour, marker=marker, s=22, zorder=2)
        is_crowded = len(arms) > 4
        axes.set_xticks(range(len(arms)), arms, rotation=35 if is_crowded else 0,
                        ha="right" if is_crowded else "center")  # fmt: skip
        axes.set_xlim(-0.4, len(arms) - 0.6)
        axes.set_ylabel(_with_unit(metric))
        return _text(figure, f"runs-{point}-{metric}")


def by_load(results: Results, metric: str) -> str:
    """Means over the loads, with the range of the runs; empty with fewer than two loads."""
    points = [point for point in results.points if point is not None]
    if len(points) < 2:
        return ""
    unit = "arrival rate, requests/s" if results.experiment.options.rates else "load"
    with _drawing(WIDTH, 3.0) as (figure, axes):
        highest, lowest = 0.0, math.inf
        for arm in results.experiment.arms:
            some = [np.array([*_values(results, point, arm, metric).values()]) for point in points]
            defined = [values[np.isfinite(values)] for values in some]
            means = [float(values.mean()) if len(values) else math.nan for values in defined]
            low = [float(values.min()) if len(values) else math.nan for values in defined]
            high = [float(values.max()) if len(values) else math.nan for values in defined]
            colour, marker = _look(results, arm)
            axes.fill_between(points, low, high, color=colour, alpha=0.1, linewidth=0)
            axes.plot(points, means, color=colour, marker=marker, markersize=4, label=arm,
                      linestyle=_line(results, arm))  # fmt: skip
            finite = [mean for mean in means if math.isfinite(mean)]
            highest, lowest = max([highest, *finite]), min([lowest, *finite])
        if lowest > 0 and highest > 10 * lowest:
            axes.set_yscale("log")
        axes.set_xticks(points)
        axes.xaxis.set_major_formatter(FuncFormatter(_four_digits))
        axes.set_xlabel(unit)
        axes.set_ylabel(_with_unit(metric))
        _legend(figure, axes)
        return _text(figure, f"loads-{metric}")


def spread(results: Results, point: float | None, quantity: str) -> str:
    """The share of the requests that took at most so long, mean over the runs of each arm."""
    with _drawing(WIDTH, 2.8) as (figure, axes):
        is_empty = True
        for arm in results.experiment.arms:
            runs = results.runs.get((point, arm), ())
            lines = [run.spreads[quantity] for run in runs if quantity in run.spreads]
            if lines:
                is_empty, colour = False, _look(results, arm)[0]
                axes.plot(np.mean(lines, axis=0), PERCENTS, color=colour, label=arm,
                          linestyle=_line(results, arm), linewidth=1.4)  # fmt: skip
        if is_empty:
            return ""
        low, high = axes.get_xlim()
        if low > 0 and high > 20 * low:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(_three_digits))
        axes.set_ylim(0, 100)
        axes.set_xlabel(f"{quantity}, s (left is better)")
        axes.set_ylabel("% of the requests")
        _legend(figure, axes)
        return _text(figure, f"spread-{point}-{quantity}")


def queue(results: Results, point: float | None) -> str:
    """Requests that wait, as means over stretches of the first run of each arm."""
    with _drawing(WIDTH, 2.4) as (figure, axes):
        is_empty = True
        for arm in results.experiment.arms:
            runs = results.runs.get((point, arm), ())
            curve = runs[0].over_time if runs else {}
            if curve:
                is_empty, colour = False, _look(results, arm)[0]
                axes.plot(curve["time"], curve["waiting"], color=colour, label=arm,
                          linestyle=_line(results, arm), linewidth=1.2)  # fmt: skip
        if is_empty:
            return ""
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds after the start of the run")
        axes.set_ylabel("requests that wait, mean")
        _legend(figure, axes)
        return _text(figure, f"queue-{point}")


def _legend(figure: Figure, axes: Axes) -> None:
    """Above the axes: beside them it would take their width."""
    handles, names = axes.get_legend_handles_labels()
    columns = max(1, min(len(names), _LETTERS // (max(map(len, names)) + 7)))
    figure.legend(handles, names, loc="outside upper left", ncols=columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * math.ceil(len(names) / columns))


def _draw_intervals(
    axes: Axes,
    rows: Sequence[ArmMetric],
    places: Sequence[float],
    look: tuple[str, str, str],
    reach: float,
) -> None:
    """An interval that leaves the axis ends in an arrow there."""
    arm, colour, marker = look
    face = "white" if arm == AA else colour
    axes.plot([], [], color=colour, marker=marker, markersize=5, label=arm,
              markerfacecolor=face, linestyle="none")  # fmt: skip
    for row, place in zip(rows, places, strict=True):
        effect = row.effect
        assert effect is not None
        low, high = max(effect.low, 1 / reach), min(effect.high, reach)
        axes.plot([low, high], [place, place], color=colour, linewidth=1.6)
        for is_cut, end, arrow in ((low > effect.low, low, "<"), (high < effect.high, high, ">")):
            if is_cut:
                axes.plot([end], [place], color=colour, marker=arrow, markersize=5, clip_on=False,
                          linestyle="none")  # fmt: skip
        if 1 / reach <= effect.estimate <= reach:
            axes.plot([effect.estimate], [place], color=colour, marker=marker, markersize=5,
                      markerfacecolor=face, linestyle="none")  # fmt: skip


def _scale_of_ratios(axes: Axes, rows: Sequence[ArmMetric]) -> float:
    """Logarithmic, as wide as the arms need; the A/A's intervals may run out of it.

    Returns the greatest ratio that is shown.
    """
    bounds = [
        bound
        for row in rows
        if row.effect is not None
        for bound in (row.effect.low, row.effect.high, row.effect.estimate)
    ]
    some = [max(bound, 1 / bound) for bound in bounds if 0 < bound < math.inf]
    reach = min(max([1.02, *some]) ** 1.08, _WIDEST)
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
    return reach


def _three_digits(value: float, _: int) -> str:
    return f"{value:.3g}"


def _four_digits(value: float, _: int) -> str:
    return f"{value:.4g}"


def _with_unit(metric: str) -> str:
    quantity = Metric.parse(metric).quantity
    unit = "s" if Metric.parse(metric).is_latency else UNITS.get(quantity, "")
    words = "higher" if Metric.parse(metric).higher_is_better else "lower"
    return f"{metric}{', ' if unit else ''}{unit} ({words} is better)"


def _better(metric: str) -> str:
    """An arrow to where it is better."""
    return "↑" if Metric.parse(metric).higher_is_better else "↓"


def _is_drawn(row: ArmMetric) -> bool:
    effect = row.effect
    if effect is None or effect.scale != "ratio":
        return False
    is_known = not math.isnan(effect.low) and not math.isnan(effect.high)
    return is_known and 0 < effect.estimate < math.inf


def _arms(results: Results) -> list[str]:
    others = [arm for arm in results.experiment.arms if arm != results.experiment.baseline]
    return [*others, AA]


def _look(results: Results, arm: str) -> tuple[str, str]:
    """Colour and marker of an arm, the same in every picture."""
    if arm == AA:
        return "#9a9a9a", "o"
    number = list(results.experiment.arms).index(arm)
    turn = number // len(COLOURS)
    return COLOURS[number % len(COLOURS)], MARKERS[(number + turn) % len(MARKERS)]


def _line(results: Results, arm: str) -> str:
    number = list(results.experiment.arms).index(arm)
    return LINES[number // len(COLOURS) % len(LINES)]


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
