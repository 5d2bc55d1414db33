"""A cost model whose answers are looked at before the clock believes them."""

from __future__ import annotations

from nanofw.contracts.cost_model import CostModel, OccupiesHost
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
    """

    def __init__(self, model: CostModel, label: str) -> None:
        super().__init__(label)
        self._model = model
        self._seconds = model.seconds
        self._host_seconds = model.host_seconds if isinstance(model, OccupiesHost) else None
        self.occupies_host: bool = self._host_seconds is not None

    def seconds(self, plan: StepPlan) -> float:
        """Time of a step on the device. Raises ExecutorError: it is not a time."""
        return self._time("seconds", self.call("seconds", self._seconds, plan))

    def host_seconds(self, plan: StepPlan) -> float:
        """Time of a step on the host. Raises ExecutorError: it is not a time."""
        assert self._host_seconds is not None
        return self._time("host_seconds", self.call("host_seconds", self._host_seconds, plan))

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
