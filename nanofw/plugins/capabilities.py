"""The table of capabilities: what a manifest may claim. A new capability is one entry here.

The checks of manifests, the choice of components and the table of the docs are made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from nanofw.contracts.kinds import KINDS
from nanofw.contracts.logits_processor import HostProcessor
from nanofw.contracts.model_spec import ModelSpec
from nanofw.errors import nearest, shown
from nanofw.narrowing import Claims
from nanofw.plugins.value_types import (
    COUNT,
    FLAG,
    FLAG_OR_TARGET,
    MADE_KINDS,
    NAME,
    NAMES,
    NUMBERS,
    TARGET,
    ValueType,
    one_of,
)

FEW_LONG_ROWS = "few_long_rows"
LONG_CONTEXT = 16_384
"""Tokens of a request from which on a backend may be taken for its speed with few long rows."""
BUILT_BY_EXECUTOR = tuple(
    kind.name for kind in KINDS.values() if kind.made_by == "executor" and len(kind.section) == 1
)
"""What an executor makes unless its capability `needs` says otherwise."""

_MISSPELT = 0.85
"""How alike a key and a capability are where the key is the capability, misspelt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run asks for.

    Attributes:
        spec: the model, in the dtype of the run.
        device: `cpu`, `cuda:1`, ...
        tensor_parallel_size: ranks.
        replicas: engines.
        max_num_seqs: requests running at once.
        max_model_len: tokens of a request, as asked for or as the model can.
        block_size: None: not fixed by the configuration.
        virtual_time: the executor moves the clock.
        built_by_executor: kinds whose components the executor makes itself.
    """

    spec: ModelSpec
    device: str
    tensor_parallel_size: int
    replicas: int
    max_num_seqs: int
    max_model_len: int
    block_size: int | None
    virtual_time: bool
    built_by_executor: tuple[str, ...]

    @property
    def device_type(self) -> str:
        return self.device.partition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """A key of a manifest's `capabilities`.

    Attributes:
        kinds: whose components it is asked of; others may carry it along.
        value: what its value is.
        text: for the docs: when it is asked, or what it means.
        needed: the value that a run needs, None where it needs nothing; without a function the
            capability is never a reason against a component.
        word: one of its values in a message: `device`.
        is_required: a component that does not claim it cannot be used.
        is_shown: `nanofw explain` lists it among the claims.
        contracts: what a component with this value derives from instead of its kind's `base`.
        methods: an optional method that a component with this value writes.
        hint: for the message that it is not claimed: what to do.
    """

    key: str
    kinds: tuple[str, ...]
    value: ValueType
    text: str
    needed: Callable[[Needs], Any] | None = None
    word: str = ""
    is_required: bool = False
    is_shown: bool = True
    contracts: Mapping[object, type] = field(default_factory=dict[object, type])
    methods: Mapping[object, str] = field(default_factory=dict[object, str])
    hint: str = ""


_COMPUTING = ("executor", "model", "attention_backend", "sampler", "logits_processor")


def _by_key(*capabilities: Capability) -> Mapping[str, Capability]:
    return MappingProxyType({capability.key: capability for capability in capabilities})


CAPABILITIES: Mapping[str, Capability] = _by_key(
    Capability(
        key="devices",
        kinds=_COMPUTING,
        value=NAMES,
        text="`cpu`, `cuda`; always",
        needed=lambda needs: needs.device_type,
        word="device",
    ),
    Capability(
        key="dtypes",
        kinds=("model", "attention_backend"),
        value=NAMES,
        text="`float32`, `bfloat16`, `float16`; always",
        needed=lambda needs: needs.spec.dtype,
        word="dtype",
    ),
    Capability(
        key="activations",
        kinds=("model",),
        value=NAMES,
        text="names as in `hidden_act`; if the checkpoint's activation is not `silu`",
        needed=lambda needs: None if needs.spec.activation == "silu" else needs.spec.activation,
        word="activation",
    ),
    Capability(
        key="rope_types",
        kinds=("model",),
        value=NAMES,
        text="always, unless the model's own reader leaves `ModelSpec.rope` empty",
        needed=lambda needs: (
            needs.spec.rope.get("rope_type", "default") if needs.spec.rope else None
        ),
        word="rope type",
    ),
    Capability(
        key="layer_ropes",
        kinds=("model",),
        value=FLAG,
        text="some layers have their own ropes, or no rope (`ModelSpec.layer_ropes`)",
        needed=lambda needs: True if needs.spec.layer_ropes else None,
    ),
    Capability(
        key="partial_rotary",
        kinds=("model",),
        value=FLAG,
        text="the checkpoint rotates only a part of each head",
        needed=lambda needs: True if needs.spec.rotates_partly else None,
    ),
    Capability(
        key="head_dims",
        kinds=("attention_backend",),
        value=NUMBERS,
        text="always",
        needed=lambda needs: needs.spec.head_dim,
        word="head_dim",
    ),
    Capability(
        key="block_sizes",
        kinds=("attention_backend", "kv_allocator"),
        value=NUMBERS,
        text="the preferred one first; always: `block_size: auto` takes the first that all accept",
        needed=lambda needs: needs.block_size,
        word="block size",
        is_required=True,
    ),
    Capability(
        key="sliding_window",
        kinds=("model", "attention_backend"),
        value=FLAG,
        text="the model has windowed layers",
        needed=lambda needs: True if any(needs.spec.sliding_windows) else None,
    ),
    Capability(
        key="soft_cap",
        kinds=("model", "attention_backend"),
        value=FLAG,
        text="the model bounds the scores of its attention (`ModelSpec.soft_cap`)",
        needed=lambda needs: True if needs.spec.soft_cap is not None else None,
    ),
    Capability(
        key="tensor_parallel",
        kinds=_COMPUTING,
        value=FLAG,
        text="`engine.tensor_parallel_size > 1`",
        needed=lambda needs: True if needs.tensor_parallel_size > 1 else None,
    ),
    Capability(
        key="replicas",
        kinds=("executor",),
        value=NAME,
        text="the name of the executor that a replica with one rank uses; `engine.replicas > 1`",
        needed=lambda needs: True if needs.replicas > 1 else None,
        hint="; torch, ray and sim do",
    ),
    Capability(
        key="ray_actors",
        kinds=("executor",),
        value=FLAG,
        text="its replicas are actors that Ray places, and not processes of this host",
        is_shown=False,
    ),
    Capability(
        key="overlap",
        kinds=("executor", "scheduler", "attention_backend", "sampler", "logits_processor"),
        value=FLAG,
        text="`engine.overlap`",
    ),
    Capability(
        key="cuda_graph",
        kinds=_COMPUTING,
        value=FLAG,
        text="`engine.cuda_graphs`: decode passes can be captured",
    ),
    Capability(
        key="cuda_graph_prefill",
        kinds=("executor", "attention_backend"),
        value=FLAG,
        text="with `cuda_graph`: passes of any rows can be captured too "
        "(`ForwardBatch.max_chunks`)",
    ),
    Capability(
        key="needs_history",
        kinds=("logits_processor",),
        value=one_of("none", "device", "host"),
        text="which tokens the processor sees: docs/plugins/logits_processor.md; if absent: `none`",
        contracts={"host": HostProcessor},
        methods={"device": "sampled"},
    ),
    Capability(
        key="needs",
        kinds=("executor",),
        value=MADE_KINDS,
        text="kinds of plugins that the executor makes itself; other kinds are not loaded",
        is_shown=False,
    ),
    Capability(
        key="virtual_time",
        kinds=("executor",),
        value=FLAG,
        text="it moves the engine's clock, and no real time passes; absent: time is the machine's",
    ),
    Capability(
        key="estimate",
        kinds=("executor",),
        value=TARGET,
        text="for `nanofw explain`: how much memory a run would need",
        is_shown=False,
    ),
    Capability(
        key="graphs",
        kinds=("executor",),
        value=TARGET,
        text="for `nanofw explain`: which graphs would be captured",
        is_shown=False,
    ),
    Capability(
        key="compile_ahead",
        kinds=("model", "attention_backend", "sampler"),
        value=FLAG_OR_TARGET,
        text="on an NVIDIA GPU, nanofw may build the component (or the class that is named here) a "
        "second time, on the device `meta` and in another thread, and run it there to find out "
        "which kernels to compile; no component is refused because it lacks this",
    ),
    Capability(
        key="fused",
        kinds=("attention_backend",),
        value=FLAG,
        text="whether it has `forward_fused`; no backend is refused because it lacks this",
    ),
    Capability(
        key=FEW_LONG_ROWS,
        kinds=("attention_backend",),
        value=COUNT,
        text="`auto` prefers this backend if at most this number of requests run at once "
        f"(`engine.max_num_seqs`), and if they may have {LONG_CONTEXT:,} tokens or more "
        "(`engine.max_model_len`); no backend is refused because it lacks this",
    ),
    Capability(
        key="lookahead",
        kinds=("attention_backend",),
        value=COUNT,
        text="number of lookahead slots for speculative decoding; informative",
    ),
    Capability(
        key="batch_invariant",
        kinds=("attention_backend",),
        value=FLAG,
        text="whether results do not depend on the batch; informative",
    ),
    Capability(
        key="prefix_cache",
        kinds=("kv_allocator",),
        value=FLAG,
        text="whether it finds cached prefixes; informative",
    ),
    Capability(
        key="uses",
        kinds=("attention_backend",),
        value=NAME,
        text="the library that computes, as `probe` reports it; informative",
    ),
)
"""By key, in the order in which a run asks for them."""


def capability_problems(claims: Mapping[Any, Any]) -> list[str]:
    """What is wrong with claims: a value of another type, a key that is misspelt."""
    problems: list[str] = []
    for key, value in claims.items():
        if not isinstance(key, str) or not key:
            problems.append(f"capability {shown(key)} should be named by a string")
        elif key in CAPABILITIES:
            wanted = CAPABILITIES[key].value
            if not wanted.accepts(value):
                problems.append(f"capability {key!r} should be {wanted.text}, not {shown(value)}")
        elif near := nearest(key, CAPABILITIES, count=1, cutoff=_MISSPELT):
            problems.append(f"no capability {shown(key)}; did you mean {near[0]!r}")
    return problems


def unknown_capabilities(claims: Claims) -> list[str]:
    """The keys that no run asks for: they are carried along, and mean nothing here."""
    return [key for key in claims if key not in CAPABILITIES]


def asked_of(kind: str) -> list[Capability]:
    """The capabilities that a run may need of a component."""
    asked = (one for one in CAPABILITIES.values() if one.needed is not None)
    return [one for one in asked if kind in one.kinds]


def contract_of(kind: str, claims: Claims) -> type:
    """What a component with these claims derives from."""
    for key, capability in CAPABILITIES.items():
        if kind in capability.kinds and key in claims and claims[key] in capability.contracts:
            return capability.contracts[claims[key]]
    return KINDS[kind].base


def promise_of(kind: str, claims: Claims) -> tuple[str, str] | None:
    """A claim and the optional method that a component with it writes, or None."""
    for key, capability in CAPABILITIES.items():
        if kind in capability.kinds and key in claims and claims[key] in capability.methods:
            return f"{key}: {claims[key]}", capability.methods[claims[key]]
    return None
