"""From a configuration and a registry to the components of a run: chosen and checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanofw.assembly import claims, features, reasons
from nanofw.assembly.choosing import (
    Chooser,
    NamedSection,
    executor_section,
    named_sections,
)
from nanofw.assembly.explanation import Explanation, Feature
from nanofw.assembly.features import AUTO
from nanofw.assembly.model_reading import OFFER
from nanofw.checkpoints.families import FAMILIES
from nanofw.checkpoints.families.other import NOT_DENSE
from nanofw.config.load import LoadedConfig
from nanofw.config.schema import ComponentSection, Config
from nanofw.contracts.kinds import KINDS
from nanofw.contracts.model_spec import ModelSpec, tensor_parallel_sizes
from nanofw.errors import ConfigError, ModelError, PluginLoadError, misspelt
from nanofw.plugins import Component, PluginSettings, Registry
from nanofw.plugins.capabilities import BUILT_BY_EXECUTOR, Needs
from nanofw.plugins.manager import build_registry
from nanofw.plugins.status import needs_torch

SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
"""What tells OpenMP how threads wait for work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The components of a run and every resolved fact.

    Attributes:
        components: by kind; `logits_processor` is a list in YAML order.
        spec: the model, in the dtype of the run.
        device: `cpu`, `cuda:1`, ...
        max_model_len: what was asked for; the engine's is shorter where the pool has less room.
        num_blocks: None: as many as fit.
        virtual_time: the executor moves the clock.
    """

    loaded: LoadedConfig
    registry: Registry
    components: Mapping[str, Any]
    spec: ModelSpec
    device: str
    max_model_len: int
    block_size: int
    num_blocks: int | None
    overlap: bool
    cuda_graphs: bool
    prefill_graphs: bool
    virtual_time: bool
    explanation: Explanation


def registry_for(loaded: LoadedConfig) -> Registry:
    """The registry that a configuration's `plugins` section asks for."""
    section = loaded.config.plugins
    settings = PluginSettings(
        only=section.only,
        disable=section.disable,
        load=section.load,
        require=section.require,
        override=section.override,
    )
    try:
        return build_registry(settings)
    except ConfigError as error:
        raise loaded.placed(error) from None


def select(loaded: LoadedConfig, registry: Registry | None = None) -> Selection:
    """Choose, validate options, match capabilities. Builds nothing.

    Raises:
        ConfigError: a value or an option, with key, file and line.
        PluginError: a component that is not there, not unique, or broken.
        CapabilityError: with every reason at once.
        ModelError: the checkpoint is not there or not supported.
    """
    _let_idle_threads_sleep()  # before anything imports torch
    config = loaded.config
    chooser = Chooser(loaded, registry or registry_for(loaded))
    executor = chooser.find(executor_section(config))[0]
    needs = features.read_needs(loaded, executor, chooser.registry)
    components = _choose_components(chooser, executor, needs)
    block_size = needs.block_size or _common_block_size(chooser)
    overlap, graphs, prefill_graphs = switches = features.switches(
        config.engine, needs, chooser.choices
    )
    reasons.raise_option_errors(chooser.option_errors)
    reasons.raise_reasons(chooser.reasons, switches, strict=config.plugins.strict)
    _check_ranks(loaded, needs)
    max_model_len = served_len = _max_model_len(loaded, needs.spec)
    num_blocks = _num_blocks(config)
    if num_blocks is not None:
        served_len = length_in_pool(loaded, max_model_len, num_blocks, block_size)
    return Selection(
        loaded=loaded,
        registry=chooser.registry,
        components=components,
        spec=needs.spec,
        device=needs.device,
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=num_blocks,
        overlap=overlap.value,
        cuda_graphs=graphs.value,
        prefill_graphs=prefill_graphs.value,
        virtual_time=needs.virtual_time,
        explanation=_explanation(chooser, needs, switches, served_len, block_size),
    )


def check(loaded: LoadedConfig, registry: Registry | None = None) -> list[str]:
    """Find and import every named component and validate its options; reads no model.

    Returns `kind name (origin)` of each. Raises as `select` does.
    """
    found = settle_options(loaded, registry)
    for component in found:
        _check_target(component)
    return [f"{item.kind} {item.name}{item.origin_text}" for item in found]


def settle_options(loaded: LoadedConfig, registry: Registry | None = None) -> list[Component]:
    """Find every named component and validate its options: values get the types of their fields.

    Raises as `select` does.
    """
    config = loaded.config
    chooser = Chooser(loaded, registry or registry_for(loaded))
    sections = [executor_section(config)]
    executor = chooser.find(sections[0])[0]
    built = executor.plugin.capabilities.get("needs", BUILT_BY_EXECUTOR)
    sections += named_sections(config, built, _named_model(config) if "model" in built else None)
    chooser.option_errors.clear()
    named = [item for item in sections if item.section.name != AUTO]
    found = [chooser.find(item)[0] for item in named]
    reasons.raise_option_errors(chooser.option_errors)
    return found


def _check_target(component: Component) -> None:
    """Raise what is wrong with a component's code; without torch, what computes is not checked."""
    try:
        component.check_target()
    except PluginLoadError as error:
        if not needs_torch(error):
            raise


def is_host(component: Component) -> bool:
    """Whether a logits processor works on token ids on the host."""
    return component.plugin.capabilities.get("needs_history") == "host"


def _choose_components(chooser: Chooser, executor: Component, needs: Needs) -> dict[str, Any]:
    """The components by kind; logits processors as a list."""
    config, built = chooser.loaded.config, needs.built_by_executor
    processors: list[Component] = []
    components: dict[str, Any] = {
        "executor": chooser.take(executor, config.executor.name, needs),
        "logits_processor": processors,
    }
    if needs.virtual_time:
        _check_cost_is_known(chooser, needs)
    model = _model_section(chooser, needs) if "model" in built else None
    for named in named_sections(config, built, model):
        kind = KINDS[named.kind]
        if not kind.is_list and kind.made_by == "executor" and kind.name not in built:
            message = f"the executor {executor.name!r} takes none; a simulated one does"
            raise chooser.loaded.error(message, named.path)
        if kind.made_by == "replicas" and needs.replicas == 1:
            chooser.find(named)  # its options are wrong or right, whether it is used or not
            continue
        component = chooser.choose(named, needs)
        if kind.is_list:
            _check_listed(component, named, components.setdefault(kind.name, []), chooser)
            components[kind.name].append(component)
        else:
            components[kind.name] = component
    for component in processors:
        _check_processor(component, chooser, needs)
    return components


def _check_listed(
    component: Component, named: NamedSection, earlier: Sequence[Component], chooser: Chooser
) -> None:
    if any(component.name == other.name for other in earlier):
        raise chooser.loaded.error(f"{component.name} is listed twice", (*named.path, "name"))


def _check_processor(component: Component, chooser: Chooser, needs: Needs) -> None:
    """An executor that makes no logits processors still runs with those on the host."""
    if "logits_processor" not in needs.built_by_executor and not is_host(component):
        chooser.reasons.append(
            f"logits_processor {component.name!r}: the executor "
            f"{chooser.loaded.config.executor.name!r} runs no processor on its device"
        )


def _named_model(config: Config) -> NamedSection | None:
    """The implementation that the configuration names; None: the checkpoint decides."""
    asked = config.model
    if asked.name is None:
        return None
    section = ComponentSection(name=asked.name, **asked.options)
    return NamedSection(("model",), "model", section)


def _model_section(chooser: Chooser, needs: Needs) -> NamedSection:
    """The implementation that is asked for, or the one of the checkpoint's architecture."""
    if (named := _named_model(chooser.loaded.config)) is not None:
        return named
    spec, registry = needs.spec, chooser.registry
    known = [name for name in registry.names("model") if name != "transformers"]
    left_out = [entry.name for entry, _ in registry.left_out]
    if spec.architecture in (*known, *left_out):
        section = ComponentSection(name=spec.architecture)
        return NamedSection(("model",), "model", section, is_default=True)
    raise ModelError(
        f"{spec.path}: architecture {spec.architecture!r} is not supported"
        f"{misspelt(spec.architecture, known)}; supported: {', '.join(known)}. {OFFER}. "
        "Others can be added as plugins of kind model, see docs/models.md"
    )


def _check_cost_is_known(chooser: Chooser, needs: Needs) -> None:
    """A simulated run costs what a dense decoder costs: refuse to pass another model for one."""
    _model_section(chooser, needs)  # refuses an architecture that nothing could run
    spec = needs.spec
    telling = [key for key in NOT_DENSE if spec.raw.get(key) not in (None, 0, 1, [], {})]
    if spec.architecture not in FAMILIES and telling and not spec.states_its_size:
        raise ModelError(
            f"{spec.path}: architecture {spec.architecture!r} is not dense (config.json has "
            f"{', '.join(telling)}), and the time of its steps is not known: it cannot be "
            "simulated unless its plugin's reader states layer_parameters and active_parameters"
        )


def _common_block_size(chooser: Chooser) -> int:
    """The block size that suits all; its absence is a reason against the run."""
    size = claims.common_block_size(chooser.choices)
    if isinstance(size, str):
        chooser.reasons.append(size)
        return claims.PREFERRED_BLOCK_SIZE
    return size


def _explanation(
    chooser: Chooser,
    needs: Needs,
    switches: tuple[Feature, ...],
    max_model_len: int,
    block_size: int,
) -> Explanation:
    return Explanation(
        choices=tuple(chooser.choices),
        features=switches,
        facts=reasons.facts(needs, max_model_len, block_size),
        notes=(
            *reasons.notes(chooser.loaded, chooser.registry, needs, chooser.choices),
            *chooser.notes,
            *_short_pool(chooser.loaded, needs, max_model_len),
        ),
        warnings=(*chooser.registry.warnings, *chooser.notes),
    )


def _num_blocks(config: Config) -> int | None:
    asked = config.kv_allocator.num_blocks
    return None if asked == AUTO else asked


def _check_ranks(loaded: LoadedConfig, needs: Needs) -> None:
    spec, asked = needs.spec, needs.tensor_parallel_size
    possible = tensor_parallel_sizes(spec)
    if "model" in needs.built_by_executor and asked not in possible:
        raise loaded.error(
            f"{asked} ranks cannot share {spec.num_heads} query heads, {spec.num_kv_heads} KV "
            f"heads and {spec.intermediate_size} intermediate features evenly; this model "
            f"takes {', '.join(map(str, possible))}",
            ("engine", "tensor_parallel_size"),
        )


def _max_model_len(loaded: LoadedConfig, spec: ModelSpec) -> int:
    asked = loaded.config.engine.max_model_len
    if asked is not None and asked > spec.max_model_len:
        raise loaded.error(
            f"{asked} is longer than the model, which supports {spec.max_model_len}",
            ("engine", "max_model_len"),
        )
    return asked or spec.default_model_len


def _short_pool(loaded: LoadedConfig, needs: Needs, max_model_len: int) -> list[str]:
    wanted = loaded.config.engine.max_model_len or needs.spec.default_model_len
    return [reasons.shortened(wanted, max_model_len)] if max_model_len < wanted else []


def length_in_pool(loaded: LoadedConfig, wanted: int, num_blocks: int, block_size: int) -> int:
    """Most tokens of a request, given the pool. The last token is never computed.

    Raises:
        ConfigError: the configuration asks for more.
    """
    most = num_blocks * block_size + 1
    if loaded.config.engine.max_model_len is not None and wanted > most:
        raise loaded.error(
            f"{wanted} tokens do not fit in the pool of {num_blocks} blocks of {block_size} "
            f"tokens; set it to {most} or less, or raise kv_allocator.num_blocks or "
            "engine.memory_utilization",
            ("engine", "max_model_len"),
        )
    return min(wanted, most)


def _let_idle_threads_sleep() -> None:
    """Make OpenMP threads that wait for work sleep instead of spinning.

    A thread that spins holds its core; when anything else wants that core, each of the many
    small parallel regions of a step lasts a time slice, and a run can be fifty times slower.
    The OpenMP library reads this when PyTorch loads it, so it is set before; a variable that
    the user has set stays as it is.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in SPIN_VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = "0"
