"""What a reader must know before believing a comparison's verdicts."""

# scipy does not state its types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nanofw.compare.comparability import (
    identical_arms,
    is_compared_by_difference,
    num_other_lengths,
    num_other_traffic,
    num_served_others,
    observations,
    pairs,
    undefined,
)
from nanofw.compare.experiment import AA
from nanofw.compare.looks import wide_effects
from nanofw.compare.metrics import Metric
from nanofw.compare.results import Results
from nanofw.compare.row import ArmMetric
from nanofw.compare.run import RunResult
from nanofw.compare.statistics import MIN_RUNS, MIN_STRETCHES, num_stretches
from nanofw.compare.task import arm_at
from nanofw.plugins import Policy

GROWTH = 0.01
"""A backlog that grows by less than this share of what comes is not told."""
GROWTH_ALPHA = 0.01
HOST_SHARE = 0.01
"""The scheduler's own time, when it is longer than the baseline's by this share of the mean E2E."""


def warnings(results: Results, rows: Sequence[ArmMetric]) -> list[str]:
    """Sentences, each once: what concerns several arms or loads is told with all of them."""
    found = [
        *_identical(results),
        *_of_capacity(results),
        *_unequal_features(results),
        *_unequal_admission(results),
    ]
    by_text: dict[str, list[str]] = {}
    for where, text in (*_of_runs(results), *_of_arms(results), *_of_rows(results, rows)):
        by_text.setdefault(text, []).append(where)
    for where, text in _of_width(results):
        by_text.setdefault(text, []).append(where)
    for text, places in by_text.items():
        names = list(dict.fromkeys(places))
        more = f" and {len(names) - 3} more" if len(names) > 4 else ""
        names = names[:3] if more else names
        found.append(f"{', '.join(names)}{more}: {text}")
    return list(dict.fromkeys([*found, *_few(results)]))


def _identical(results: Results) -> Iterator[str]:
    for arms in identical_arms(results):
        names = f"{', '.join(arms[:-1])} and {arms[-1]}"
        yield (
            f"{names} are the same configuration, value by value: nothing was varied between them, "
            "and whatever differs is chance"
        )


def _of_capacity(results: Results) -> Iterator[str]:
    found = results.capacity_found
    if found is not None and found.is_unsure:
        yield (
            f"the capacity is {found.text()}: loads are as unsure as that; more requests in a run "
            "make it surer, and capacity sets it"
        )
    above = [point for point in results.points if point is not None and point > 1]
    if above and results.experiment.options.rates is None:
        names = ", ".join(f"{point:g}" for point in above)
        yield (
            f"load {names}: more comes than can be served, so the queue grows for as long as "
            "requests come, and means depend on how long a run lasts"
        )


def _of_runs(results: Results) -> Iterator[tuple[str, str]]:
    """Of the runs of each arm at each point."""
    for (point, arm), runs in results.runs.items():
        where, num = arm_at(arm, point), len(runs)
        overloaded = sum(run.overloaded for run in runs)
        if 2 * overloaded >= num or _grows(runs):
            in_all = f" in {overloaded} of {num} runs" if overloaded else ""
            yield (
                where,
                (
                    f"the queue was still growing{in_all}: overload, or a run that is too short; "
                    "means depend on how long a run lasts"
                ),
            )
        if lagging := sum(run.lagging for run in runs):
            worst = max(run.lag_s for run in runs)
            yield (
                where,
                (
                    f"the client was late in {lagging} of {num} runs (up to {worst:.3g} s): "
                    "the load was not the one asked for"
                ),
            )
        if (text := _too_short(runs)) is not None:
            yield where, text
        yield from ((where, note) for note in _notes(runs))


def _notes(runs: Sequence[RunResult]) -> Iterator[str]:
    """What runs say of themselves; notes that differ in their numbers alone are told once."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for note in run.notes:
            found.setdefault(re.sub(r"\d+", "0", note), []).append(note)
    for notes in found.values():
        is_one = len(set(notes)) == 1
        yield notes[0] if is_one else f"{notes[0]} (and similarly in {len(notes) - 1} other runs)"


def _grows(runs: Sequence[RunResult]) -> bool:
    """Whether the backlog grew over all runs, by more than chance lets it."""
    from scipy import stats

    values = np.array([run.growth for run in runs if math.isfinite(run.growth)])
    if len(values) < MIN_RUNS or values.mean() <= GROWTH:
        return False
    if not values.std():
        return True
    result: Any = stats.ttest_1samp(values, 0.0, alternative="greater")
    return bool(result.pvalue < GROWTH_ALPHA)


def _too_short(runs: Sequence[RunResult]) -> str | None:
    """Told where most runs are few stretches that do not remember each other."""
    stretches = [num_stretches(run.num_measured, run.memory) for run in runs if run.memory]
    if not stretches or np.median(stretches) >= MIN_STRETCHES:
        return None
    memory = round(float(np.median([run.memory for run in runs])))
    measured = round(float(np.median([run.num_measured for run in runs])))
    return (
        f"runs are short: latencies resemble those of the {memory} requests before, and a run "
        f"measures {measured}; its means are far from those of long runs"
    )


def _of_arms(results: Results) -> Iterator[tuple[str, str]]:
    """Arms must get the same requests and do the same work."""
    baseline = results.experiment.baseline
    for point, arm in results.runs:
        if arm == baseline:
            continue
        where = arm_at(arm, point)
        yield from ((where, text) for text in _copies(results, point, arm))
        if arm != AA:
            yield from ((where, text) for text in _unequal_work(results, point, arm))
            yield from ((where, text) for text in _host_time(results, point, arm))


def _copies(results: Results, point: float | None, arm: str) -> Iterator[str]:
    num, groups = len(results.runs[(point, arm)]), observations(results, point, arm)
    if len(groups) == num:
        return
    verdict = ", so there is no verdict" if len(groups) < MIN_RUNS else ""
    yield (
        f"{num} runs are {len(groups)} observation{'s' if len(groups) != 1 else ''}: the others "
        f"had the same arrivals and lengths{verdict}; give each run traffic of its own, of a trace "
        "for example with num_requests and part: random, or with arrivals by a process"
    )


def _unequal_work(results: Results, point: float | None, arm: str) -> Iterator[str]:
    baseline, both = results.experiment.baseline, pairs(results, point, arm)
    if others := num_other_traffic(results, point, arm):
        base, run = next((a, b) for a, b in both if not b.traffic.is_that_of(a.traffic))
        yield (
            f"got other traffic than {baseline} in {others} of {len(both)} runs "
            f"({run.traffic.text()}; {baseline} {base.traffic.text()}): it gets no verdict"
        )
    if served := num_served_others(results, point, arm):
        theirs, ours = (sum(r.num_refused + r.num_failed for r in side)
                        for side in zip(*both, strict=True))  # fmt: skip
        yield (
            f"served other requests to their end than {baseline} in {served} of "
            f"{len(both)} runs ({ours} were refused or failed, with {baseline} {theirs}): "
            "only goodput counts all, so nothing else is better, nor worse but throughput"
        )
    if counts := num_other_lengths(results, point, arm):
        a, b = next((a, b) for a, b in both if a.num_output_tokens != b.num_output_tokens)
        yield (
            f"made another number of tokens than {baseline} in {counts} of {len(both)} runs "
            f"({b.num_output_tokens:,} instead of {a.num_output_tokens:,}): the work was not equal"
        )
    elif not others and (sums := sum(a.checksum != b.checksum for a, b in both)):
        yield (
            f"made other tokens than {baseline} in {sums} of {len(both)} runs: "
            "numerics depend on the batch, or requests depend on each other's timing"
        )


def _host_time(results: Results, point: float | None, arm: str) -> Iterator[str]:
    """Virtual time does not see what a policy itself takes."""
    both = pairs(results, point, arm)
    if not results.virtual or results.experiment.options.host_time:
        return
    per_request = [[run.host_s / max(run.num_requests, 1) for run in side]
                   for side in zip(*both, strict=True)]  # fmt: skip
    base, ours = (float(np.median(side)) for side in per_request)
    e2e = float(np.median([run.guards.get("e2e.mean", math.nan) for _, run in both]))
    if ours > 2 * base and ours - base > HOST_SHARE * e2e:
        yield (
            f"its scheduler took {ours * 1e3:.3g} ms of real time for each request, that of "
            f"{results.experiment.baseline} {base * 1e3:.3g} ms: simulated times leave it out; "
            "host_time: true adds it"
        )


def _of_rows(results: Results, rows: Sequence[ArmMetric]) -> Iterator[tuple[str, str]]:
    for row in rows:
        if row.effect is None:
            continue
        where = arm_at(row.arm, row.point)
        num = len(results.runs[(row.point, row.arm)])
        if row.harms:
            yield where, f"{row.metric} is better, and others are worse: {', '.join(row.harms)}"
        if (lost := undefined(results, row.point, row.arm, row.metric)) and lost < num:
            yield (
                where,
                (f"{row.metric} is undefined in {lost} of {num} runs, which its effect leaves out"),
            )
        if is_compared_by_difference(results, row.point, row.arm, row.metric):
            yield where, f"{row.metric} is 0 in a run: compared by difference and not by ratio"
        if row.arm == AA and row.verdict in ("better", "worse"):
            yield (
                where,
                (
                    f"the baseline against itself is {row.verdict} in {row.metric} "
                    f"(p = {row.p_adjusted:.2g}): runs differ by more than these show, so more or "
                    "longer ones are needed before other verdicts count"
                ),
            )


def _of_width(results: Results) -> Iterator[tuple[str, str]]:
    """Loads at which all runs were done and some interval is still wider than asked for."""
    options = results.experiment.options
    for point in results.points:
        for arm, metric, half in wide_effects(results, point):
            yield (
                arm_at(arm, point),
                (
                    f"after all {options.repeats} runs half of the interval of {metric} is "
                    f"{half:.2g} of the baseline's value, and until is {options.until:g}: more "
                    "repeats or longer runs make it narrower"
                ),
            )


def _unequal_features(results: Results) -> Iterator[str]:
    """Warn where `auto` resolved a feature differently for an arm than for the baseline."""
    baseline = results.experiment.baseline
    for arm, selection in results.selections.items():
        theirs = results.selections[baseline].explanation.features
        for feature, other in zip(selection.explanation.features, theirs, strict=True):
            if feature.value != other.value and "auto" in (feature.asked, other.asked):
                words = [("on" if item.value else "off") for item in (feature, other)]
                yield (
                    f"{arm}: {feature.name} is {words[0]} ({feature.reason}), for {baseline} it "
                    f"is {words[1]}: some of the difference is that, not the policy's"
                )


def _unequal_admission(results: Results) -> Iterator[str]:
    """Policies that order alike and admit differently differ where KV is short."""
    baseline = results.experiment.baseline
    rules = {arm: _admission(results, arm) for arm in results.selections}
    for arm, rule in rules.items():
        if rule == rules[baseline]:
            continue
        kept = max(share for _, share in (rule, rules[baseline]))
        places = [
            point
            for point in results.points
            for run in (*results.runs[(point, arm)], *results.runs[(point, baseline)])
            if run.fewest_available <= kept
        ]
        if places:
            yield (
                f"{arm}: {_admission_text(rule)}, {baseline} {_admission_text(rules[baseline])}, "
                "and blocks were short: some of the difference is that, not the order's; "
                "scheduler.watermark=0 lets fcfs admit whatever fits"
            )


def _admission(results: Results, arm: str) -> tuple[str, float]:
    """Whose rule decides whether a request that fits is admitted, and the share that it keeps.

    A rule that states no watermark may keep any share.
    """
    component = results.selections[arm].components["scheduler"]
    cls = component.load()
    watermark = getattr(component.options, "watermark", None)
    if getattr(cls, "admit", None) is Policy.admit or watermark == 0:
        return "", 0.0
    return component.name, 1.0 if watermark is None else float(watermark)


def _admission_text(rule: tuple[str, float]) -> str:
    name, share = rule
    if not name:
        return "admits what fits"
    return (
        "has a rule of admission of its own"
        if share == 1
        else f"keeps {share:.1%} of the blocks free"
    )


def _few(results: Results) -> Iterator[str]:
    """A 99th percentile of few requests is the maximum of few."""
    every = [run for runs in results.runs.values() for run in runs]
    fewest = min(run.num_measured for run in every)
    if fewest < 30:
        yield f"only {fewest} requests were measured in a run"
    tails: dict[str | None, list[str]] = {}
    for name in results.experiment.options.all_metrics:
        metric = Metric.parse(name)
        if metric.statistic == "p99" and metric.quantity != "itl":
            tails.setdefault(metric.client, []).append(name)
    for client, names in tails.items():
        num = fewest if client is None else min(run.num_by_client.get(client, 0) for run in every)
        if num < 1000 and (client is not None or fewest >= 30):
            whose = "" if client is None else f" of {client!r}"
            yield (
                f"{', '.join(names)}: 99th percentiles of {num} requests{whose} a run; "
                "1000 are needed"
            )
