"""A comparison as one HTML file that needs nothing beside it: pictures, tables, data."""

# jinja2 does not state its types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import jinja2
import yaml
from markupsafe import Markup

from nanofw.compare import figures
from nanofw.compare.analysis import Analysis
from nanofw.compare.conclusion import conclusions, facts, main_metric
from nanofw.compare.experiment import AA
from nanofw.compare.metrics import definition
from nanofw.compare.report import (
    capacity_text,
    effect_texts,
    missing_text,
    number_text,
    point_title,
)
from nanofw.compare.results import Results
from nanofw.compare.row import ArmMetric
from nanofw.compare.run_curves import SPREAD
from nanofw.compare.timelines import timelines

_FOLDER = Path(__file__).parent / "templates"


def write_html(
    results: Results, analysis: Analysis | None, data: Mapping[str, object], path: Path
) -> None:
    """Write `as_html` to a file."""
    path.write_text(as_html(results, analysis, data), encoding="utf-8")


def as_html(results: Results, analysis: Analysis | None, data: Mapping[str, object]) -> str:
    """The page.

    Args:
        analysis: None for an experiment that ended early: then there are runs and no verdicts.
        data: what `as_json` made of both; the page holds it in the element `result`.
    """
    options, drawn = results.experiment.options, timelines(results)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters["yaml"] = _as_yaml
    return environment.get_template("report.html").render(
        title=options.name or "Comparison of " + ", ".join(results.experiment.arms),
        AA=AA,
        options=options,
        results=results,
        analysis=analysis,
        interval=f"{1 - options.alpha:.0%} interval",
        decided=_decided(results, analysis),
        missing=missing_text(results),
        capacity=capacity_text(results),
        conclusions=conclusions(results, analysis) if analysis else [],
        facts=facts(results),
        terms={name: definition(name) for name in options.all_metrics},
        loads_figure=Markup(figures.by_load(results, main_metric(results))),
        main_metric=main_metric(results),
        points=[_section(results, analysis, point) for point in results.points],
        timelines=drawn,
        timeline_data=_as_script(drawn),
        provenance=data["provenance"],
        data=_as_script(data),
    )


def _decided(results: Results, analysis: Analysis | None) -> list[dict[str, object]]:
    """A line for each verdict, the A/A's left out."""
    if analysis is None:
        return []
    return [
        {"where": "" if row.point is None else point_title(results, row.point, runs=False),
         "arm": row.arm, "metric": row.metric, **_cells(row)}
        for row in analysis.rows
        if row.verdict is not None and row.arm != AA
    ]  # fmt: skip


def _section(results: Results, analysis: Analysis | None, point: float | None) -> dict[str, object]:
    """One load: pictures, and lines of the table by metric."""
    metrics: dict[str, list[dict[str, str]]] = {}
    for row in analysis.rows if analysis else ():
        if row.point == point:
            metrics.setdefault(row.metric, []).append({"arm": row.arm, **_cells(row)})
    return {
        "title": point_title(results, point),
        "effects": Markup(figures.effects(results, analysis, point) if analysis else ""),
        "runs": Markup(figures.runs(results, point, main_metric(results))),
        "spread": Markup(figures.spread(results, point, _spread_of(results))),
        "quantity": _spread_of(results),
        "queue": Markup(figures.queue(results, point)),
        "metrics": metrics,
        "lines": [
            {"arm": arm, "number": number + 1, "seed": results.experiment.options.seed + number,
             "measured": run.num_measured, "failed": run.num_failed, "refused": run.num_refused,
             "value": number_text(main_metric(results), run.values[main_metric(results)])}
            for (place, arm), runs in results.runs.items() if place == point
            for number, run in zip(results.repeats(point, arm), runs, strict=True)
        ],
    }  # fmt: skip


def _spread_of(results: Results) -> str:
    """The latency whose spread is shown: the main metric's, if it is one."""
    quantity = main_metric(results).partition(".")[0]
    return quantity if quantity in SPREAD else "e2e"


def _cells(row: ArmMetric) -> dict[str, str]:
    """What the terminal's table says of an arm in a metric."""
    estimate, interval, detectable = effect_texts(row.effect) if row.effect else ("", "", "")
    return {
        "mean": number_text(row.metric, row.mean), "effect": estimate, "interval": interval,
        "detectable": detectable, "verdict": row.verdict or "",
        "harms": "; ".join(row.harms), "reason": row.reason or "",
    }  # fmt: skip


def _as_yaml(value: object) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def _as_script(value: object) -> Markup:
    """JSON that can stand in a script element, whatever its texts are."""
    text = json.dumps(value)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
