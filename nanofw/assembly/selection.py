"""From a configuration and a registry to the components of a run: chosen and checked."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from nanofw.assembly import claims, features, lengths, reasons
from nanofw.assembly.explanation import Choice, Explanation, Feature
from nanofw.assembly.features import AUTO
from nanofw.assembly.sections import (
    NamedSection,
    check_cost_is_known,
    executor_section,
    model_section,
    named_sections,
)
from nanofw.config.layers import is_ours
from nanofw.config.load import LoadedConfig
from nanofw.config.schema import ComponentSection, Config
from nanofw.config.source import dotted
from nanofw.contracts.kinds import KINDS
from nanofw.contracts.model_spec import ModelSpec, tensor_parallel_sizes
from nanofw.errors import CapabilityError, ConfigError, NanofwError, PluginError, PluginLoadError
from nanofw.plugins import Component, Entry, PluginSettings, Registry, build_registry, load_plugin
from nanofw.plugins.capabilities import Needs
from nanofw.plugins.checks import missing_requirements
from nanofw.plugins.component import guarded, options_model

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
    max_model_len = served_len = lengths.max_model_len(loaded, needs.spec)
    num_blocks = _num_blocks(config)
    if num_blocks is not None:
        served_len = lengths.length_in_pool(loaded, max_model_len, num_blocks, block_size)
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
        model_section(config, needs.spec, chooser.registry)  # what nothing could run is refused
        check_cost_is_known(needs.spec)
    model = model_section(config, needs.spec, chooser.registry) if "model" in built else None
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


@dataclass(slots=True)
class Chooser:
    """Finds the components that sections name, and notes what speaks against them.

    Attributes:
        choices: in the order in which they were taken.
        notes: sentences about names that a default and another package share.
        reasons: why the choices cannot work together.
        option_errors: what is wrong with options, all to be reported at once.
    """

    loaded: LoadedConfig
    registry: Registry
    choices: list[Choice] = field(default_factory=list[Choice])
    notes: list[str] = field(default_factory=list[str])
    reasons: list[str] = field(default_factory=list[str])
    option_errors: list[ConfigError] = field(default_factory=list[ConfigError])

    def choose(self, named: NamedSection, needs: Needs) -> Component:
        """The named component, or the first of the `auto` list that fits."""
        candidates = self.find(named)
        if named.section.name != AUTO:
            return self.take(candidates[0], named.section.name, needs)
        passed_over: list[tuple[str, str]] = []
        if faster := claims.faster_for_few_long_rows(candidates, needs):
            before = candidates[: candidates.index(faster)]
            reason = (
                f"{faster.name} is faster where at most {needs.max_num_seqs} requests run at once "
                f"(engine.max_num_seqs), of up to {needs.max_model_len:,} tokens"
            )
            return self.take(faster, AUTO, needs, [(one.name, reason) for one in before])
        for component in candidates:
            against = claims.reasons_against(component, needs)
            if not against:
                return self.take(component, AUTO, needs, passed_over)
            passed_over.append((component.name, "; ".join(against)))
        listed = "\n    ".join(f"{name}: {reason}" for name, reason in passed_over)
        raise CapabilityError(f"no {named.kind} fits:\n    {listed or 'none is installed'}")

    def find(self, named: NamedSection) -> list[Component]:
        """The component that a section names; for `auto` all that it may take, in its order."""
        kind, section = named.kind, named.section
        if section.name != AUTO:
            return [self._load(named, self._entry(named, section.name))]
        order = KINDS[kind].auto
        if not order:
            message = f"auto does not exist for {kind}; name one"
            raise self.loaded.error(message, (*named.path, "name"))
        installed = set(self.registry.names(kind))
        names = [name for name in order if name in installed]
        if section.options:
            keys = ", ".join(section.options)
            message = f"{keys}: options need a component's name beside them"
            raise self.loaded.error(message, named.path)
        if not names:
            raise CapabilityError(f"auto finds no {kind}: tried {', '.join(order)}")
        return [self._load(named, self._entry(named, name)) for name in names]

    def take(
        self,
        component: Component,
        requested: str,
        needs: Needs,
        passed_over: Sequence[tuple[str, str]] = (),
    ) -> Component:
        """Note a choice, its claims, and whatever it lacks."""
        answer: Mapping[str, object] | str = component.plugin.capabilities
        if not self.option_errors:
            answer = claims.probe(component, needs.device)
        here: Mapping[str, object] = {} if isinstance(answer, str) else answer
        found = [answer] if isinstance(answer, str) else reasons.problems(component, here, needs)
        choice = Choice(
            kind=component.kind,
            name=component.name,
            requested=requested,
            origin=component.entry.origin if component.entry else "",
            passed_over=tuple(passed_over),
            options=_recorded(component),
            claims=dict(here),
        )
        self.choices.append(choice)
        self.reasons += [f"{choice.label}: {reason}" for reason in found]
        return component

    def _entry(self, named: NamedSection, name: str) -> Entry:
        path = (*named.path, "name")
        source = self.loaded.values.source(path)
        is_default = named.is_default or name != named.section.name or is_ours(source)
        try:
            entry = self.registry.find(named.kind, name, by_default=is_default)
        except PluginError as error:
            raise type(error)(f"{source}: {dotted(path)}: {error}") from None
        others = self.registry.providers(named.kind, entry.name)
        if is_default and entry.is_builtin and len(others) > 1 and ":" not in name:
            self._note_namesakes(named, entry, others)
        return entry

    def _note_namesakes(self, named: NamedSection, entry: Entry, found: Sequence[Entry]) -> None:
        others = [item for item in found if item != entry]
        offered = " and ".join(item.origin for item in others)
        note = (
            f"{entry.kind} {entry.name!r} is offered by {offered}, too; nanofw's own is meant, "
            f"since {dotted((*named.path, 'name'))} is a default; write "
            f"'{others[0].provider}:{entry.name}' there for the other"
        )
        if note not in self.notes:
            self.notes.append(note)

    def _load(self, named: NamedSection, entry: Entry) -> Component:
        plugin = load_plugin(entry)
        component = Component(plugin=plugin, entry=entry)
        if missing := missing_requirements(plugin):
            if named.section.name != AUTO:
                raise PluginLoadError(f"{component.label} {missing[0]}")
            return component
        model = options_model(plugin, entry)
        raw = _raw_options(named.section, model)
        try:
            options = guarded(
                lambda: self.loaded.options(named.path, raw, model),
                component.label,
                "validate its options",
                passing=(NanofwError,),
            )
        except ConfigError as error:
            self.option_errors.append(error)
            return component
        return dataclasses.replace(component, options=options)


def _recorded(component: Component) -> dict[str, Any]:
    """The options for the record; what is not a plain value is its text there."""
    options = component.options
    if options is None:
        return {}
    return guarded(
        lambda: options.model_dump(mode="json", fallback=str, warnings=False),
        component.label,
        "show its options",
    )


def _raw_options(section: ComponentSection, model: type[BaseModel] | None) -> dict[str, object]:
    """The options as written; keys of the core go along where the component declares them."""
    fields = model.model_fields if model else {}
    core = section.model_dump(mode="json", include=set(type(section).model_fields) - {"name"})
    return {**{key: core[key] for key in core if key in fields}, **section.options}


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


def _short_pool(loaded: LoadedConfig, needs: Needs, max_model_len: int) -> list[str]:
    wanted = loaded.config.engine.max_model_len or needs.spec.default_model_len
    return [reasons.shortened(wanted, max_model_len)] if max_model_len < wanted else []


def _let_idle_threads_sleep() -> None:
    """Make OpenMP threads that wait for work sleep instead of spinning.

    A thread that spins holds its core; when anything else wants that core, each of the many
    small parallel regions of a step lasts a time slice, and a run can be fifty times slower.
    The OpenMP library reads this when PyTorch loads it, so it is set before; a variable that
    the user has set stays as it is.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in SPIN_VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = "0"
