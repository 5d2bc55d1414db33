"""From a selection to a running engine: executor, capacity, allocator, policy, scheduler."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanofw.assembly.lengths import length_in_pool
from nanofw.assembly.selection import Selection, is_host, select
from nanofw.checkpoints.tokenizer_files import num_token_ids
from nanofw.config.load import LoadedConfig
from nanofw.contracts.clock import Clock, RealClock, VirtualClock
from nanofw.contracts.executor import Components, Executor, ExecutorConfig
from nanofw.contracts.kv_allocator import AllocatorConfig, KVAllocator
from nanofw.contracts.limits import Limits
from nanofw.contracts.logits_processor import HostProcessor, HostProcessorConfig
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.plan import Capacity
from nanofw.contracts.scheduler import Policy, SchedulerConfig
from nanofw.contracts.workload import Workload, WorkloadConfig
from nanofw.engine.engine import Engine
from nanofw.engine.executor_guard import ExecutorGuard
from nanofw.engine.host_processors import HostProcessors
from nanofw.engine.plugin_names import PluginNames
from nanofw.engine.scheduler import Scheduler
from nanofw.errors import NanofwError
from nanofw.measure.checked_workload import CheckedWorkload
from nanofw.plugins.component import Component, guarded
from nanofw.plugins.descriptor import load_target


class DowngradeWarning(UserWarning):
    """A feature that the configuration asked for is off."""


class PluginSettingWarning(UserWarning):
    """A setting of the section `plugins` had no effect, or a default has a namesake."""


def assemble(loaded: LoadedConfig, *, clock: Clock | None = None) -> Engine:
    """Select and build in one go; see `select` and `build` for what they raise."""
    return build(select(loaded), clock=clock)


def build(
    selection: Selection,
    *,
    clock: Clock | None = None,
    observers: Sequence[StepObserver] = (),
) -> Engine:
    """The engine of a selection.

    Warns with `DowngradeWarning` for each feature that was asked for and is off, and with
    `PluginSettingWarning` for each name in `plugins.disable` that does not exist, and for each
    default that another package offers under the same name.

    Args:
        clock: None: real time, or virtual time when the executor simulates.
        observers: who watches the steps of the engine.

    Raises:
        ConfigError: the configuration asks for several engines.
        NanofwError: whatever a component's constructor reports, with its name.
    """
    if selection.loaded.config.engine.replicas > 1:
        raise selection.loaded.error(
            "must be 1 here; several replicas work only with LLM, AsyncLLM and nanofw run",
            ("engine", "replicas"),
        )
    for sentence in selection.explanation.downgrades:
        warnings.warn(sentence, DowngradeWarning, stacklevel=2)
    for sentence in selection.explanation.warnings:
        warnings.warn(sentence, PluginSettingWarning, stacklevel=2)
    clock = clock or (VirtualClock() if selection.virtual_time else RealClock())
    component: Component = selection.components["executor"]
    executor = component.make(Executor, executor_config(selection, clock))
    try:
        return build_on(selection, executor, clock, observers=observers)
    except BaseException:
        executor.close()
        raise


def build_on(
    selection: Selection,
    executor: Executor,
    clock: Clock,
    *,
    observers: Sequence[StepObserver] = (),
) -> Engine:
    """The engine of a selection around an executor that is there already, with an empty cache.

    The executor must be new: it counts the steps of its one engine.
    """
    config, spec, components = selection.loaded.config, selection.spec, selection.components
    capacity = ExecutorGuard(components["executor"].label).capacity(executor)
    limits = _limits(selection, capacity)
    allocator = components["kv_allocator"].make(
        KVAllocator,
        AllocatorConfig(
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            max_num_seqs=limits.max_rows,
            max_blocks_per_row=-(-limits.max_model_len // limits.block_size) + 1,
            name=components["kv_allocator"].name,
        ),
    )
    scheduler: Component = components["scheduler"]
    policy = scheduler.make(Policy, SchedulerConfig(name=scheduler.name, limits=limits))
    overlap = selection.overlap
    if config.engine.overlap == "auto" and capacity.max_in_flight < 2:
        overlap = False
    return Engine(
        spec=spec,
        scheduler=Scheduler(
            limits,
            policy,
            allocator,
            spec.eos_token_ids,
            labels={kind: components[kind].label for kind in ("scheduler", "kv_allocator")},
            check_every=config.kv_allocator.check_every,
        ),
        executor=executor,
        clock=clock,
        overlap=overlap,
        seed=config.engine.seed,
        host_processors=_host_processors(selection),
        names=plugin_names(selection),
        observers=observers,
    )


def build_workload(
    selection: Selection, *, seed: int | None = None, start: float = 0.0, time_scale: float = 1.0
) -> Workload:
    """Make what `input.workload` names. Each run needs one of its own.

    Args:
        seed: of its random numbers; None: `engine.seed`.
        start: the engine's clock at time 0 of the workload.
        time_scale: what times between arrivals are multiplied with.

    Raises:
        ConfigError: the configuration names no workload.
        PluginError: the workload is broken.
    """
    config = selection.loaded.config
    facts = WorkloadConfig(
        vocab_size=selection.spec.vocab_size,
        max_model_len=selection.max_model_len,
        seed=config.engine.seed if seed is None else seed,
        start=start,
        time_scale=time_scale,
        sampling=config.sampling,
    )
    component = chosen_workload(selection)
    return CheckedWorkload(component.make(Workload, facts), component.label)


def chosen_workload(selection: Selection) -> Component:
    """What `input.workload` names. Raises ConfigError where it names none."""
    component: Component | None = selection.components.get("workload")
    if component is None:
        message = "is required here: name a workload, for example poisson"
        raise selection.loaded.error(message, ("input", "workload"))
    return component


def executor_config(selection: Selection, clock: Clock) -> ExecutorConfig:
    """What the executor of a selection is built with."""
    engine = selection.loaded.config.engine
    chosen = selection.components
    components = Components(
        model=chosen.get("model"),
        attention_backend=chosen.get("attention_backend"),
        sampler=chosen.get("sampler"),
        cost_model=chosen.get("cost_model"),
        logits_processors=tuple(item for item in chosen["logits_processor"] if not is_host(item)),
    )
    return ExecutorConfig(
        spec=replace(selection.spec, num_token_ids=_num_token_ids(selection.spec)),
        block_size=selection.block_size,
        num_blocks=selection.num_blocks,
        max_num_seqs=min(engine.max_num_seqs, engine.max_num_batched_tokens),
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=selection.max_model_len,
        clock=clock,
        components=components,
        device=selection.device,
        tensor_parallel_size=engine.tensor_parallel_size,
        memory_utilization=engine.memory_utilization,
        overlap=selection.overlap,
        cuda_graphs=selection.cuda_graphs,
        prefill_graphs=selection.prefill_graphs,
        name=chosen["executor"].name,
    )


def _num_token_ids(spec: ModelSpec) -> int | None:
    if spec.num_token_ids is not None or ":" in spec.path:
        return spec.num_token_ids
    return num_token_ids(Path(spec.path))


def plugin_names(selection: Selection) -> PluginNames:
    """The chosen plugins that may take arguments of requests."""
    components = selection.components
    model: Component | None = components.get("model")
    sampler = selection.loaded.config.sampler.name.rpartition(":")[2]  # also of a simulated run
    return PluginNames(
        policy=components["scheduler"].name,
        model="" if model is None else model.name,
        others=(sampler, *(item.name for item in components["logits_processor"])),
        executor=components["executor"].label,
    )


def _limits(selection: Selection, capacity: Capacity) -> Limits:
    engine = selection.loaded.config.engine
    return Limits(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=length_in_pool(
            selection.loaded, selection.max_model_len, capacity.num_blocks, capacity.block_size
        ),
        chunk_tokens=engine.chunk_tokens,
        max_partial_prefills=engine.max_partial_prefills,
        prefill_first=engine.batching == "prefill_first",
        num_blocks=capacity.num_blocks,
        block_size=capacity.block_size,
    )


def _host_processors(selection: Selection) -> HostProcessors:
    spec = selection.spec
    config = HostProcessorConfig(
        vocab_size=spec.vocab_size,
        eos_token_ids=spec.eos_token_ids,
        tokenizer_path=None if ":" in spec.path else spec.path,
    )
    chosen = [item for item in selection.components["logits_processor"] if is_host(item)]
    made = {item.name: item.make(HostProcessor, replace(config, name=item.name)) for item in chosen}
    return HostProcessors(made, spec.vocab_size, {item.name: item.label for item in chosen})


def memory_estimate(selection: Selection) -> Mapping[str, Any] | None:
    """Bytes and blocks by name, or None when the executor states no estimate.

    An executor states one by the capability `estimate`, the target of a function of its options
    and `ExecutorConfig`; docs/plugins/capabilities.md lists the names. Nothing is loaded.

    Raises:
        PluginError: the executor's function is broken.
    """
    return _ask_executor(selection, "estimate")


def graph_sizes(selection: Selection) -> Sequence[Mapping[str, Any]]:
    """What is captured in CUDA graphs: of each kind `graphs` (a name), `count` and `sizes`.

    An executor says so by the capability `graphs`, like `estimate`; empty where it does not, or
    captures nothing.

    Raises:
        PluginError: the executor's function is broken.
    """
    return _ask_executor(selection, "graphs") or []


def _ask_executor(selection: Selection, capability: str) -> Any:
    """Call the function that the executor states as a capability; None: it states none."""
    component = selection.components["executor"]
    target = component.plugin.capabilities.get(capability)
    if target is None:
        return None
    what = f"{capability} of {component.label}"
    function = guarded(lambda: load_target(target), what, "import")
    config = executor_config(selection, RealClock())
    return guarded(lambda: function(component.options, config), what, "run", passing=(NanofwError,))
