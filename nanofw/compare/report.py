"""A result for people (tables) and for programs (JSON)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanofw.assembly.provenance import origin, run_record
from nanofw.compare.analysis import Analysis
from nanofw.compare.comparability import identical_arms
from nanofw.compare.experiment import AA
from nanofw.compare.looks import Looks, share_at
from nanofw.compare.metrics import Metric, describe
from nanofw.compare.pareto import FrontArm, front
from nanofw.compare.results import Results
from nanofw.compare.run import RunResult
from nanofw.compare.statistics import Effect
from nanofw.compare.task import arm_at
from nanofw.config.load import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

EXACT = "in every run"
DEFINITIONS = (
    "mean: over runs; effect: geometric mean of the runs' ratios, or mean of their differences; "
    "expectations use the same"
)
ROUNDING = 1e-10


def print_report(results: Results, analysis: Analysis, console: Console) -> None:
    """Tables by load, then the rule, warnings and expectations."""
    options = results.experiment.options
    if options.name:
        console.print(options.name)
    if results.capacity is not None:
        console.print(f"capacity of {results.experiment.baseline}: {capacity_text(results)}")
    for point in results.points:
        console.print(_table(results, analysis, point))
    for point in results.points if options.pareto else ():
        console.print(_front_table(results, point))
    if any(row.effect is not None and is_exact(row.effect) for row in analysis.rows):
        console.print(
            f"{EXACT}: all runs show the same effect, so nothing is known of its spread, nor of "
            "the smallest effect that they would find"
        )
    console.print(f"rule: {analysis.rule}")
    if options.primary:
        console.print(f"primary metric: {options.primary}; the others are described, not judged")
    console.print(DEFINITIONS)
    for warning in analysis.warnings:
        console.print(f"warning: {warning}")
    for outcome in analysis.outcomes:
        mark = "as expected" if outcome.met else "NOT as expected"
        why = f" ({outcome.expectation.why})" if outcome.expectation.why else ""
        console.print(f"{mark}: {outcome.text}{why}")


def as_json(
    results: Results, analysis: Analysis | None, arguments: Sequence[str] = ()
) -> dict[str, object]:
    """Everything as plain values; undefined numbers are null.

    Args:
        analysis: None for an experiment that ended early: then there are runs and no verdicts.
    """
    options = results.experiment.options
    value = {
        "name": options.name,
        "capacity": results.capacity,
        "capacity_interval": _capacity_interval(results),
        "baseline": results.experiment.baseline,
        "identical_arms": identical_arms(results),
        "complete": not results.missing,
        "missing": [asdict(task) for task in results.missing],
        "rule": analysis.rule if analysis else None,
        "looks": None if options.until is None else list(Looks.planned(options).numbers),
        "warnings": list(analysis.warnings) if analysis else [],
        "metrics": {name: describe(name) for name in options.all_metrics},
        "rows": [asdict(row) for row in analysis.rows] if analysis else [],
        "expectations": [
            {"text": item.text, "met": item.met, "why": item.expectation.why}
            for item in (analysis.outcomes if analysis else ())
        ],
        "runs": [
            {
                "point": point,
                "arm": arm,
                "repeat": repeat,
                "offered_load": _offered_load(results, run),
                **asdict(run),
            }
            for (point, arm), runs in results.runs.items()
            for repeat, run in zip(results.repeats(point, arm), runs, strict=True)
        ],
        "pareto": [
            {"point": point, **asdict(item)}
            for point in (results.points if options.pareto and analysis else ())
            for item in pareto_front(results, point)
        ],
        "order": [asdict(task) for task in results.order],
        "provenance": _provenance(results, arguments),
    }
    return finite(value)


def _capacity_interval(results: Results) -> list[float] | None:
    found = results.capacity_found
    return None if found is None else [found.low, found.high]


def _offered_load(results: Results, run: RunResult) -> float | None:
    """What came in a run, as a share of the capacity; None: it is not known."""
    if results.capacity is None or run.traffic.rate is None:
        return None
    return run.traffic.rate / results.capacity


def _provenance(results: Results, arguments: Sequence[str]) -> dict[str, object]:
    """Versions, commit, machine, and every arm's resolved configuration."""
    options = results.experiment.options
    return {
        **origin(arguments),
        "virtual_time": results.virtual,
        "seeds": [options.seed + i for i in range(max(map(len, results.runs.values()), default=0))],
        "experiment": plain(options),
        "arms": {arm: run_record(selection) for arm, selection in results.selections.items()},
    }


def missing_text(results: Results) -> str:
    """What an experiment that ended early has not done: `b at 0.9: runs 2 to 5; ...`."""
    repeats: dict[tuple[float | None, str], list[int]] = {}
    for task in results.missing:
        repeats.setdefault((task.point, task.arm), []).append(task.repeat + 1)
    parts: list[str] = []
    for (point, arm), numbers in repeats.items():
        first, last = min(numbers), max(numbers)
        is_range = len(numbers) > 1 and last - first + 1 == len(numbers)
        text = f"{first} to {last}" if is_range else ", ".join(map(str, sorted(numbers)))
        runs = "run" if len(numbers) == 1 else "runs"
        parts.append(f"{arm_at(arm, point)}: {runs} {text}")
    return "; ".join(parts)


def write_json(data: Mapping[str, object], path: Path) -> None:
    """Write what `as_json` made to a file."""
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _table(results: Results, analysis: Analysis, point: float | None) -> Table:
    """A line for each metric, under it the arms: narrow enough for a terminal of 80 columns."""
    from rich import box
    from rich.table import Table

    options, baseline = results.experiment.options, results.experiment.baseline
    interval = f"{1 - options.alpha:.0%} interval"
    headers = ["metric, arm", "mean", "effect", interval, "detectable", "verdict"]
    title = f"{point_title(results, point)}, effects against {baseline}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
                  show_edge=False, padding=(0, 1, 0, 0))  # fmt: skip
    table.add_column(headers[0], overflow="fold")
    for name in headers[1:-1]:
        table.add_column(name, justify="right")
    table.add_column(headers[-1])
    last = ""
    for row in analysis.rows:
        if row.point != point:
            continue
        if row.metric != last:
            table.add_row(row.metric)
        last, effect = row.metric, row.effect
        table.add_row(
            f" {row.arm}",
            number_text(row.metric, row.mean),
            *(effect_texts(effect) if effect else ("", "", "")),
            f"{row.verdict}, but" if row.harms else row.verdict or "",
        )
        for harm in row.harms:
            table.add_row(f"  worse: {harm}")
    return table


def _front_table(results: Results, point: float | None) -> Table:
    """The Pareto front at a load, then the arms that another one beats."""
    from rich import box
    from rich.table import Table

    metrics = results.experiment.options.pareto
    title = f"{point_title(results, point)}, Pareto front of {', '.join(metrics)}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("arm", overflow="fold")
    for name in metrics:
        table.add_column(name, justify="right")
    table.add_column("")
    for item in pareto_front(results, point):
        place = "front" if item.beaten_by is None else f"beaten by {item.beaten_by}"
        if item.beaten_by is not None and not item.is_sure:
            place += ", not surely"
        numbers = [number_text(name, item.means[name]) for name in metrics]
        table.add_row(item.arm, *numbers, place)
    return table


def pareto_front(results: Results, point: float | None) -> list[FrontArm]:
    """The arms beside each other in the metrics of `pareto`."""
    options = results.experiment.options
    runs = {
        arm: some for (place, arm), some in results.runs.items() if place == point and arm != AA
    }
    share = share_at(results, point, results.experiment.baseline)
    return front(runs, options.pareto, alpha=options.alpha * share)


def capacity_text(results: Results) -> str:
    """The capacity, and how sure it is."""
    found = results.capacity_found
    return "" if found is None else found.text()


def point_title(results: Results, point: float | None, *, runs: bool = True) -> str:
    """A load, or rate, in words, and how many runs there are of each arm."""
    options = results.experiment.options
    num = len(results.runs.get((point, results.experiment.baseline), ()))
    count = f"{num} run{'s' if num != 1 else ''} per arm"
    if options.until is not None:
        count = f"{num} of at most {options.repeats} runs per arm"
    if point is None:
        return count
    place = f"{point:g} requests/s"
    if options.rates is None:
        place = f"load {point:g} ({point * (results.capacity or math.nan):.4g} requests/s)"
    return f"{place}, {count}" if runs else place


def effect_texts(effect: Effect) -> tuple[str, str, str]:
    """Estimate, interval and smallest detectable effect."""
    if math.isnan(effect.estimate):
        return "undefined", "", ""
    by_ratio = effect.scale == "ratio"
    if math.isnan(effect.low):
        return (f"x{effect.estimate:.3f}" if by_ratio else f"{effect.estimate:+.4g}"), "", ""
    num = _decimals(effect)
    estimate = f"x{effect.estimate:.{num}f}" if by_ratio else f"{effect.estimate:+.4g}"
    if is_exact(effect):
        return estimate, EXACT, ""
    if not by_ratio:
        return estimate, f"{effect.low:+.4g} to {effect.high:+.4g}", f"{effect.detectable:.2g}"
    share = effect.detectable - 1
    detectable = f"{share:+.1%}" if share >= 0.0005 else "<0.1%"
    return estimate, f"{effect.low:.{num}f} to {effect.high:.{num}f}", detectable


def _decimals(effect: Effect) -> int:
    """Of a ratio and its interval: three, and more where only they show that 1 is excluded.

    What is nearer to 1 than `ROUNDING` is the rounding of sums of floats.
    """
    nearest = max(effect.low - 1, 1 - effect.high)
    return 3 if nearest >= 0.0005 or nearest < ROUNDING else math.ceil(-math.log10(nearest))


def is_exact(effect: Effect) -> bool:
    """Whether several runs all show the same effect, so that nothing is known of a spread."""
    return effect.num_runs > 1 and effect.low == effect.high


def number_text(metric: str, value: float) -> str:
    """A value of a metric, times with their unit."""
    if math.isnan(value):
        return "undefined"
    if Metric.parse(metric).is_latency:
        return f"{value * 1e3:.4g} ms" if value < 1 else f"{value:.4g} s"
    return f"{value:.4g}"


def finite(value: object) -> Any:
    """Plain values for JSON: undefined numbers are None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        items: list[tuple[Any, Any]] = list(value.items())  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        return {str(key): finite(item) for key, item in items}
    if isinstance(value, (list, tuple)):
        entries: list[object] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return [finite(item) for item in entries]
    return str(value) if isinstance(value, Path) else value
