"""Turns of measured and simulated runs, and what they say about the simulator."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nanofw.compare.experiment import AA
from nanofw.compare.statistics import paired_effect, verdict

METRICS = tuple(f"{name}.{s}" for name in ("ttft", "tpot", "e2e") for s in ("mean", "p90"))
PRIMARY = "e2e.mean"
POLICIES = {
    "fcfs": {"name": "fcfs"},
    "shortest": {"name": "shortest_job_first", "by": "output"},
}
ARMS = (*POLICIES, AA)
VOID = 0.1
"""A line whose A/A difference may be larger, by its 95% interval on either side, says more about
the machine than about the simulator."""
LIMITS = {"mean": 0.05, "p90": 0.1}
"""Of a metric's error, by its statistic."""


@dataclass(slots=True)
class Turn:
    """All arms once on the same traffic: values by arm and metric."""

    seed: int
    real: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    simulated: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    notes: list[str] = field(default_factory=list[str])

    def measured(self, arm: str, metric: str) -> float:
        """Of the first arm the mean of its two runs."""
        value = self.real[arm][metric]
        return (value + self.real[AA][metric]) / 2 if arm == "fcfs" else value

    def plain(self) -> dict[str, Any]:
        return {
            "seed": self.seed, "real": self.real, "simulated": self.simulated,
            "notes": sorted(set(self.notes)),
        }  # fmt: skip

    def __str__(self) -> str:
        parts = [
            f"{arm} {metric} {1e3 * self.real[arm][metric]:.1f} / "
            f"{1e3 * self.simulated[arm][metric]:.1f} ms"
            for arm, metric in itertools.product(POLICIES, ("ttft.mean", "tpot.mean", PRIMARY))
        ]
        notes = "".join(f"\n         ({note})" for note in sorted(set(self.notes)))
        same = self.real[AA][PRIMARY] / self.real["fcfs"][PRIMARY] - 1
        return f"seed {self.seed}: {', '.join(parts)}; A/A {same:+.1%}{notes}"


def lines_of(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """A line for each arm and metric, and one for the ranking."""
    if not turns:
        return []
    lines: list[dict[str, Any]] = []
    for arm, metric in itertools.product(POLICIES, METRICS):
        measured = float(np.mean([turn.measured(arm, metric) for turn in turns]))
        predicted = float(np.mean([turn.simulated[arm][metric] for turn in turns]))
        low, high = _same_arm(turns, metric)
        error, limit = predicted / measured - 1, LIMITS[metric.rsplit(".", 1)[1]]
        lines.append({
            "arm": arm, "metric": metric, "turns": len(turns), "measured": measured,
            "simulated": predicted, "error": error, "aa_low": low, "aa_high": high,
            "void": not (low >= -VOID and high <= VOID), "limit": limit,
            "met": abs(error) <= limit,
        })  # fmt: skip
    return [*lines, _ranking(turns)]


def _same_arm(turns: Sequence[Turn], metric: str) -> tuple[float, float]:
    """95% interval of the mean relative difference of two real runs of one arm; NaN: not known."""
    first, again = ([turn.real[arm][metric] for turn in turns] for arm in ("fcfs", AA))
    effect = paired_effect(first, again, by_ratio=True, alpha=0.05)
    return effect.low - 1, effect.high - 1


def _ranking(turns: Sequence[Turn]) -> dict[str, Any]:
    """Whether the policies come out in the same order, where the real runs say that they differ."""
    base, other = ([turn.measured(arm, PRIMARY) for turn in turns] for arm in POLICIES)
    effect = paired_effect(base, other, by_ratio=True, alpha=0.05)
    word = verdict(effect, effect.p_value, higher_is_better=False, alpha=0.05)
    simulated = paired_effect(
        *([turn.simulated[arm][PRIMARY] for turn in turns] for arm in POLICIES),
        by_ratio=True, alpha=0.05,
    )  # fmt: skip
    ratios = effect.estimate, simulated.estimate
    return {
        "arm": "shortest", "metric": "ranking", "turns": len(turns), "measured": ratios[0],
        "simulated": ratios[1], "verdict": word,
        "met": word == "no evidence" or (ratios[0] < 1) == (ratios[1] < 1),
    }  # fmt: skip


def show(line: dict[str, Any]) -> str:
    where = f"{line['workload']:10} {line['load']:4} {line['arm']:9} {line['metric']:10}"
    measured, predicted = line["measured"], line["simulated"]
    if line["metric"] == "ranking":
        text = f"ratio {measured:.3f} and {predicted:.3f}, real verdict {line['verdict']}"
    else:
        text = (
            f"measured {1e3 * measured:9.2f} ms  simulated {1e3 * predicted:9.2f} ms  "
            f"error {line['error']:+7.1%}  A/A {line['aa_low']:+6.1%} to {line['aa_high']:+6.1%}"
            f"{'  void' if line['void'] else ''}"
        )
    return f"{where} {text}{'' if line['met'] or line.get('void') else '  NOT MET'}"
