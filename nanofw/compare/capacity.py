"""What an arm can serve: bursts of several seeds, and how sure that is."""

# scipy does not state its types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nanofw.assembly import Selection
from nanofw.compare.experiment import Experiment
from nanofw.compare.run import RunResult, run_once
from nanofw.errors import ConfigError

MIN_BURSTS, MAX_BURSTS = 3, 10
SURE = 0.02
"""Bursts are repeated until Student's 95% interval is this narrow, as a share, on either side."""
ALPHA = 0.022
"""At which the interval is computed, to miss at most 5%: bursts end when it is narrow, so more
often when it is narrow by chance. At 0.05, up to 9% miss where values are normal."""
UNSURE = 0.05
"""A wider interval is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCapacity:
    """Requests per second at load 1.

    Attributes:
        low, high: 95% interval of the mean over bursts; both are the rate where it was given.
        num_bursts: 0 where the rate was given.
    """

    rate: float
    low: float
    high: float
    num_bursts: int

    @classmethod
    def given(cls, rate: float) -> LoadCapacity:
        """As the experiment says."""
        return cls(rate=rate, low=rate, high=rate, num_bursts=0)

    @classmethod
    def of_bursts(cls, rates: Sequence[float], alpha: float = ALPHA) -> LoadCapacity:
        """From the rates of bursts, by the mean of the seconds for each request: what comes for
        ever has the mean of the bursts' work."""
        from scipy import stats

        seconds, num = 1.0 / np.array(rates), len(rates)
        mean = float(seconds.mean())
        if num < 2:
            return cls(rate=1 / mean, low=1 / mean, high=1 / mean, num_bursts=num)
        error = float(seconds.std(ddof=1)) / mean / math.sqrt(num)
        factor = math.exp(float(stats.t.ppf(1 - alpha / 2, num - 1)) * error)
        return cls(rate=1 / mean, low=1 / mean / factor, high=1 / mean * factor, num_bursts=num)

    @property
    def is_unsure(self) -> bool:
        return self.high - self.low > 2 * UNSURE * self.rate

    def text(self) -> str:
        """`131.8 requests/s (95% interval 129 to 135, 3 bursts)`."""
        text = f"{self.rate:.4g} requests/s"
        if not self.num_bursts:
            return text
        return f"{text} (95% interval {self.low:.4g} to {self.high:.4g}, {self.num_bursts} bursts)"


def find_capacity(selection: Selection, experiment: Experiment) -> LoadCapacity:
    """Runs of an arm in which all requests come at once, each of another seed.

    No more bursts than there are repeats, but three. Bursts with the same requests are one: then
    there is no interval.
    """
    rates: dict[tuple[int, int], float] = {}
    for number in range(max(MIN_BURSTS, min(MAX_BURSTS, experiment.options.repeats))):
        run = _burst(selection, experiment, experiment.options.seed + number)
        rates[run.traffic.shape] = run.capacity
        if len(rates) == number:  # the traffic does not depend on the seed
            break
        found = LoadCapacity.of_bursts(list(rates.values()), alpha=0.05)
        if number + 1 >= MIN_BURSTS and found.high - found.low <= 2 * SURE * found.rate:
            break
    return LoadCapacity.of_bursts(list(rates.values()))


def _burst(selection: Selection, experiment: Experiment, seed: int) -> RunResult:
    run = run_once(selection, experiment.options, seed=seed, time_scale=0.0)
    if not run.capacity > 0:
        why = f": {run.notes[0]}" if run.notes else ""
        raise ConfigError(
            f"the baseline served nothing when its capacity was sought{why}", key="baseline"
        )
    return run
