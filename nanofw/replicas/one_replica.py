"""The engine of one replica, and what it says of itself, wherever it runs."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from dataclasses import replace

from nanofw.assembly import Selection, build, select
from nanofw.config.load import LoadedConfig
from nanofw.contracts.clock import Clock, PacedClock
from nanofw.contracts.kinds import KINDS
from nanofw.contracts.outputs import RequestOutput, StepOutput
from nanofw.contracts.requests import FinishReason, Request
from nanofw.engine.engine import Engine
from nanofw.errors import NanofwError, RequestError, RequestShed
from nanofw.narrowing import JsonObject, Stats
from nanofw.plugins import Component, load_plugin
from nanofw.replicas.messages import ReplicaFailed, ReplicaReady


def selected_alone(loaded: LoadedConfig) -> Selection:
    """The components of one replica of a run."""
    selection = select(alone(loaded))
    if loaded.config.engine.tensor_parallel_size > 1:
        return selection
    return _in_process(selection)


def alone(loaded: LoadedConfig) -> LoadedConfig:
    """The configuration of one replica."""
    section = loaded.config.engine.model_copy(update={"replicas": 1})
    return replace(loaded, config=loaded.config.model_copy(update={"engine": section}))


def _in_process(selection: Selection) -> Selection:
    """The executor that computes in this process, which has the device already."""
    asked: Component = selection.components["executor"]
    name = asked.plugin.capabilities["replicas"]
    if name == asked.name:
        return selection
    entry = selection.registry.find("executor", name, by_default=True)
    executor = Component(plugin=load_plugin(entry), options=asked.options, entry=entry)
    return replace(selection, components={**selection.components, "executor": executor})


def make(loaded: LoadedConfig) -> tuple[Engine, ReplicaReady]:
    """The engine of a replica that serves in real time; a modelled machine is paced.

    Raises:
        NanofwError: as `select` and `build` do.
    """
    selection = selected_alone(loaded)
    clock: Clock | None = PacedClock() if selection.virtual_time else None
    engine = build(selection, clock=clock)
    return engine, ready(engine, selection)


def ready(engine: Engine, selection: Selection) -> ReplicaReady:
    """What a replica says when its engine is there."""
    return ReplicaReady(
        limits=engine.scheduler.limits,
        origins=tuple(sorted(origins(selection))),
        pid=os.getpid(),
        rank_pids=engine.executor_facts().process_ids,
    )


def origins(selection: Selection) -> set[tuple[str, str, str]]:
    """Kind, name and origin of the components that every replica has."""
    return {
        (choice.kind, choice.name, choice.origin)
        for choice in selection.explanation.choices
        if KINDS[choice.kind].made_by != "replicas"
    }


def refused(request: Request, error: RequestError) -> StepOutput:
    """A refusal that only the replica could find out: adding a request waits for no answer."""
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


def failed(error: BaseException, finished: tuple[RequestOutput, ...] = ()) -> ReplicaFailed:
    """What a replica says of the error that ended it."""
    is_ours = isinstance(error, NanofwError)
    return ReplicaFailed(
        error=type(error).__name__ if is_ours else "",
        message=str(error) if is_ours else f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
        finished=finished,
    )


def plain(stats: Stats) -> JsonObject:
    """`Engine.stats()` without views of mappings, which do not travel."""
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in stats.items()
    }
