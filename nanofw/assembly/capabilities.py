"""What a run needs of each component, held against what the component claims.

Claims are data: a manifest's upper bound, narrowed by `probe(device, options)` where the target's
module has one. Absent means not claimed. See docs/plugins/capabilities.md.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from nanofw.contracts.model_spec import ModelSpec
from nanofw.plugins import Component
from nanofw.plugins.manager import guarded

ANY = "*"
PREFERRED_BLOCK_SIZE = 16
"""When every component takes any block size."""

OVERLAP_KINDS = ("executor", "scheduler", "attention_backend", "sampler", "logits_processor")
GRAPH_KINDS = ("executor", "model", "attention_backend", "sampler", "logits_processor")
PREFILL_GRAPH_KINDS = ("executor", "attention_backend")
BLOCK_KINDS = ("attention_backend", "kv_allocator")

_KEYS: Mapping[str, tuple[str, ...]] = {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What this run asks for.

    Attributes:
        device: `cpu`, `cuda:1`, ...
        dtype: of weights and KV.
        spec: the model.
        tensor_parallel_size: ranks.
        replicas: engines.
        block_size: None: not fixed by the configuration.
    """

    device: str
    dtype: str
    spec: ModelSpec
    tensor_parallel_size: int
    block_size: int | None
    replicas: int = 1

    @property
    def device_type(self) -> str:
        return self.device.partition(":")[0]

    def of(self, key: str) -> Any:
        """The value asked of a key; None: not asked."""
        if key == "devices":
            return self.device_type
        if key == "dtypes":
            return self.dtype
        if key == "head_dims":
            return self.spec.head_dim
        if key == "activations":  # silu goes without saying
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


_WORDS = {
    "devices": "device",
    "dtypes": "dtype",
    "head_dims": "head_dim",
    "activations": "activation",
    "rope_types": "rope type",
    "block_sizes": "block size",
}

_HINTS = {"replicas": "; replicas are placed by Ray: executor.name=ray"}


def problems(component: Component, claims: Mapping[str, Any], needs: Needs) -> list[str]:
    """Every reason why a component cannot do what the run needs."""
    found: list[str] = []
    for key in _KEYS.get(component.kind, ()):
        wanted = needs.of(key)
        if key == "block_sizes" and wanted is None:
            if not claims.get(key):
                found.append("it claims no block size")
        elif wanted is not None and (problem := _problem(key, claims.get(key), wanted)):
            found.append(problem)
    return found


def _problem(key: str, claimed: Any, wanted: Any) -> str | None:
    if key not in _WORDS:
        return None if claimed else f"it does not claim {key}{_HINTS.get(key, '')}"
    word = _WORDS[key]
    if not isinstance(claimed, Collection) or isinstance(claimed, str) or not claimed:
        return f"it claims no {word}, {wanted} is needed"
    items: list[Any] = list(claimed)  # pyright: ignore[reportUnknownArgumentType]
    if ANY in items or wanted in items:
        return None
    return f"{word} {wanted} is needed, it claims {', '.join(map(str, items))}"


def probe(component: Component, device: str) -> Mapping[str, Any] | str:
    """The claims, narrowed to this machine; or why it cannot be used here.

    Imports the component's module. Raises `PluginLoadError` with its traceback when that fails.
    """
    claims = component.plugin.capabilities
    what = f"{component.kind} {component.name!r}{component.origin_text}"
    target = guarded(component.load, what, "import")
    function = getattr(sys.modules.get(getattr(target, "__module__", "")), "probe", None)
    if function is None:
        return claims
    answer = guarded(lambda: function(device, component.options), what, "probe this machine")
    if isinstance(answer, str):
        return answer
    return {**claims, **narrowed(claims, answer)}


def narrowed(claims: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a probe, never more than the manifest claims."""
    result: dict[str, Any] = {}
    for key, value in answer.items():
        bound = claims.get(key)
        if isinstance(value, bool) or not isinstance(value, Collection) or isinstance(value, str):
            result[key] = value and bound if isinstance(value, bool) else value
        elif isinstance(bound, Collection):
            items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
            result[key] = tuple(item for item in items if ANY in bound or item in bound)
    return result


def lacking(claims: Mapping[str, Mapping[str, Any]], kinds: Collection[str], key: str) -> list[str]:
    """Names (as `kind 'name'`) of the components of some kinds that do not claim a feature."""
    return [
        name for name, claim in claims.items() if name.split(" ")[0] in kinds and not claim.get(key)
    ]


def block_size(claims: Mapping[str, Mapping[str, Any]]) -> int | str:
    """The first block size that all accept, in the backend's order; or why there is none."""
    lists = {
        name: tuple(claim["block_sizes"])
        for name, claim in claims.items()
        if name.split(" ")[0] in BLOCK_KINDS and claim.get("block_sizes")
    }
    bound = {name: sizes for name, sizes in lists.items() if ANY not in sizes}
    if not bound:
        preferred = [size for sizes in lists.values() for size in sizes if size != ANY]
        return int(preferred[0]) if preferred else PREFERRED_BLOCK_SIZE
    backends_first = sorted(bound, key=lambda name: not name.startswith("attention_backend"))
    for size in bound[backends_first[0]]:
        if all(size in sizes for sizes in bound.values()):
            return int(size)
    claimed = "; ".join(f"{name}: {', '.join(map(str, sizes))}" for name, sizes in bound.items())
    return f"no block size suits all: {claimed}"
