"""Cost model `fitted`: a sum of counts times coefficients, from steps that a real run recorded.

`nanofw calibrate` writes its file. Some counts are capped: `token<=16` grows up to 16 tokens
and then stays, so that a sum of them bends where small matrix products cost as much as larger
ones; `token>512` begins to grow there, where launches stop to be what a step waits for. No
coefficient is negative: more work never takes less time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.cost_model import CostModelConfig
from nanofw.contracts.plan import StepPlan
from nanofw.errors import ConfigError
from nanofw.plugins import Options
from nanofw.sim.work import StepWork, steady_keys


def _up_to(limit: int) -> Callable[[StepWork], float]:
    return lambda work: min(work.num_tokens, limit)


def _beyond(limit: int) -> Callable[[StepWork], float]:
    return lambda work: max(work.num_tokens - limit, 0)


FEATURES: Mapping[str, Callable[[StepWork], float]] = MappingProxyType(
    {
        "step": lambda work: 1.0,
        "row": lambda work: work.num_rows,
        "prefill step": lambda work: float(work.num_prefills > 0),
        "prefill": lambda work: work.num_prefills,
        "sampled": lambda work: work.num_sampled,
        "token": lambda work: work.num_tokens,
        **{f"token<={limit}": _up_to(limit) for limit in (4, 16, 64, 128, 256, 384, 512)},
        **{f"token>{limit}": _beyond(limit) for limit in (256, 512, 1024, 2048, 4096)},
        "prefill step>512": lambda work: float(work.num_prefills > 0 and work.num_tokens > 512),
        "key": lambda work: work.num_keys,
        "pair": lambda work: work.num_pairs,
        "removed": lambda work: work.num_removed,
        "after prefill": lambda work: float(work.num_prefills_before > 0),
        "prefill before": lambda work: work.num_prefills_before,
    }
)
"""What a step is counted in, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fitted cost model, as its file holds it.

    Attributes:
        coefficients: seconds per unit, by feature; those that are 0 are left out.
        about: what was measured: model, device, number of steps, errors.
        host: the same for the time that the host is busy, where the device works meanwhile;
            `coefficients` are then of the device alone. Empty: they are of both.
    """

    coefficients: Mapping[str, float]
    about: Mapping[str, object]
    host: Mapping[str, float] = field(default_factory=dict[str, float])

    def seconds(self, work: StepWork) -> float:
        """Time of a step."""
        return _total(self.coefficients, work)

    def host_seconds(self, work: StepWork) -> float:
        """Time of the host."""
        return _total(self.host, work)

    def write(self, path: Path) -> None:
        """Write the file that `read` reads."""
        record = {
            "cost_model": "fitted",
            "coefficients": dict(self.coefficients),
            "host": dict(self.host),
            "about": dict(self.about),
        }
        text = json.dumps(record, indent=1)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Fit:
        """Read a file. Raises `ConfigError` when `nanofw calibrate` did not write it."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            coefficients = _times(record["coefficients"])
            host = _times(record.get("host", {}))
            if not coefficients:
                raise ValueError("no coefficients")
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", source=str(path)) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(
                "is not a fitted cost model; nanofw calibrate writes one", source=str(path)
            ) from None
        if unknown := sorted({*coefficients, *host} - set(FEATURES)):
            raise ConfigError(
                f"has unknown features {', '.join(unknown)}; calibrate again", source=str(path)
            )
        return cls(coefficients=coefficients, about=record.get("about", {}), host=host)


def _total(coefficients: Mapping[str, float], work: StepWork) -> float:
    """One by one: `sum` of some versions of Python rounds numbers and arrays differently."""
    total = 0.0
    for name, value in coefficients.items():
        total += value * FEATURES[name](work)
    return total


def _times(record: Mapping[str, object]) -> dict[str, float]:
    """Seconds by feature. Raises ValueError for what is not a time, such as a negative one."""
    times: dict[str, float] = {}
    for name, value in record.items():
        is_bool = isinstance(value, bool)
        if is_bool or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{value!r} is not a time")
        times[str(name)] = float(value)
    return times


class FittedOptions(Options):
    """`cost_model: {name: fitted, file: cost.json}`."""

    file: Path
    """What `nanofw calibrate` wrote."""


class FittedCost:
    """Times as they were measured."""

    def __init__(self, options: FittedOptions, config: CostModelConfig) -> None:
        self._fit = Fit.read(options.file)
        self._work: StepWork | None = None
        self._step = -1  # that `_work` is of

    def seconds(self, plan: StepPlan) -> float:
        return self._fit.seconds(self._count(plan))

    def host_seconds(self, plan: StepPlan) -> float:
        return self._fit.host_seconds(self._count(plan))

    def steady_seconds(self, plan: StepPlan, num_steps: int) -> tuple[FloatArray, FloatArray]:
        work = StepWork.of(plan)
        keys = steady_keys(work, num_steps)
        work = work._replace(num_keys=keys, num_pairs=keys)  # counts of all steps in one array
        host, seconds = self._fit.host_seconds(work), self._fit.seconds(work)
        return np.broadcast_to(host, num_steps), np.broadcast_to(seconds, num_steps)

    def _count(self, plan: StepPlan) -> StepWork:
        if self._work is None or plan.step != self._step:
            self._work, self._step = StepWork.of(plan, self._work), plan.step
        return self._work

    def kv_bytes(self) -> int | None:
        return None
