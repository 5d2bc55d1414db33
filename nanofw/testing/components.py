"""Installed plugins as components, made the way a run makes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from nanofw.assembly.claims import probe
from nanofw.errors import NanofwError
from nanofw.plugins import Component, Registry, build_registry, load_plugin, load_target
from nanofw.plugins.capabilities import contract_of
from nanofw.plugins.discovery import Entry, normalized


def installed(
    kind: str,
    distribution: str | None = None,
    registry: Registry | None = None,
    options: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
) -> list[Component]:
    """The installed plugins of a kind, sorted by name.

    Args:
        distribution: only those of one package; None: of all.
        registry: None: everything that is installed.
        options: by name of the plugin; the others have their defaults. A plugin with an option that
            has no default is left out where nothing is given for it.
    """
    registry = registry or build_registry()
    found = [
        _with_defaults(entry)
        if entry.name not in options
        else _component(entry, options[entry.name])
        for entry in registry.entries
        if entry.kind == kind
        and (distribution is None or normalized(entry.provider) == normalized(distribution))
    ]
    made = [component for component in found if component is not None]
    return sorted(made, key=lambda component: (component.name, component.origin_text))


def load_component(kind: str, name: str, options: Mapping[str, object] | None = None) -> Component:
    """One installed plugin with the options that a configuration would give it.

    Raises what a run raises: `UnknownPlugin`, `DuplicatePlugin`, `PluginLoadError`, ..., and
    pydantic's ValidationError for wrong options.
    """
    return _component(build_registry().find(kind, name), options)


def construct(component: Component, config: object = None) -> Any:
    """The component's object, made as a run makes it, with the `*Config` of its kind.

    Raises `PluginLoadError` when it fails to import or to start, or lacks a method of its contract.
    """
    contract: type[Any] = contract_of(component.kind, component.plugin.capabilities)
    return component.make(contract, config)


def claims(component: Component, device: str) -> Mapping[str, object] | str:
    """What the component claims on this machine, or why it cannot be used here."""
    return probe(component, device)


def _with_defaults(entry: Entry) -> Component | None:
    """None: some option has no default."""
    try:
        return _component(entry)
    except ValidationError as error:
        if all(problem["type"] == "missing" for problem in error.errors()):
            return None
        raise


def _component(entry: Entry, options: Mapping[str, object] | None = None) -> Component:
    plugin = load_plugin(entry)
    model = plugin.options
    if isinstance(model, str):
        model = load_target(model)
    if model is None:
        if options:
            raise NanofwError(f"{entry.kind} {entry.name!r} of {entry.origin} takes no options")
        return Component(plugin=plugin, entry=entry)
    return Component(plugin=plugin, options=model(**(options or {})), entry=entry)
