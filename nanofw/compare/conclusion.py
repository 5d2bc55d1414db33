"""A comparison in a sentence for each arm, and what was compared, for the top of a report."""

from __future__ import annotations

from typing import Any

from nanofw.compare.analysis import Analysis
from nanofw.compare.comparability import identical_arms
from nanofw.compare.experiment import AA
from nanofw.compare.report import effect_texts, point_title
from nanofw.compare.results import Results
from nanofw.compare.row import ArmMetric
from nanofw.config.load import plain
from nanofw.narrowing import JsonObject


def main_metric(results: Results) -> str:
    """What the conclusion is about, and what pictures of single runs show."""
    options = results.experiment.options
    return options.primary or options.all_metrics[0]


def conclusions(results: Results, analysis: Analysis) -> list[str]:
    """What the main metric of each arm came to, the harm beside the good.

    A sentence for every arm that is better or worse at some load, and one for all others.
    """
    metric, baseline = main_metric(results), results.experiment.baseline
    same = {arm for arms in identical_arms(results) if baseline in arms for arm in arms}
    found: list[str] = []
    others: dict[str, list[str]] = {}
    for arm in results.experiment.arms:
        rows = [row for row in analysis.rows if row.arm == arm and row.metric == metric]
        if arm in (baseline, AA) or not rows:
            continue
        verdicts = {row.verdict or "not judged" for row in rows}
        if verdicts & {"better", "worse"} or len(verdicts) > 1 or any(row.reason for row in rows):
            parts = "; ".join(_verdict(results, row) for row in rows)
            found.append(f"{arm} against {baseline} in {metric}: {parts}.")
        else:
            verdict = "identical" if arm in same else verdicts.pop()
            numbers = _numbers(rows[0]) if len(rows) == 1 and arm not in same else ""
            others.setdefault(verdict, []).append(arm + numbers)
    parts = "; ".join(f"{_NOTHING[verdict]}: {', '.join(arms)}" for verdict, arms in others.items())
    return [*found, f"{metric} against {baseline}: {parts}."] if parts else found


_NOTHING = {
    "identical": "the same configuration, so that nothing can differ but by chance",
    "no evidence": "no evidence of a difference",
    "negligible": "a difference that is negligible",
    "not judged": "not judged",
}


def _verdict(results: Results, row: ArmMetric) -> str:
    where = "" if row.point is None else f" at {point_title(results, row.point, runs=False)}"
    numbers = _numbers(row)
    if row.verdict is None:
        why = f": {row.reason}" if row.reason else ""
        return f"not judged{where}{numbers}{why}"
    harm = f", but worse: {'; '.join(row.harms)}" if row.harms else ""
    return f"{row.verdict}{where}{numbers}{harm}"


def _numbers(row: ArmMetric) -> str:
    """` (x0.958, 0.899 to 1.021)`; nothing where there is no effect."""
    if row.effect is None:
        return ""
    estimate, interval, _ = effect_texts(row.effect)
    numbers = ", ".join(part for part in (estimate, interval) if part)
    return f" ({numbers})" if numbers else ""


def facts(results: Results) -> list[tuple[str, str]]:
    """What was compared: model, machine, engine and traffic of the baseline, and how often."""
    experiment, options = results.experiment, results.experiment.options
    selection = results.selections[experiment.baseline]
    config: JsonObject = plain(selection.loaded.config)
    engine = config["engine"]
    others = len(experiment.arms) - 1
    found = [
        ("model", f"{config['model']['path']}, {selection.spec.dtype}"),
        ("machine", _machine(results, config)),
        (
            "engine",
            f"{engine['max_num_seqs']:,} requests at once, {engine['max_num_batched_tokens']:,} "
            f"tokens a step, {selection.max_model_len:,} tokens a request; "
            f"scheduler {config['scheduler']['name']}, {config['kv_allocator']['name']} blocks",
        ),
    ]
    ours = [some for (_, arm), some in results.runs.items() if arm == experiment.baseline and some]
    if ours:
        traffic = ours[0][0].traffic
        num = max(traffic.num_requests, 1)
        found.append(
            (
                "traffic of a run",
                f"{traffic.text()}: {traffic.prompt_tokens / num:.4g} and "
                f"{traffic.output_tokens / num:.4g} on average",
            )
        )
    found.append(
        (
            "runs",
            f"{others} arm{'s' if others != 1 else ''} against {experiment.baseline}, "
            f"{len(results.points)} load{'s' if len(results.points) != 1 else ''}, "
            f"{_num_runs(results)} runs each; the first {options.warm_up:.0%} and the last "
            f"{options.drain:.0%} of the arrivals are not measured",
        )
    )
    return found


def _num_runs(results: Results) -> str:
    """`10`; `10 to 40` where loads stopped at different looks."""
    nums = {len(runs) for (_, arm), runs in results.runs.items() if arm != AA}
    return " to ".join(map(str, sorted({min(nums), max(nums)}))) if nums else "0"


def _machine(results: Results, config: dict[str, Any]) -> str:
    executor = config["executor"]
    if results.experiment.endpoints:
        return "endpoints, in real time, as their client saw them"
    if not results.virtual:
        return f"executor {executor['name']} on {config['engine']['device']}"
    model = executor.get("cost_model") or {"name": "constant"}
    options = ", ".join(f"{key} {value}" for key, value in model.items() if key != "name")
    return f"simulated, cost model {model['name']}" + (f" ({options})" if options else "")
