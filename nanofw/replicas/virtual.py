"""Replicas of a simulated run in virtual time: several engines in one process, each with its clock.

Whoever is furthest behind takes the next step, and what a step brought is handed out when no
engine can bring anything earlier. So a router sees what had happened by then, and nothing later.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from nanofw.assembly import Selection, build
from nanofw.contracts.clock import Clock, VirtualClock
from nanofw.contracts.outputs import StepOutput
from nanofw.engine.engine import Engine
from nanofw.errors import RequestError
from nanofw.narrowing import Stats
from nanofw.replicas.messages import AbortRequest, AddRequest, FinishSample, ReplicaCommand
from nanofw.replicas.one_replica import failed, plain, ready, refused, selected_alone
from nanofw.replicas.placement import ReplicaEvents, Replicas, ReplicaState


class VirtualReplicas(Replicas):
    """Makes all engines, in this process."""

    def __init__(self, selection: Selection) -> None:
        one = selected_alone(selection.loaded)
        self._engines: list[Engine] = []
        self._states: list[ReplicaState] = []
        for _ in range(selection.loaded.config.engine.replicas):
            engine = build(one, clock=VirtualClock())
            self._engines.append(engine)
            self._states.append(ReplicaState(ready(engine, one)))
        self._wake_at: list[float | None] = [None] * len(self._engines)
        self._done: list[tuple[float, int, int, StepOutput]] = []
        self._num_done = 0
        self.clock: Clock = _FrontClock(self)

    @property
    def all(self) -> Sequence[ReplicaState]:
        return self._states

    @property
    def engines(self) -> Sequence[Engine]:
        return self._engines

    def next_time(self) -> float | None:
        """When the next thing happens; None: nothing will before another request comes."""
        times = [self._time_of(number) for number in self._busy()]
        if self._done:
            times.append(self._done[0][0])
        return min(times, default=None)

    def send(self, number: int, *commands: ReplicaCommand) -> None:
        engine = self._engines[number]
        for command in commands:
            match command:
                case AddRequest(request):
                    self._go_to(number, request.arrival or 0.0)
                    try:
                        engine.add_request(request)
                    except RequestError as error:
                        self._put(number, self.clock.now(), refused(request, error))
                case AbortRequest(request_id):
                    self._go_to(number, self.clock.now())
                    engine.abort_request(request_id)
                case FinishSample(request_id, num_tokens, reason, sample_index):
                    engine.finish_request(request_id, num_tokens, reason, sample_index)
                case _:
                    pass

    def poll(self, timeout_s: float) -> ReplicaEvents:
        """One thing at a time: the next output if it is due, or a step of the engine that is
        furthest behind, whose output comes later."""
        events = ReplicaEvents()
        behind = min(self._busy(), key=self._time_of, default=None)
        due = self._done[0][0] if self._done else None
        if due is not None and (behind is None or due <= self._time_of(behind)):
            _, _, number, output = heapq.heappop(self._done)
            events.outputs.append((number, output))
        elif behind is not None:
            self._step(behind, events)
        return events

    def stats(self) -> dict[int, Stats]:
        return {number: plain(self._engines[number].stats()) for number in self.alive}

    def close(self) -> None:
        for engine in self._engines:
            engine.close()

    def _busy(self) -> list[int]:
        return [number for number in self.alive if self._engines[number].has_unfinished]

    def _time_of(self, number: int) -> float:
        """When an engine acts next."""
        wake_at = self._wake_at[number]
        return self._engines[number].clock.now() if wake_at is None else wake_at

    def _go_to(self, number: int, time: float) -> None:
        """Move the clock of an engine that has nothing to do before a time, or waits for one."""
        engine, wake_at = self._engines[number], self._wake_at[number]
        if not engine.has_unfinished:
            engine.clock.wait_until(time)
        elif wake_at is not None:
            engine.clock.wait_until(min(time, wake_at))
            self._wake_at[number] = None

    def _step(self, number: int, events: ReplicaEvents) -> None:
        engine = self._engines[number]
        if (wake_at := self._wake_at[number]) is not None:
            engine.clock.wait_until(wake_at)
            self._wake_at[number] = None
        try:
            output = engine.step()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._fail(number, error, events)
            return
        self._wake_at[number] = output.wake_at
        self._put(number, engine.clock.now(), output)

    def _fail(self, number: int, error: BaseException, events: ReplicaEvents) -> None:
        """The others go on."""
        told = failed(error, tuple(self._engines[number].take_finished()))
        self._states[number].ready, self._states[number].problem = None, told.message
        mine = sorted(item for item in self._done if item[2] == number)
        self._done = [item for item in self._done if item[2] != number]
        heapq.heapify(self._done)
        events.outputs += [(number, output) for _, _, _, output in mine]
        events.outputs.append((number, StepOutput(finished=list(told.finished))))
        events.gone.append((number, told.text))

    def _put(self, number: int, time: float, output: StepOutput) -> None:
        self._num_done += 1
        heapq.heappush(self._done, (time, self._num_done, number, output))


class _FrontClock:
    """Where the run is: at the next thing that will happen."""

    def __init__(self, replicas: VirtualReplicas) -> None:
        self._replicas = replicas
        self._now = 0.0

    def now(self) -> float:
        time = self._replicas.next_time()
        if time is not None:
            self._now = max(self._now, time)
        return self._now

    def wait_until(self, deadline: float) -> None:
        self._now = max(self.now(), deadline)
