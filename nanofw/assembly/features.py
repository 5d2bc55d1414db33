"""What a run needs of its components, and which of the engine's switches are on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from nanofw.assembly.claims import probe
from nanofw.assembly.explanation import Choice, Feature
from nanofw.assembly.model_reading import read_model
from nanofw.config.load import LoadedConfig
from nanofw.config.schema import EngineSection, Switch
from nanofw.plugins import Component, Registry
from nanofw.plugins.capabilities import BUILT_BY_EXECUTOR, CAPABILITIES, Needs
from nanofw.plugins.value_types import ANY

AUTO = "auto"


def read_needs(loaded: LoadedConfig, executor: Component, registry: Registry) -> Needs:
    """What a configuration, its model and its executor ask for.

    Raises:
        ConfigError: the configuration names no model.
        ModelError: the checkpoint is not there or not supported.
        PluginError: the executor's probe, or the reader of the model's plugin, is broken.
    """
    config, claims = loaded.config, executor.plugin.capabilities
    virtual_time = bool(claims.get("virtual_time", False))
    built = tuple(claims.get("needs", BUILT_BY_EXECUTOR))
    spec = read_model(loaded, registry, weights="model" in built)
    device = _device(config.engine.device, executor)
    dtype = config.model.dtype
    if dtype == AUTO:
        dtype = "float32" if device == "cpu" and not virtual_time else spec.dtype
    block_size = config.kv_allocator.block_size
    return Needs(
        spec=dataclasses.replace(spec, dtype=dtype),
        device=device,
        tensor_parallel_size=config.engine.tensor_parallel_size,
        replicas=config.engine.replicas,
        max_num_seqs=config.engine.max_num_seqs,
        max_model_len=config.engine.max_model_len or spec.max_model_len,
        block_size=None if block_size == AUTO else block_size,
        virtual_time=virtual_time,
        built_by_executor=built,
    )


def _device(asked: str, executor: Component) -> str:
    """The device that was asked for, or the first that the executor has here."""
    if asked != AUTO:
        return asked
    claimed = [str(item) for item in executor.plugin.capabilities.get("devices", ())]
    for device in claimed:
        if device == ANY:
            return "cpu"
        if not isinstance(probe(executor, device), str):
            return device
    return claimed[0] if claimed else "cpu"


def switches(
    engine: EngineSection, needs: Needs, choices: Sequence[Choice]
) -> tuple[Feature, Feature, Feature]:
    """What became of `overlap`, `cuda_graphs` and `prefill_graphs`."""
    graphs = _cuda_graphs(engine.cuda_graphs, needs, choices)
    return _overlap(engine.overlap, needs, choices), graphs, _prefill_graphs(graphs, choices)


def _overlap(asked: Switch, needs: Needs, choices: Sequence[Choice]) -> Feature:
    """Whether a step is planned while the one before runs."""
    lacking = _lacking(choices, "overlap")
    if asked == AUTO:
        on_cpu = needs.device == "cpu" and not needs.virtual_time
        reason = "on CPU planning and computing share the cores" if on_cpu else ""
        return _feature("overlap", asked, not on_cpu, reason, lacking)
    return _feature("overlap", asked, bool(asked), "", lacking)


def _cuda_graphs(asked: Switch, needs: Needs, choices: Sequence[Choice]) -> Feature:
    """Whether decode steps replay captured graphs."""
    lacking = _lacking(choices, "cuda_graph")
    if needs.device_type == "cuda" or asked is False:
        return _feature("cuda_graphs", asked, asked is not False, "", lacking)
    reason = f"device {needs.device} has none"
    return Feature(
        name="cuda_graphs", asked=asked, value=False, reason=reason, is_downgrade=asked is True
    )


def _prefill_graphs(graphs: Feature, choices: Sequence[Choice]) -> Feature:
    """Whether graphs may serve steps with prefill too. No downgrade: decode steps have them."""
    lacking = _lacking(choices, "cuda_graph_prefill")
    reason = "" if graphs.value else "cuda_graphs is off"
    return _feature("prefill_graphs", AUTO, graphs.value, reason, lacking)


def _lacking(choices: Sequence[Choice], key: str) -> list[str]:
    """Labels of the components that do not claim a capability, of the kinds that are asked."""
    kinds = CAPABILITIES[key].kinds
    return [
        choice.label for choice in choices if choice.kind in kinds and not choice.claims.get(key)
    ]


def _feature(
    name: str, asked: Any, wanted: bool, off_reason: str, lacking: Sequence[str]
) -> Feature:
    """On when it is wanted and every component claims it."""
    if not wanted:
        reason = off_reason or "as configured"
        return Feature(name=name, asked=asked, value=False, reason=reason)
    if lacking:
        reason = f"not claimed by {', '.join(lacking)}"
        return Feature(
            name=name, asked=asked, value=False, reason=reason, is_downgrade=asked is True
        )
    return Feature(name=name, asked=asked, value=True, reason="every component claims it")
