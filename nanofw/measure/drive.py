"""Run a workload through an engine, in real or in virtual time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator

from nanofw.contracts.outputs import RequestOutput, StepOutput
from nanofw.contracts.requests import FinishReason, Request
from nanofw.contracts.workload import Workload
from nanofw.engine.base import BaseEngine
from nanofw.errors import ConfigError, RequestError


class Arrivals:
    """Requests of a workload by the time at which they come, made one by one.

    Attributes:
        next_arrival: when the next request comes, as far as is known; infinite when none is.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._initial: Iterator[Request] = workload.initial()
        self._head = next(self._initial, None)
        self._followers: list[tuple[float, int, Request]] = []
        self._ticket = 0
        self.next_arrival: float = math.inf
        self._update()

    def due(self, now: float) -> Iterator[Request]:
        """Requests that have come by `now`, by arrival."""
        while self.next_arrival <= now:
            yield self._pop()

    def finished(self, output: RequestOutput) -> None:
        """Let the workload answer to a finished request."""
        for request in self._workload.follow(output):
            self._ticket += 1
            heapq.heappush(self._followers, (_arrival(request), self._ticket, request))
            self._update()

    def _pop(self) -> Request:
        head = self._head
        if head is None or (self._followers and self._followers[0][0] < _arrival(head)):
            request = heapq.heappop(self._followers)[2]
        else:
            request, self._head = head, next(self._initial, None)
            if self._head is not None and _arrival(self._head) < _arrival(head):
                raise ConfigError(
                    f"gives request {self._head.id!r} the arrival {_arrival(self._head):g} s after "
                    f"request {head.id!r} with {_arrival(head):g} s: arrivals must not fall",
                    key="input.workload",
                )
        self._update()
        return request

    def _update(self) -> None:
        self.next_arrival = math.inf if self._head is None else _arrival(self._head)
        if self._followers:
            self.next_arrival = min(self.next_arrival, self._followers[0][0])


def drive(
    engine: BaseEngine,
    workload: Workload,
    on_accept: Callable[[Request, float], None] | None = None,
) -> Iterator[StepOutput]:
    """Feed the engine what comes and step it until nothing is left.

    A simulated engine takes several steps at once where nothing can happen between them.

    A request that is refused shows up as a finished output of its own, with the reason.
    `on_accept` hears of each request when it is handed to the engine, and at what time: late
    when a step was in the way, which counts against the engine and not against the arrival.
    """
    arrivals, clock, strides = Arrivals(workload), engine.clock, engine.has_strides
    while True:
        refused: list[RequestOutput] = []
        for request in arrivals.due(clock.now()):
            if on_accept is not None:
                on_accept(request, clock.now())
            try:
                engine.add_request(request)
            except RequestError as error:
                refused.append(
                    RequestOutput.of_unserved(
                        request, FinishReason.of_refusal(error), clock.now(), error=error.reason
                    )
                )
        if engine.has_unfinished:
            output = engine.step_until(arrivals.next_arrival) if strides else engine.step()
            if output.wake_at is not None:
                clock.wait_until(min(output.wake_at, arrivals.next_arrival))
        elif refused:
            output = StepOutput()
        else:
            if arrivals.next_arrival == math.inf:
                return
            clock.wait_until(arrivals.next_arrival)
            continue
        output.finished[:0] = refused
        for finished in output.finished:
            arrivals.finished(finished)
        yield output


def _arrival(request: Request) -> float:
    arrival = request.arrival
    if arrival is None or not math.isfinite(arrival):
        raise ConfigError(
            f"gives request {request.id!r} the arrival {arrival}, which is not a time",
            key="input.workload",
        )
    return arrival
