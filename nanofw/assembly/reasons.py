"""Words of a selection: why components do not fit, what was resolved, what was passed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nanofw.assembly.explanation import Choice, Feature
from nanofw.config.load import LoadedConfig
from nanofw.config.source import DEFAULT, dotted
from nanofw.contracts.kinds import KINDS
from nanofw.errors import CapabilityError, ConfigError
from nanofw.narrowing import Claims, JsonObject
from nanofw.plugins import Component, Registry
from nanofw.plugins.capabilities import Capability, Needs, asked_of, unknown_capabilities
from nanofw.plugins.value_types import ANY


def problems(component: Component, claims: Claims, needs: Needs) -> list[str]:
    """Every reason why a component cannot do what the run needs."""
    found: list[str] = []
    for capability in asked_of(component.kind):
        needed = capability.needed(needs) if capability.needed else None
        if problem := _problem(capability, claims.get(capability.key), needed):
            found.append(problem)
    return found


def _problem(capability: Capability, claimed: Any, needed: Any) -> str | None:
    word = capability.word
    if needed is None:
        lacks = capability.is_required and not claimed
        return f"it claims no {word or capability.key}" if lacks else None
    if not capability.value.is_list:
        return None if claimed else f"it does not claim {capability.key}{capability.hint}"
    if not claimed:
        return f"it claims no {word}, {needed} is needed"
    items: list[Any] = list(claimed)
    if ANY in items or needed in items:
        return None
    return f"{word} {needed} is needed, it claims {', '.join(map(str, items))}"


def raise_option_errors(errors: Sequence[ConfigError]) -> None:
    """Raise what is wrong with the options of components, as one error."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = [str(error) for error in errors]
        raise ConfigError("\n  ".join(["the options of several components are wrong", *lines]))


def raise_reasons(reasons: Sequence[str], features: Sequence[Feature], *, strict: bool) -> None:
    """Raise every reason why the components cannot work together, as one error.

    Args:
        strict: a feature that was asked for and is off is such a reason.
    """
    downgrades = [
        f"engine.{feature.name}: {feature.reason} (plugins.strict)"
        for feature in features
        if strict and feature.is_downgrade
    ]
    if reasons or downgrades:
        listed = "\n    ".join([*reasons, *downgrades])
        raise CapabilityError(f"the chosen components cannot work together:\n    {listed}")


def facts(needs: Needs, max_model_len: int, block_size: int) -> JsonObject:
    """Resolved numbers and names, for `explain` and for records."""
    spec = needs.spec
    active = spec.num_parameters - spec.num_layer_parameters + spec.num_active_parameters
    counts = {"tensor_parallel_size": needs.tensor_parallel_size, "replicas": needs.replicas}
    return {
        "model": f"{spec.path} (random weights)" if spec.random_weights else spec.path,
        "architecture": spec.architecture,
        "device": needs.device,
        **{name: count for name, count in counts.items() if count > 1},
        "dtype": spec.dtype,
        "rope_type": spec.rope.get("rope_type", "the model's own"),
        "num_windowed_layers": sum(window is not None for window in spec.sliding_windows),
        "max_model_len": max_model_len,
        "block_size": block_size,
        "num_matrix_parameters": spec.num_parameters,
        **({"num_active_parameters": active} if active < spec.num_parameters else {}),
        "matrix_bytes": spec.weight_bytes,
        "kv_bytes_per_token": spec.kv_bytes_per_token,
        "kv_bytes_per_block": spec.kv_bytes_per_token * block_size,
        "eos_token_ids": list(spec.eos_token_ids),
    }


def shortened(wanted: int, max_model_len: int) -> str:
    """The sentence about a length that the pool of KV blocks has no room for."""
    return (
        f"max_model_len is {max_model_len} and not the model's {wanted}: the pool has room for "
        "no more tokens; longer answers end there with reason length. Raise "
        "kv_allocator.num_blocks, or set engine.max_model_len"
    )


def notes(
    loaded: LoadedConfig, registry: Registry, needs: Needs, choices: Sequence[Choice]
) -> tuple[str, ...]:
    """Sentences about what was passed over, dropped or is not used."""
    unasked = [
        f"{choice.label} claims {key!r}, which nothing asks for"
        for choice in choices
        for key in unknown_capabilities(choice.claims)
    ]
    dropped = [
        f"{dotted(item.path)} = {item.value!r} ({item.source}) was dropped: {item.reason}"
        for item in loaded.dropped
    ]
    unused = [
        f"{kind.name} ({source}) is not used: the executor builds none"
        for kind in KINDS.values()
        if kind.made_by == "executor"
        and kind.default is not None
        and kind.name not in needs.built_by_executor
        and (source := loaded.values.source(kind.section)) != DEFAULT
    ]
    unused += [
        f"{kind.name} ({source}) is not used: engine.replicas is 1"
        for kind in KINDS.values()
        if kind.made_by == "replicas"
        and needs.replicas == 1
        and (source := loaded.values.source(kind.section)) != DEFAULT
    ]
    return (*needs.spec.notes, *registry.notes, *dropped, *unused, *unasked)
