"""A replica: an engine in a thread of its own, with a mailbox for commands and outputs."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future

from nanofw.config.load import LoadedConfig
from nanofw.contracts.clock import PacedClock
from nanofw.engine.engine import Engine
from nanofw.errors import RequestError
from nanofw.replicas.messages import (
    AbortRequest,
    AddRequest,
    AskStats,
    FinishSample,
    ReplicaCommand,
    ReplicaFailed,
    ReplicaOutput,
    ReplicaReady,
    ReplicaStats,
    StopReplica,
)
from nanofw.replicas.one_replica import failed, make, plain, refused
from nanofw.runtime.ray.mailbox import Mailbox

WATCH_INTERVAL_S = 0.5


class Replica:
    """Constructing it returns at once; `ready` waits for the engine. Any thread may call it.

    Args:
        loaded: the configuration of the run.
    """

    def __init__(self, loaded: LoadedConfig) -> None:
        self._wait_s = 0.0  # until the policy wants to be asked again
        self._early: AddRequest | None = None
        self._mailbox: Mailbox[ReplicaCommand, ReplicaOutput] = Mailbox()
        self._made: Future[ReplicaReady | ReplicaFailed] = Future()
        threading.Thread(
            target=self._main, args=(loaded,), name="nanofw-engine", daemon=True
        ).start()

    def ready(self) -> ReplicaReady | ReplicaFailed:
        """Wait until the engine is there."""
        return self._made.result()

    def deliver(self, number: int, commands: list[ReplicaCommand]) -> None:
        """Carry out commands, after those of smaller numbers."""
        for offset, command in enumerate(commands):
            self._mailbox.deliver(number + offset, command)

    def outputs(self) -> list[ReplicaOutput] | None:
        """Wait for what steps brought; None after the last one."""
        return self._mailbox.take()

    # -- in the thread --------------------------------------------------------------------

    def _main(self, loaded: LoadedConfig) -> None:
        try:
            engine, ready = make(loaded)
        except BaseException as error:
            self._made.set_result(failed(error))
            return
        self._made.set_result(ready)
        try:
            with engine:
                self._serve(engine)
        except BaseException as error:
            self._mailbox.send(failed(error, tuple(engine.take_finished())))
        self._mailbox.close()

    def _serve(self, engine: Engine) -> None:
        while True:
            while (command := self._next(engine)) is not None:
                if isinstance(command, StopReplica):
                    return
                if not self._has_come(engine, command):
                    break
                self._carry_out(engine, command)
            if engine.has_unfinished:
                output = engine.step()
                self._mailbox.send(output)
                self._wait_s = 0.0
                if output.wake_at is not None:
                    left = output.wake_at - engine.clock.now()
                    self._wait_s = min(max(0.0, left), WATCH_INTERVAL_S)
                    if isinstance(engine.clock, PacedClock):  # it moves only where it is told to
                        engine.clock.wait_until(engine.clock.now() + self._wait_s)
                        self._wait_s = 0.0
            else:
                engine.check_alive()

    def _next(self, engine: Engine) -> ReplicaCommand | None:
        """The next command, or None when no command is to be waited for."""
        if self._early is not None:
            early, self._early = self._early, None
            return early
        try:
            return self._mailbox.receive(
                self._wait_s if engine.has_unfinished else WATCH_INTERVAL_S
            )
        except queue.Empty:
            return None

    def _has_come(self, engine: Engine, command: ReplicaCommand) -> bool:
        """Whether modelled time has reached a request's arrival; if not, it is kept for later.

        An engine that is idle goes to that time at once; another one gets there in its steps.
        """
        clock = engine.clock
        if not isinstance(command, AddRequest) or not isinstance(clock, PacedClock):
            return True
        arrival = command.request.arrival or 0.0
        if arrival > clock.now() and not engine.has_unfinished:
            clock.wait_until(arrival)
        if arrival <= clock.now():
            return True
        self._early = command
        return False

    def _carry_out(self, engine: Engine, command: ReplicaCommand) -> None:
        match command:
            case AddRequest(request):
                try:
                    engine.add_request(request)
                except RequestError as error:
                    self._mailbox.send(refused(request, error))
            case AbortRequest(request_id):
                engine.abort_request(request_id)
            case FinishSample(request_id, num_tokens, reason, sample_index):
                engine.finish_request(request_id, num_tokens, reason, sample_index)
            case AskStats(number):
                self._mailbox.send(ReplicaStats(number, plain(engine.stats())))
            case StopReplica():
                pass
