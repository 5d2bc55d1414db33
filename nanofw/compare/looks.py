"""When an experiment stops: looks at its intervals, and the part of alpha that each look may spend.

Who looks several times and stops when he likes what he sees is wrong more often than alpha says.
So alpha is spent over the looks: after n of at most N runs, alpha * n / N of it (the linear
spending function of Lan and DeMets 1983, Kim and DeMets 1987). What a look adds is its own
significance level, so by the union bound all intervals of an experiment hold at once, whatever
makes it stop, and whatever the distribution of the looks together is (repeated confidence
intervals, Jennison and Turnbull 1989).
"""

from __future__ import annotations

from dataclasses import dataclass

from nanofw.compare.comparability import observations, observed
from nanofw.compare.experiment import AA, ExperimentOptions
from nanofw.compare.metrics import Metric
from nanofw.compare.results import Results
from nanofw.compare.statistics import Effect, paired_effect

FEWEST = 5
"""Runs before the first look, where there are several looks."""


@dataclass(frozen=True, slots=True)
class Looks:
    """The runs after which an experiment may stop at a load.

    Attributes:
        numbers: of the runs, growing; the last one is the most that are done.
    """

    numbers: tuple[int, ...]

    @classmethod
    def planned(cls, options: ExperimentOptions) -> Looks:
        """One look at the end; with `until` further ones at the half, the quarter and so on."""
        numbers = [options.repeats]
        while options.until is not None and (half := (numbers[0] + 1) // 2) >= FEWEST:
            numbers.insert(0, half)
        return cls(tuple(numbers))

    def share(self, num: int) -> float:
        """The part of alpha that the look after `num` runs may spend; of all looks together 1.

        Raises:
            ValueError: there is no such look.
        """
        if len(self.numbers) == 1:
            return 1.0
        if num not in self.numbers:
            names = ", ".join(map(str, self.numbers))
            raise ValueError(f"there are {num} runs, and looks were planned after {names}")
        before = (0, *self.numbers)[self.numbers.index(num)]
        return (num - before) / self.numbers[-1]


def judged_metrics(options: ExperimentOptions) -> tuple[str, ...]:
    """The metrics that decide."""
    return (options.primary,) if options.primary else options.reported


def share_at(results: Results, point: float | None, arm: str) -> float:
    """The part of alpha that may be spent after the runs of an arm that there are."""
    return Looks.planned(results.experiment.options).share(len(results.runs[(point, arm)]))


def effect_at(
    results: Results, point: float | None, arm: str, metric: str, *, num_verdicts: int = 1
) -> Effect:
    """The effect of an arm after the runs that there are; valid whichever look is the last."""
    options = results.experiment.options
    groups = observations(results, point, arm)
    base, other = (
        observed([run.values[metric] for run in results.runs[(point, name)]], groups)
        for name in (results.experiment.baseline, arm)
    )
    return paired_effect(
        base, other, by_ratio=Metric.parse(metric).by_ratio, alpha=options.alpha,
        margin=options.margin, num_verdicts=num_verdicts, share=share_at(results, point, arm),
    )  # fmt: skip


def wide_effects(results: Results, point: float | None) -> list[tuple[str, str, float]]:
    """Arms, metrics and half widths of the intervals at a load that are wider than `until`.

    The baseline against itself does not count: it shows what traffic does, and has no effect.
    """
    options, baseline = results.experiment.options, results.experiment.baseline
    found: list[tuple[str, str, float]] = []
    for arm in results.experiment.arms if options.until is not None else ():
        for metric in dict.fromkeys(judged_metrics(options)) if arm not in (baseline, AA) else ():
            half = effect_at(results, point, arm, metric).half_width
            if not half <= (options.until or 0.0):  # NaN, too
                found.append((arm, metric, half))
    return found
