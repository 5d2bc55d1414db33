"""One run against an endpoint, measured by what its client saw."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nanofw.compare.client_service import ClientService
from nanofw.compare.experiment import ExperimentOptions
from nanofw.compare.finished import FinishedRequests, FinishedTable
from nanofw.compare.metrics import RunMeasurement
from nanofw.compare.run import MeasuredRun
from nanofw.compare.traffic import ObservedWorkload
from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.outputs import RequestOutput

UNSEEN = ("preemptions", "recomputed_tokens", "service.gap", "service.jain")
"""Metrics that no client can tell, beside the time in the queue."""


@dataclass(frozen=True, slots=True)
class ClientView:
    """What the client of an endpoint saw of a run. Times are those of its clock, in seconds.

    Attributes:
        outputs: of all requests, with their client's name; `scheduled` is the first token's time.
        gaps: between events of one request that ended in [start, end].
        num_tokens: that came in [start, end].
        lag_s: how late the client itself sent a request, in the worst case.
    """

    outputs: Sequence[tuple[str, RequestOutput]]
    gaps: Callable[[float, float], FloatArray]
    num_tokens: Callable[[float, float], float]
    lag_s: float


class EndpointWatch:
    """What a run asks of those who watch it, as far as a client knows it."""

    num_steps: int = 0
    host_seconds: float = 0.0
    fewest_available: float = 1.0

    def __init__(self, view: ClientView) -> None:
        self._view = view

    def gaps(self, start: float, end: float) -> tuple[FloatArray, FloatArray]:
        """Gaps that ended in [start, end], each of which occurred once."""
        found = self._view.gaps(start, end)
        return found, np.ones(len(found))

    def num_tokens(self, start: float, end: float) -> float:
        """Tokens that came in [start, end]."""
        return self._view.num_tokens(start, end)


class EndpointRun(MeasuredRun):
    """A run that a client saw. What it cannot tell is NaN.

    Args:
        workload: that was sent.
    """

    def __init__(
        self, view: ClientView, workload: ObservedWorkload, options: ExperimentOptions
    ) -> None:
        self._options, self._workload = options, workload
        self._service, self._watch = ClientService(), EndpointWatch(view)
        self._finished_requests = FinishedRequests()
        self._checksum = self._served_checksum = 0
        self._clients: dict[str, int] = {}
        self._lag = view.lag_s
        for client, output in view.outputs:
            number = self._clients.setdefault(client, len(self._clients))
            self._finished_requests.add_output(output, number)
            if output.finish_reason.is_served:
                self._served_checksum += zlib.crc32(output.id.encode())
        self._started = min((output.arrival for _, output in view.outputs), default=0.0)
        self._finished = max((output.finished for _, output in view.outputs), default=0.0)

    def _measure(
        self,
        served: FinishedTable,
        came: FinishedTable,
        inside: FinishedTable,
        start: float,
        end: float,
    ) -> RunMeasurement:
        measured = super()._measure(served, came, inside, start, end)
        measured.whole |= dict.fromkeys(UNSEEN, math.nan)
        measured.latencies["queue"] = np.full(len(inside), math.nan)
        return measured
