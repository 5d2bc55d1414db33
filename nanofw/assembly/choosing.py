"""From the names in a configuration to components: found, loaded, held against what is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from nanofw.assembly.claims import probe
from nanofw.assembly.explanation import Choice
from nanofw.assembly.features import AUTO
from nanofw.assembly.reasons import problems
from nanofw.config.layers import is_ours
from nanofw.config.load import LoadedConfig
from nanofw.config.schema import ComponentSection, Config
from nanofw.config.source import KeyPath, dotted
from nanofw.contracts.kinds import KINDS, Kind
from nanofw.errors import CapabilityError, ConfigError, NanofwError, PluginError, PluginLoadError
from nanofw.plugins import Component, Entry, Registry, load_plugin
from nanofw.plugins.capabilities import FEW_LONG_ROWS, LONG_CONTEXT, Needs
from nanofw.plugins.checks import missing_requirements
from nanofw.plugins.component import guarded, options_model


@dataclass(frozen=True, slots=True)
class NamedSection:
    """A section of the configuration that names a component of a kind.

    Attributes:
        is_default: the name comes from the defaults.
    """

    path: KeyPath
    kind: str
    section: ComponentSection
    is_default: bool = False


def executor_section(config: Config) -> NamedSection:
    """The section that is looked at first: the executor says which others count."""
    return NamedSection(("executor",), "executor", config.executor)


def named_sections(
    config: Config, built: Sequence[str], model: NamedSection | None = None
) -> Iterator[NamedSection]:
    """The sections of a run beside the executor's, in the order of the table of kinds.

    Args:
        built: kinds that the executor makes; of others that it could, only those that somebody
            named are there.
        model: the implementation of the model; None leaves it out.
    """
    for kind in KINDS.values():
        is_skipped = kind.made_by == "executor" and kind.name not in built
        if kind.name == "executor" or (is_skipped and kind.default is not None):
            continue
        if kind.name == "model":
            yield from [] if model is None else [model]
        else:
            yield from _sections_of(kind, _at(config, kind.section))


def _sections_of(kind: Kind, value: Any) -> list[NamedSection]:
    if value is None:
        return []
    if not kind.is_list:
        return [NamedSection(kind.section, kind.name, value)]
    return [
        NamedSection((*kind.section, index), kind.name, item) for index, item in enumerate(value)
    ]


def _at(config: Config, path: Sequence[str]) -> object:
    value: object = config
    for key in path:
        value = getattr(value, key)
    return value


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
        if faster := _faster_for_few_long_rows(candidates, needs):
            before = candidates[: candidates.index(faster)]
            reason = (
                f"{faster.name} is faster where at most {needs.max_num_seqs} requests run at once "
                f"(engine.max_num_seqs), of up to {needs.max_model_len:,} tokens"
            )
            return self.take(faster, AUTO, needs, [(one.name, reason) for one in before])
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
            answer = probe(component, needs.device)
        claims: Mapping[str, object] = {} if isinstance(answer, str) else answer
        found = [answer] if isinstance(answer, str) else problems(component, answer, needs)
        choice = Choice(
            kind=component.kind,
            name=component.name,
            requested=requested,
            origin=component.entry.origin if component.entry else "",
            passed_over=tuple(passed_over),
            options=_recorded(component),
            claims=dict(claims),
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


def _faster_for_few_long_rows(candidates: Sequence[Component], needs: Needs) -> Component | None:
    """The first that fits and claims that few rows of long contexts are its strength."""
    if needs.max_model_len < LONG_CONTEXT:
        return None
    for component in candidates:
        at_most = component.plugin.capabilities.get(FEW_LONG_ROWS, 0)
        if needs.max_num_seqs > at_most or _reasons_against(component, needs):
            continue
        claims = probe(component, needs.device)
        if not isinstance(claims, str) and needs.max_num_seqs <= claims.get(FEW_LONG_ROWS, 0):
            return component
    return None


def _reasons_against(component: Component, needs: Needs) -> list[str]:
    """Every reason why `auto` passes a candidate over."""
    if missing := missing_requirements(component.plugin):
        return missing
    try:
        claims = probe(component, needs.device)
    except PluginLoadError as error:
        return [str(error).splitlines()[0]]
    return [claims] if isinstance(claims, str) else problems(component, claims, needs)


def _raw_options(section: ComponentSection, model: type[BaseModel] | None) -> dict[str, object]:
    """The options as written; keys of the core go along where the component declares them."""
    fields = model.model_fields if model else {}
    core = section.model_dump(mode="json", include=set(type(section).model_fields) - {"name"})
    return {**{key: core[key] for key in core if key in fields}, **section.options}
