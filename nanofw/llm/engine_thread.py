"""An engine in a thread of its own: requests go in by a queue, pieces of text come out."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from nanofw.contracts.clock import Clock, PacedClock
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.requests import SamplingParams
from nanofw.errors import ExecutorError
from nanofw.llm.encoding import Encoder
from nanofw.llm.prompts import Prompt
from nanofw.llm.results import StreamEvent
from nanofw.llm.session import Session, SessionStep
from nanofw.text.tokenizer import Tokenizer

logger: logging.Logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.5
"""Seconds between two checks of an idle engine's ranks."""


class Receiver(Protocol):
    """Waits for a request; called in the engine's thread."""

    def receive(self, events: list[StreamEvent]) -> None:
        """What one step brought for it."""
        ...


@dataclass(frozen=True, slots=True)
class _AddPrompt:
    receiver: Receiver
    prompt: Prompt
    arrival: float


@dataclass(frozen=True, slots=True)
class _AbortPrompt:
    receiver: Receiver


@dataclass(frozen=True, slots=True)
class _ShedPrompt:
    receiver: Receiver
    reason: str


@dataclass(frozen=True, slots=True)
class _CallSession:
    function: Callable[[Session], Any]
    future: Future[Any]


_Command: TypeAlias = _AddPrompt | _AbortPrompt | _ShedPrompt | _CallSession | None


class EngineThread:
    """Steps a session for as long as it has something to do, and sleeps otherwise.

    Only this thread touches the session, from its making on: devices and graphs belong to the
    thread that made them. The methods here may be called from any other.

    Args:
        make_session: called in the thread; what it raises is raised here.

    Attributes:
        encoder, default_sampling, tokenizer, max_model_len, spec: of the session; any thread may
            use them.
        is_simulated: a modelled machine answers, in step with the clock of this one.
        failure: what ended the engine, or None.
    """

    def __init__(self, make_session: Callable[[], Session]) -> None:
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._early: _AddPrompt | None = None
        self._receivers: dict[int, Receiver] = {}
        self._tickets: dict[Receiver, int] = {}
        self._lock = threading.Lock()
        self._stopping = False
        self.failure: BaseException | None = None
        made: Future[Session] = Future()
        self._thread = threading.Thread(
            target=self._main, args=(make_session, made), name="nanofw-engine", daemon=True
        )
        self._thread.start()
        self._session = made.result()
        clock: Clock = self._session.engine.clock
        self.is_simulated: bool = self._session.engine.is_simulated
        self._callers_clock = clock.machine if isinstance(clock, PacedClock) else clock
        self.encoder: Encoder = self._session.encoder
        self.default_sampling: SamplingParams = self._session.default_sampling
        self.tokenizer: Tokenizer | None = self._session.tokenizer
        self.max_model_len: int = self._session.engine.max_model_len
        self.spec: ModelSpec = self._session.engine.spec

    def add_prompt(self, receiver: Receiver, prompt: Prompt, arrival: float | None = None) -> None:
        """Queue an encoded prompt.

        Args:
            arrival: when it came, on the callers' clock; None: now.

        Raises:
            ExecutorError: the engine failed or was closed.
        """
        with self._lock:  # in the queue before the engine's clock shows a later time
            self._check_open()
            now = self._callers_clock.now()
            arrival = now if arrival is None else min(arrival, now)
            self._commands.put(_AddPrompt(receiver, prompt, arrival))

    def abort(self, receiver: Receiver) -> None:
        """End a request; its result comes as always. Does nothing when it has ended."""
        if self.failure is None and not self._stopping:
            self._commands.put(_AbortPrompt(receiver))

    def shed(self, receiver: Receiver, reason: str) -> None:
        """End a request that was not started yet; does nothing when it was, or has ended."""
        if self.failure is None and not self._stopping:
            self._commands.put(_ShedPrompt(receiver, reason))

    def call(self, function: Callable[[Session], Any]) -> Future[Any]:
        """Run a function between two steps. Raises `ExecutorError` as `add_prompt` does."""
        future: Future[Any] = Future()
        self._put(_CallSession(function, future))
        return future

    @property
    def replica_problems(self) -> tuple[str | None, ...]:
        """As `BaseEngine.replica_problems`."""
        return self._session.engine.replica_problems

    def stop(self) -> None:
        """Abort what runs, end the thread and close the engine. Idempotent."""
        with self._lock:
            self._stopping = True
            self._commands.put(None)
        self._thread.join()

    def _put(self, command: _Command) -> None:
        with self._lock:
            self._check_open()
            self._commands.put(command)

    def _check_open(self) -> None:
        if self.failure is not None:
            raise ExecutorError(f"the engine failed: {self.failure}") from self.failure
        if self._stopping:
            raise ExecutorError("the engine was closed")

    # -- in the thread --------------------------------------------------------------------

    def _main(self, make_session: Callable[[], Session], made: Future[Session]) -> None:
        try:
            session = self._session = make_session()
        except BaseException as error:
            made.set_exception(error)
            return
        made.set_result(session)
        self._run(session)

    def _run(self, session: Session) -> None:
        try:
            while not self._stopping:
                self._take_commands(wait=not session.has_unfinished)
                if session.has_unfinished:
                    self._deliver(session.step())
                else:
                    session.engine.check_alive()
        except BaseException as error:  # nothing interrupts this thread but its own engine
            logger.exception("the engine failed")
            self._end(f"the engine failed: {error}", error)
        else:
            self._end("the engine was closed", None)
        finally:
            session.engine.close()

    def _take_commands(self, *, wait: bool) -> None:
        """Carry out what has come, in its order."""
        while True:
            try:
                command = self._early or self._next_command(wait=wait)
            except queue.Empty:
                return
            wait, self._early = False, None
            match command:
                case _AddPrompt():
                    if not self._has_come(command):
                        self._early = command
                        return
                    self._add_prompt(command)
                case _AbortPrompt(receiver):
                    if (ticket := self._tickets.get(receiver)) is not None:
                        self._session.abort(ticket)
                case _ShedPrompt(receiver, reason):
                    if (ticket := self._tickets.get(receiver)) is not None:
                        self._session.shed(ticket, reason)
                case _CallSession(function, future):
                    _run_call(future, function, self._session)
                case None:
                    return

    def _next_command(self, *, wait: bool) -> _Command:
        if wait:
            timeout_s = WATCH_INTERVAL_S if self._session.engine.is_watchable else None
            return self._commands.get(timeout=timeout_s)
        with self._lock:
            return self._commands.get_nowait()

    def _has_come(self, command: _AddPrompt) -> bool:
        """Whether the engine's clock, which may be behind the callers', shows its time.

        An engine that is idle goes to that time at once; another gets there in its steps.
        """
        clock: Clock = self._session.engine.clock
        if command.arrival > clock.now() and not self._session.has_unfinished:
            clock.wait_until(command.arrival)
        return command.arrival <= clock.now()

    def _add_prompt(self, command: _AddPrompt) -> None:
        ticket = self._session.add_prompt(command.prompt, stream=True, arrival=command.arrival)
        self._receivers[ticket], self._tickets[command.receiver] = command.receiver, ticket

    def _deliver(self, step: SessionStep) -> None:
        by_receiver: dict[Receiver, list[StreamEvent]] = {}
        for ticket, event in step.events:
            by_receiver.setdefault(self._receivers[ticket], []).append(event)
            if event.result is not None:
                self._tickets.pop(self._receivers.pop(ticket))
        for receiver, events in by_receiver.items():
            receiver.receive(events)

    def _end(self, reason: str, failure: BaseException | None) -> None:
        """Refuse new requests, then send a result to every receiver."""
        with self._lock:
            self.failure, self._stopping = failure, True
        commands: list[_Command] = [self._early] if self._early else []
        while not self._commands.empty():
            commands.append(self._commands.get())
        for command in commands:
            match command:
                case _AddPrompt(receiver, prompt):
                    ticket = self._session.refuse(reason, prompt.id)
                    self._receivers[ticket], self._tickets[receiver] = receiver, ticket
                case _CallSession(_, future) if future.set_running_or_notify_cancel():
                    future.set_exception(ExecutorError(reason))
                case _:
                    pass
        self._deliver(self._session.fail(reason))


def _run_call(future: Future[Any], function: Callable[[Session], Any], session: Session) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function(session))
    except Exception as error:
        future.set_exception(error)
