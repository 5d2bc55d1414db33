"""A cost model whose answers are looked at before the clock believes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from nanofw.contracts.cost_model import CostModel, OccupiesHost, SteadyCostModel
from nanofw.contracts.hooks import speaks_for
from nanofw.contracts.plan import StepPlan
from nanofw.plugin_calls import PluginCalls, number_of

MOST_BYTES = 1 << 60
LONGEST_STEP = 1e9
"""Seconds. Sums of longer times lose the microseconds of the others."""


class CheckedCostModel(PluginCalls):
    """Passes calls on; what a call raises or answers is told with the cost model's name.

    Args:
        label: what messages call the model.

    Attributes:
        occupies_host: whether the model knows how long the host is busy.
        knows_steady_steps: whether it can be asked for the times of many steps at once.
    """

    def __init__(self, model: CostModel, label: str) -> None:
        super().__init__(label)
        self._model = model
        self._seconds = model.seconds
        self._host_seconds = model.host_seconds if isinstance(model, OccupiesHost) else None
        self.occupies_host: bool = self._host_seconds is not None
        self._steady_seconds = _steady_seconds(model)
        self.knows_steady_steps: bool = self._steady_seconds is not None

    def seconds(self, plan: StepPlan) -> float:
        """Time of a step on the device. Raises ExecutorError: it is not a time."""
        return self._time("seconds", self.call("seconds", self._seconds, plan))

    def host_seconds(self, plan: StepPlan) -> float:
        """Time of a step on the host. Raises ExecutorError: it is not a time."""
        assert self._host_seconds is not None
        return self._time("host_seconds", self.call("host_seconds", self._host_seconds, plan))

    def steady_seconds(self, plan: StepPlan, num_steps: int) -> tuple[list[float], list[float]]:
        """Times of steady steps on the host, none where it does not occupy it, and on the device.

        Raises ExecutorError: they are not times.
        """
        assert self._steady_seconds is not None
        answer: Any = self.call("steady_seconds", self._steady_seconds, plan, num_steps)
        given = answer
        if type(answer) is not tuple or len(given) != 2:
            wanted = "the times of the host or None, and those of the device"
            raise self.wrong("steady_seconds", given, wanted)
        host = self._times(given[0], num_steps) if self.occupies_host else []
        return host, self._times(given[1], num_steps)

    def kv_bytes(self) -> int | None:
        """Memory for keys and values. Raises ExecutorError: it is not a number of bytes."""
        value: object = self.call("kv_bytes", self._model.kv_bytes)
        if value is None:
            return None
        number = number_of(value)
        if number is not None and 0 <= number <= MOST_BYTES:
            return int(number)
        raise self.wrong("kv_bytes", value, f"a number of bytes from 0 to {MOST_BYTES}, or None")

    def _time(self, method: str, value: object) -> float:
        number = number_of(value)
        if number is not None and 0 <= number <= LONGEST_STEP:
            return number
        raise self.wrong(method, value, f"a number of seconds from 0 to {LONGEST_STEP:g}")

    def _times(self, times: Any, num_steps: int) -> list[float]:
        given, wanted = times, f"float64[{num_steps}] of seconds from 0 to {LONGEST_STEP:g}"
        if isinstance(times, np.ndarray) and given.dtype == np.float64:
            if given.shape == (num_steps,) and ((given >= 0) & (given <= LONGEST_STEP)).all():
                return given.tolist()
            given = given.tolist()
        raise self.wrong("steady_seconds", given, wanted)


def _steady_seconds(model: CostModel) -> Any:
    """The method, where it belongs to the class that says what a step costs, or to one below it."""
    if not isinstance(model, SteadyCostModel):
        return None
    methods = ("seconds", "host_seconds") if isinstance(model, OccupiesHost) else ("seconds",)
    return model.steady_seconds if speaks_for(model, "steady_seconds", *methods) else None
