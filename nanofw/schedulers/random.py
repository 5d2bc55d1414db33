"""Random order: the control that every other policy should beat or equal."""

from __future__ import annotations

import random

from nanofw.plugins import Options, Policy, RequestView, SchedulerConfig, SchedulerView


class RandomOptions(Options):
    """`scheduler: {name: random, ...}`."""

    seed: int = 0
    """Start of the random order."""


class Random(Policy):
    """Serves in an order that depends on the seed and the submission index alone."""

    def __init__(self, options: RandomOptions, config: SchedulerConfig | None = None) -> None:
        super().__init__(options, config)
        self._seed = options.seed

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return random.Random(f"{self._seed}/{request.index}").random()
