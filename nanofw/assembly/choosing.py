"""From the names in a configuration to components: found, loaded, held against what is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from nanofw.assembly.capabilities import probe
from nanofw.assembly.explanation import Choice
from nanofw.assembly.features import AUTO, Needs
from nanofw.assembly.reasons import problems
from nanofw.config.load import LoadedConfig
from nanofw.config.schema import ComponentSection, Config
from nanofw.config.source import KeyPath, dotted
from nanofw.errors import CapabilityError, ConfigError, NanofwError, PluginError, PluginLoadError
from nanofw.plugins import Component, Entry, Registry, load_plugin
from nanofw.plugins.checks import missing_requirements
from nanofw.plugins.component import guarded, options_model

AUTO_ORDER: Mapping[str, tuple[str, ...]] = {
    "executor": ("torch",),
    "attention_backend": ("triton", "flash_attn", "sdpa"),
}
"""What `auto` tries, in this order. Only these: no installation changes what `auto` takes."""


@dataclass(frozen=True, slots=True)
class NamedSection:
    """A section of the configuration that names a component of a kind."""

    path: KeyPath
    kind: str
    section: ComponentSection


def executor_section(config: Config) -> NamedSection:
    """The section that is looked at first: the executor says which others count."""
    return NamedSection(("executor",), "executor", config.executor)


def named_sections(
    config: Config, built: Sequence[str], model: ComponentSection | None = None
) -> Iterator[NamedSection]:
    """The sections of a run beside the executor's, in the order of the flow.

    Args:
        built: kinds that the executor builds; sections of others that it could are left out.
        model: the implementation of the model; None leaves it out.
    """
    yield NamedSection(("scheduler",), "scheduler", config.scheduler)
    yield NamedSection(("kv_allocator",), "kv_allocator", config.kv_allocator)
    if model is not None:
        yield NamedSection(("model",), "model", model)
    if "attention_backend" in built:
        yield NamedSection(("attention_backend",), "attention_backend", config.attention_backend)
    if "sampler" in built:
        yield NamedSection(("sampler",), "sampler", config.sampler)
    for index, section in enumerate(config.logits_processors):
        yield NamedSection(("logits_processors", index), "logits_processor", section)
    if config.executor.cost_model is not None:
        yield NamedSection(("executor", "cost_model"), "cost_model", config.executor.cost_model)


@dataclass(slots=True)
class Chooser:
    """Finds the components that sections name, and notes what speaks against them.

    Attributes:
        choices: in the order in which they were taken.
        reasons: why the choices cannot work together.
        option_errors: what is wrong with options, all to be reported at once.
    """

    loaded: LoadedConfig
    registry: Registry
    choices: list[Choice] = field(default_factory=list[Choice])
    reasons: list[str] = field(default_factory=list[str])
    option_errors: list[ConfigError] = field(default_factory=list[ConfigError])

    def choose(self, named: NamedSection, needs: Needs) -> Component:
        """The named component, or the first of the `auto` list that fits."""
        candidates = self.find(named)
        if named.section.name != AUTO:
            return self.take(candidates[0], named.section.name, needs)
        passed_over: list[tuple[str, str]] = []
        for component in candidates:
            reasons = _reasons_against(component, needs)
            if not reasons:
                return self.take(component, AUTO, needs, passed_over)
            passed_over.append((component.name, "; ".join(reasons)))
        listed = "\n    ".join(f"{name}: {reason}" for name, reason in passed_over)
        raise CapabilityError(f"no {named.kind} fits:\n    {listed or 'none is installed'}")

    def find(self, named: NamedSection) -> list[Component]:
        """The component that a section names; for `auto` all that it may take, in its order."""
        kind, section = named.kind, named.section
        if section.name != AUTO:
            return [self._load(named, self._entry(named, section.name))]
        if kind not in AUTO_ORDER:
            message = f"auto does not exist for {kind}; name one"
            raise self.loaded.error(message, (*named.path, "name"))
        installed = set(self.registry.names(kind))
        names = [name for name in AUTO_ORDER[kind] if name in installed]
        if section.options:
            keys = ", ".join(section.options)
            message = f"{keys}: options need a component's name beside them"
            raise self.loaded.error(message, named.path)
        if not names:
            raise CapabilityError(f"auto finds no {kind}: tried {', '.join(AUTO_ORDER[kind])}")
        return [self._load(named, self._entry(named, name)) for name in names]

    def take(
        self,
        component: Component,
        requested: str,
        needs: Needs,
        passed_over: Sequence[tuple[str, str]] = (),
    ) -> Component:
        """Note a choice, its claims, and whatever it lacks."""
        answer: Mapping[str, Any] | str = component.plugin.capabilities
        if not self.option_errors:
            answer = probe(component, needs.device)
        claims: Mapping[str, Any] = {} if isinstance(answer, str) else answer
        found = [answer] if isinstance(answer, str) else problems(component, answer, needs)
        options = component.options
        choice = Choice(
            kind=component.kind,
            name=component.name,
            requested=requested,
            origin=component.entry.origin if component.entry else "",
            passed_over=tuple(passed_over),
            # for the record: what is not a plain value is its text there
            options=options.model_dump(mode="json", fallback=str) if options else {},
            claims=dict(claims),
        )
        self.choices.append(choice)
        self.reasons += [f"{choice.label}: {reason}" for reason in found]
        return component

    def _entry(self, named: NamedSection, name: str) -> Entry:
        try:
            return self.registry.find(named.kind, name)
        except PluginError as error:
            path = (*named.path, "name")
            source = self.loaded.values.source(path)
            raise type(error)(f"{source}: {dotted(path)}: {error}") from None

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


def _reasons_against(component: Component, needs: Needs) -> list[str]:
    """Every reason why `auto` passes a candidate over."""
    if missing := missing_requirements(component.plugin):
        return missing
    try:
        claims = probe(component, needs.device)
    except PluginLoadError as error:
        return [str(error).splitlines()[0]]
    return [claims] if isinstance(claims, str) else problems(component, claims, needs)


def _raw_options(section: ComponentSection, model: type[BaseModel] | None) -> dict[str, Any]:
    """The options as written; keys of the core go along where the component declares them."""
    fields = model.model_fields if model else {}
    core = section.model_dump(mode="json", include=set(type(section).model_fields) - {"name"})
    return {**{key: core[key] for key in core if key in fields}, **section.options}
