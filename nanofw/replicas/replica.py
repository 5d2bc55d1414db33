"""A replica: an engine in an actor, in a thread of its own."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import ray

from nanofw.assembly import Selection, build, select
from nanofw.config.load import LoadedConfig
from nanofw.contracts.outputs import RequestOutput, StepOutput
from nanofw.contracts.requests import FinishReason, Request
from nanofw.engine.engine import Engine
from nanofw.errors import NanofwError, RequestError, RequestShed
from nanofw.plugins import Component, load_plugin
from nanofw.replicas.messages import (
    AbortRequest,
    AddRequest,
    FinishSample,
    ReplicaCommand,
    ReplicaFailed,
    ReplicaOutput,
    ReplicaReady,
    StopReplica,
)
from nanofw.runtime.ray.mailbox import Mailbox
from nanofw.runtime.ray.placement_group import InheritedPlacementGroup

WATCH_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class _CallEngine:
    """A question that the engine's thread answers between two steps."""

    function: Callable[[Engine], Any]
    answer: Future[Any]


class Replica:
    """Constructing it returns at once; `ready` waits for the engine.

    Args:
        loaded: the configuration of the run.
        path: `sys.path` of the router; what is not there is added.
        group: placement group of the ranks; None: there is one rank, in this process.
    """

    def __init__(self, loaded: LoadedConfig, path: list[str], group: Any) -> None:
        self._wait_s = 0.0  # until the policy wants to be asked again
        sys.path += [entry for entry in path if entry not in sys.path]
        if not os.environ.get("CUDA_VISIBLE_DEVICES", "all"):
            # Ray hides all GPUs from an actor that asked for none. This one holds no memory
            # there, its ranks do, but it must see what there is to choose components.
            del os.environ["CUDA_VISIBLE_DEVICES"]
        InheritedPlacementGroup.keep(group)
        self._mailbox: Mailbox[ReplicaCommand | _CallEngine, ReplicaOutput] = Mailbox()
        self._made: Future[ReplicaReady | ReplicaFailed] = Future()
        self._has_ended = threading.Event()
        threading.Thread(target=self._main, args=(loaded,), name="nanofw-engine").start()

    @ray.method(concurrency_group="questions")
    def ready(self) -> ReplicaReady | ReplicaFailed:
        """Wait until the engine is there."""
        return self._made.result()

    @ray.method(concurrency_group="commands")
    def deliver(self, number: int, commands: list[ReplicaCommand]) -> None:
        """Carry out commands, after those of smaller numbers."""
        for offset, command in enumerate(commands):
            self._mailbox.deliver(number + offset, command)

    @ray.method(concurrency_group="outputs")
    def outputs(self) -> list[ReplicaOutput] | None:
        """Wait for what steps brought; None after the last one."""
        return self._mailbox.take()

    @ray.method(concurrency_group="questions")
    def now(self) -> float:
        """Seconds on the engine's clock."""
        return self._ask(lambda engine: engine.clock.now())

    @ray.method(concurrency_group="questions")
    def stats(self) -> dict[str, Any]:
        """`Engine.stats()`."""
        return self._ask(lambda engine: _plain(engine.stats()))

    def _ask(self, function: Callable[[Engine], Any]) -> Any:
        answer: Future[Any] = Future()
        self._mailbox.put(_CallEngine(function, answer))
        if self._has_ended.is_set():
            raise RuntimeError("the engine has ended")
        return answer.result()

    # -- in the thread --------------------------------------------------------------------

    def _main(self, loaded: LoadedConfig) -> None:
        try:
            engine, ready = _make(loaded)
        except BaseException as error:
            self._made.set_result(_failed(error))
            return
        self._made.set_result(ready)
        try:
            with engine:
                self._serve(engine)
        except BaseException as error:
            self._mailbox.send(_failed(error, tuple(engine.take_finished())))
        self._has_ended.set()
        self._leave_unanswered()
        self._mailbox.close()

    def _leave_unanswered(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                command = self._mailbox.receive(0.0)
                if isinstance(command, _CallEngine):
                    command.answer.set_exception(RuntimeError("the engine has ended"))

    def _serve(self, engine: Engine) -> None:
        while True:
            while (command := self._next(engine)) is not None:
                if isinstance(command, StopReplica):
                    return
                self._carry_out(engine, command)
            if engine.has_unfinished:
                output = engine.step()
                self._mailbox.send(output)
                self._wait_s = 0.0
                if output.wake_at is not None:
                    left = output.wake_at - engine.clock.now()
                    self._wait_s = min(max(0.0, left), WATCH_INTERVAL_S)
            else:
                engine.check_alive()

    def _next(self, engine: Engine) -> ReplicaCommand | _CallEngine | None:
        """The next command; None when there is none to wait for."""
        try:
            return self._mailbox.receive(
                self._wait_s if engine.has_unfinished else WATCH_INTERVAL_S
            )
        except queue.Empty:
            return None

    def _carry_out(self, engine: Engine, command: ReplicaCommand | _CallEngine) -> None:
        match command:
            case AddRequest(request):
                try:
                    engine.add_request(request)
                except RequestError as error:
                    self._mailbox.send(_refused(request, error))
            case AbortRequest(request_id):
                engine.abort_request(request_id)
            case FinishSample(request_id, num_tokens, reason, sample_index):
                engine.finish_request(request_id, num_tokens, reason, sample_index)
            case _CallEngine(function, answer):
                answer.set_result(function(engine))
            case StopReplica():
                pass


_remote: Any = ray.remote
RemoteReplica: Any = _remote(concurrency_groups={"commands": 1, "outputs": 1, "questions": 2})(
    Replica
)
"""`Replica` as Ray has it."""


def _make(loaded: LoadedConfig) -> tuple[Engine, ReplicaReady]:
    engine_section = loaded.config.engine.model_copy(update={"replicas": 1})
    config = loaded.config.model_copy(update={"engine": engine_section})
    selection = select(replace(loaded, config=config))
    choices = selection.explanation.choices
    if engine_section.tensor_parallel_size == 1:
        selection = _in_process(selection)
    engine = build(selection)
    return engine, ReplicaReady(
        limits=engine.scheduler.limits,
        origins=tuple((choice.kind, choice.name, choice.origin) for choice in choices),
        pid=os.getpid(),
        rank_pids=engine.executor_facts().process_ids,
    )


def _in_process(selection: Selection) -> Selection:
    """The executor that computes in this process, which has the device already."""
    asked: Component = selection.components["executor"]
    entry = selection.registry.find(
        "executor", asked.plugin.capabilities["replicas"], by_default=True
    )
    executor = Component(plugin=load_plugin(entry), options=asked.options, entry=entry)
    return replace(selection, components={**selection.components, "executor": executor})


def _refused(request: Request, error: RequestError) -> StepOutput:
    reason, now = FinishReason.of_refusal(error), request.arrival or 0.0
    after = error.retry_after_s if isinstance(error, RequestShed) else None
    ends = [
        replace(
            RequestOutput.of_unserved(request, reason, now, error=error.reason, sample_index=index),
            retry_after_s=after,
        )
        for index in range(request.sampling.n)
    ]
    return StepOutput(finished=ends)


def _failed(error: BaseException, finished: tuple[RequestOutput, ...] = ()) -> ReplicaFailed:
    is_ours = isinstance(error, NanofwError)
    return ReplicaFailed(
        error=type(error).__name__ if is_ours else "",
        message=str(error) if is_ours else f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
        finished=finished,
    )


def _plain(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Views of mappings do not travel."""
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in stats.items()
    }
