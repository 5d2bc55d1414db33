"""What each client was served, noted while a run is watched."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from nanofw.contracts.arrays import FloatArray, IntArray, LongArray
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.plan import StepPlan
from nanofw.contracts.requests import Request
from nanofw.contracts.stride import Stride

MAX_SAMPLES = 4096


class ClientService(StepObserver):
    """Tokens computed for each client, and the gap between clients that are all kept waiting.

    The gap is that of Sheng et al. (OSDI 2024): over any time in which all clients have
    requests waiting, the greatest difference between the tokens that they were served. With
    one client nothing is counted.

    Attributes:
        total: float64[c], tokens computed by client.
        max_gap: in tokens; 0 when they never all waited.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._client_of: dict[str, int] = {}
        self._rows = _RowClients()
        self._not_started: set[str] = set()
        self._num_waiting: list[int] = []
        self._since: FloatArray | None = None
        self.total: FloatArray = np.zeros(0)
        self.max_gap: float = 0.0
        self._history = ServiceHistory()

    @property
    def clients(self) -> list[str]:
        """Names, in the order of `total`."""
        return list(self._numbers)

    def add_request(self, request: Request) -> None:
        """Note that a request was handed to the engine."""
        if request.client not in self._numbers:
            self._numbers[request.client] = len(self._numbers)
            self._num_waiting.append(0)
            self.total = np.append(self.total, 0.0)
            self._since = None
        number = self._client_of[request.id] = self._numbers[request.client]
        self._not_started.add(request.id)
        self._num_waiting[number] += 1

    def finished(self, output: RequestOutput) -> None:
        """Note that a request has finished, perhaps before it ever ran."""
        request_id = output.id
        number = self._client_of.pop(request_id, None)
        if number is not None and request_id in self._not_started:
            self._start(request_id, number)

    def shares(self, start: float, end: float) -> dict[str, float]:
        """Each client's share of the tokens that were served in [start, end], by its name."""
        served = self._history.between(start, end, len(self.total))
        if not served.sum():
            return {}
        return dict(zip(self._numbers, (served / served.sum()).tolist(), strict=True))

    def submitted(self, plan: StepPlan, now: float) -> None:
        """Count a plan's tokens as service; the requests of its new rows wait no longer."""
        self.take_plan(plan, now, self._rows)

    def strode(self, stride: Stride) -> None:
        """Count the tokens of all its plans."""
        self.take_stride(stride, self._rows)

    def of_replica(self) -> StepObserver:
        """What counts the steps of one of several engines here."""
        return _ReplicaService(self)

    def take_plan(self, plan: StepPlan, now: float, rows: _RowClients) -> None:
        """As `submitted`, of an engine with these rows."""
        for new in plan.new:
            number = self._client_of.get(new.request_id)
            if number is None:
                continue
            if new.request_id in self._not_started:
                self._start(new.request_id, number)
            rows.place(new.row, number)
        self._count(rows.of(plan.rows), plan.num_tokens, [now])

    def take_stride(self, stride: Stride, rows: _RowClients) -> None:
        """As `strode`, of an engine with these rows."""
        self._count(rows.of(stride.rows), np.ones(len(stride.rows)), stride.submitted)

    def _count(
        self, owners: LongArray, num_tokens: FloatArray | IntArray, times: list[float]
    ) -> None:
        """So many tokens of rows of these clients in every one of the steps that were submitted."""
        if len(self._numbers) < 2:
            return
        served = np.bincount(owners, num_tokens, len(self.total))
        for now in times:
            self.total = self.total + served
            self._history.add(now, self.total)
            self._note_gap()

    def _start(self, request_id: str, number: int) -> None:
        self._not_started.discard(request_id)
        self._num_waiting[number] -= 1

    def _note_gap(self) -> None:
        if min(self._num_waiting) <= 0:
            self._since = None
            return
        if self._since is None:
            self._since = self.total
        served = self.total - self._since
        self.max_gap = max(self.max_gap, float(served.max() - served.min()))


class _RowClients:
    """The numbers of the clients of an engine's rows."""

    def __init__(self) -> None:
        self._of_row: LongArray = np.zeros(1024, np.int64)

    def place(self, row: int, client: int) -> None:
        if row >= len(self._of_row):
            self._of_row = np.concatenate((self._of_row, np.zeros(row, np.int64)))
        self._of_row[row] = client

    def of(self, rows: IntArray) -> LongArray:
        return self._of_row[rows]


class _ReplicaService(StepObserver):
    """The steps of one of several engines, counted in the service of all."""

    def __init__(self, service: ClientService) -> None:
        self._service, self._rows = service, _RowClients()

    def submitted(self, plan: StepPlan, now: float) -> None:
        self._service.take_plan(plan, now, self._rows)

    def strode(self, stride: Stride) -> None:
        self._service.take_stride(stride, self._rows)

    def finished(self, output: RequestOutput) -> None:
        self._service.finished(output)


class ServiceHistory:
    """What each client had been served at some times of a run, at most `MAX_SAMPLES` of them."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._totals: list[FloatArray] = []
        self._stride = self._left = 1

    def add(self, now: float, total: FloatArray) -> None:
        """Note float64[c] at a time; of a long run, every second, fourth, ... is kept."""
        self._left -= 1
        if self._left:
            return
        self._times.append(now)
        self._totals.append(total)
        if len(self._times) == MAX_SAMPLES:
            del self._times[1::2], self._totals[1::2]
            self._stride *= 2
        self._left = self._stride

    def between(self, start: float, end: float, num_clients: int) -> FloatArray:
        """float64[num_clients], tokens that each client was served in [start, end]."""
        return self._at(end, num_clients) - self._at(start, num_clients)

    def _at(self, time: float, num_clients: int) -> FloatArray:
        number = bisect_right(self._times, time) - 1
        total = np.zeros(num_clients)
        if number >= 0:  # later ones may know more clients
            total[: len(self._totals[number])] = self._totals[number]
        return total
