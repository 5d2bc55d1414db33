"""A result for people (tables) and for programs (JSON)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanofw.compare.analysis import Analysis, Row
from nanofw.compare.metrics import Metric, describe
from nanofw.compare.provenance import provenance
from nanofw.compare.runner import Results
from nanofw.compare.statistics import Effect

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SECONDS = ("ttft", "tpot", "itl", "e2el", "queue")


def print_report(results: Results, analysis: Analysis, console: Console) -> None:
    """Tables by load, then the rule, warnings and expectations."""
    options = results.experiment.options
    if options.name:
        console.print(options.name)
    if results.capacity is not None:
        console.print(
            f"capacity of {results.experiment.baseline}: {results.capacity:.4g} requests/s"
        )
    for point in results.points:
        console.print(_table(results, analysis, point))
    console.print(f"rule: {analysis.rule}")
    if options.primary:
        console.print(f"primary metric: {options.primary}; the others are described, not judged")
    for warning in analysis.warnings:
        console.print(f"warning: {warning}")
    for outcome in analysis.outcomes:
        mark = "as expected" if outcome.met else "NOT as expected"
        why = f" ({outcome.expectation.why})" if outcome.expectation.why else ""
        console.print(f"{mark}: {outcome.text}{why}")


def as_json(results: Results, analysis: Analysis, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Everything as plain values; undefined numbers are null."""
    options = results.experiment.options
    value = {
        "name": options.name,
        "capacity": results.capacity,
        "baseline": results.experiment.baseline,
        "rule": analysis.rule,
        "warnings": list(analysis.warnings),
        "metrics": {name: describe(name) for name in options.all_metrics},
        "rows": [asdict(row) for row in analysis.rows],
        "expectations": [
            {"text": item.text, "met": item.met, "why": item.expectation.why}
            for item in analysis.outcomes
        ],
        "runs": [
            {"point": point, "arm": arm, "repeat": i, **asdict(run)}
            for (point, arm), runs in results.runs.items()
            for i, run in enumerate(runs)
        ],
        "order": [asdict(task) for task in results.order],
        "provenance": provenance(results, arguments),
    }
    return _finite(value)


def write_json(
    results: Results, analysis: Analysis, path: Path, arguments: Sequence[str] = ()
) -> None:
    """Write `as_json` to a file."""
    text = json.dumps(as_json(results, analysis, arguments), indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def _table(results: Results, analysis: Analysis, point: float | None) -> Table:
    from rich import box
    from rich.table import Table

    options, baseline = results.experiment.options, results.experiment.baseline
    interval = f"{1 - options.alpha:.0%} interval"
    headers = ["metric", "arm", "mean of runs", f"against {baseline}", interval, "detectable"]
    table = Table(*headers, "verdict", title=_title(results, point), title_justify="left",
                  box=box.SIMPLE_HEAD, pad_edge=False)  # fmt: skip
    last = ""
    for row in analysis.rows:
        if row.point != point:
            continue
        effect = row.effect
        table.add_row(
            row.metric if row.metric != last else "",
            row.arm,
            _number(row.metric, row.mean),
            *(_effect(row.metric, effect) if effect else ("", "", "")),
            _verdict(row),
        )
        last = row.metric
    return table


def _title(results: Results, point: float | None) -> str:
    options = results.experiment.options
    runs = f"{options.repeats} run{'s' if options.repeats != 1 else ''} per arm"
    if point is None:
        return runs
    if options.rates is not None:
        return f"{point:g} requests/s, {runs}"
    rate = point * (results.capacity or math.nan)
    return f"load {point:g} ({rate:.4g} requests/s), {runs}"


def _effect(metric: str, effect: Effect) -> tuple[str, str, str]:
    if math.isnan(effect.estimate):
        return "undefined", "", ""
    if effect.scale == "ratio":
        texts = [f"x{value:.3f}" for value in (effect.estimate, effect.low, effect.high)]
        detectable = f"{effect.detectable - 1:+.1%}"
    else:
        values = (effect.estimate, effect.low, effect.high)
        texts = [f"{value:+.4g}" for value in values]
        detectable = f"{effect.detectable:.2g}"
    if math.isnan(effect.low):
        return texts[0], "", ""
    return texts[0], f"[{texts[1]}, {texts[2]}]", detectable


def _verdict(row: Row) -> str:
    return row.verdict or ""


def _number(metric: str, value: float) -> str:
    if math.isnan(value):
        return "undefined"
    if Metric.parse(metric).quantity in SECONDS:
        return f"{value * 1e3:.4g} ms" if value < 1 else f"{value:.4g} s"
    return f"{value:.4g}"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        items: list[tuple[Any, Any]] = list(value.items())  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        return {str(key): _finite(item) for key, item in items}
    if isinstance(value, (list, tuple)):
        entries: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return [_finite(item) for item in entries]
    return str(value) if isinstance(value, Path) else value
