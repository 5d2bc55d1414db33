"""What a run needs: its model, its device, the features of each kind, the engine's switches."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanofw.assembly.capabilities import ANY, probe
from nanofw.assembly.explanation import Choice, Feature
from nanofw.assembly.model_source import read_spec
from nanofw.config.load import LoadedConfig
from nanofw.config.schema import EngineSection, Switch
from nanofw.contracts.model_spec import ModelSpec
from nanofw.plugins import Component

AUTO = "auto"
BUILT_BY_EXECUTOR = ("model", "attention_backend", "sampler", "logits_processor")
"""What an executor builds itself unless its capability `needs` says otherwise."""

CLAIMED_KEYS: Mapping[str, tuple[str, ...]] = {
    "executor": ("devices", "tensor_parallel", "replicas"),
    "model": (
        "devices",
        "dtypes",
        "activations",
        "rope_types",
        "partial_rotary",
        "sliding_window",
        "tensor_parallel",
    ),
    "attention_backend": (
        "devices",
        "dtypes",
        "head_dims",
        "block_sizes",
        "sliding_window",
        "tensor_parallel",
    ),
    "sampler": ("devices", "tensor_parallel"),
    "logits_processor": ("devices", "tensor_parallel"),
    "kv_allocator": ("block_sizes",),
}
"""Capabilities that a component of a kind must claim when the run needs them."""

OVERLAP_KINDS = ("executor", "scheduler", "attention_backend", "sampler", "logits_processor")
GRAPH_KINDS = ("executor", "model", "attention_backend", "sampler", "logits_processor")
PREFILL_GRAPH_KINDS = ("executor", "attention_backend")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What this run asks for.

    Attributes:
        spec: the model, in the dtype of the run.
        device: `cpu`, `cuda:1`, ...
        tensor_parallel_size: ranks.
        replicas: engines.
        block_size: None: not fixed by the configuration.
        virtual_time: the executor moves the clock.
        built_by_executor: kinds whose components the executor builds itself.
    """

    spec: ModelSpec
    device: str
    tensor_parallel_size: int
    replicas: int
    block_size: int | None
    virtual_time: bool
    built_by_executor: tuple[str, ...]

    @property
    def device_type(self) -> str:
        return self.device.partition(":")[0]

    def value(self, key: str) -> Any:
        """What the run needs of a capability; None: nothing."""
        if key == "devices":
            return self.device_type
        if key == "dtypes":
            return self.spec.dtype
        if key == "head_dims":
            return self.spec.head_dim
        if key == "activations":  # every model has silu
            return None if self.spec.activation == "silu" else self.spec.activation
        if key == "partial_rotary":
            return True if self.spec.rotates_partly else None
        if key == "rope_types":
            return self.spec.rope.get("rope_type", "default")
        if key == "block_sizes":
            return self.block_size
        if key == "sliding_window":
            return True if any(self.spec.sliding_windows) else None
        if key == "replicas":
            return True if self.replicas > 1 else None
        return True if self.tensor_parallel_size > 1 else None


def read_needs(loaded: LoadedConfig, executor: Component) -> Needs:
    """What a configuration, its model and its executor ask for.

    Raises:
        ConfigError: the configuration names no model.
        ModelError: the checkpoint is not there or not supported.
        PluginError: the executor's probe is broken.
    """
    config, claims = loaded.config, executor.plugin.capabilities
    virtual_time = bool(claims.get("virtual_time", False))
    built = tuple(claims.get("needs", BUILT_BY_EXECUTOR))
    if config.model.path is None:
        message = "is required: a folder, a hub id, or embedded:demo"
        raise loaded.error(message, ("model", "path"))
    family = None if config.model.name is None else config.model.name.rpartition(":")[2]
    spec = read_spec(config.model.path, weights="model" in built, family=family)
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
    lacking = lacking_choices(choices, OVERLAP_KINDS, "overlap")
    if asked == AUTO:
        on_cpu = needs.device == "cpu" and not needs.virtual_time
        reason = "on CPU planning and computing share the cores" if on_cpu else ""
        return _feature("overlap", asked, not on_cpu, reason, lacking)
    return _feature("overlap", asked, bool(asked), "", lacking)


def _cuda_graphs(asked: Switch, needs: Needs, choices: Sequence[Choice]) -> Feature:
    """Whether decode steps replay captured graphs."""
    lacking = lacking_choices(choices, GRAPH_KINDS, "cuda_graph")
    if needs.device_type == "cuda" or asked is False:
        return _feature("cuda_graphs", asked, asked is not False, "", lacking)
    reason = f"device {needs.device} has none"
    return Feature(
        name="cuda_graphs", asked=asked, value=False, reason=reason, is_downgrade=asked is True
    )


def _prefill_graphs(graphs: Feature, choices: Sequence[Choice]) -> Feature:
    """Whether graphs may serve steps with prefill too. No downgrade: decode steps have them."""
    lacking = lacking_choices(choices, PREFILL_GRAPH_KINDS, "cuda_graph_prefill")
    reason = "" if graphs.value else "cuda_graphs is off"
    return _feature("prefill_graphs", AUTO, graphs.value, reason, lacking)


def lacking_choices(choices: Sequence[Choice], kinds: Collection[str], key: str) -> list[str]:
    """Labels of the components of some kinds that do not claim a capability."""
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
