"""Who pays for what is better: other latencies of the same arm that grew."""

from __future__ import annotations

from nanofw.compare.comparability import observations, observed, pairs
from nanofw.compare.looks import share_at
from nanofw.compare.results import Results
from nanofw.compare.run import guards
from nanofw.compare.statistics import MIN_RUNS, Effect, holm, paired_effect

LEAST = 1.1
"""Ratio from which a worse latency is told beside a better one."""


def harms(results: Results, point: float | None, arm: str, metric: str) -> list[str]:
    """Latencies that are worse while `metric` is better: `e2e.max x6.25 (3.1 to 9.4)`.

    Those whose interval excludes no effect after Holm's correction over all that are looked at.
    """
    options, runs = results.experiment.options, pairs(results, point, arm)
    groups = observations(results, point, arm)
    every = [run for pair in runs for run in pair]
    names = [name for name in guards(every[0].num_by_client) if name != metric]
    names = [name for name in names if all(name in run.guards for run in every)]
    effects: dict[str, Effect] = {}
    share = share_at(results, point, arm)
    for name in names:
        base, other = ([run.guards[name] for run in side] for side in zip(*runs, strict=True))
        effects[name] = paired_effect(
            observed(base, groups), observed(other, groups), by_ratio=True, alpha=options.alpha,
            share=share,
        )  # fmt: skip
    adjusted = holm([effect.p_value for effect in effects.values()])
    found = [
        (name, effect)
        for (name, effect), p in zip(effects.items(), adjusted, strict=True)
        if effect.scale == "ratio" and effect.num_runs >= MIN_RUNS
        and effect.estimate >= LEAST and p < options.alpha
    ]  # fmt: skip
    found.sort(key=lambda item: -item[1].estimate)
    return [f"{name} x{e.estimate:.3g} ({e.low:.3g} to {e.high:.3g})" for name, e in found]
