"""Chosen plugins on their way to another process: by name, version and options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nanofw.plugins import Component, Entry, Plugin, prepare
from nanofw.plugins.component import options_model
from nanofw.runtime.parallel.messages import ComponentData, EntryData


def component_data(component: Component) -> ComponentData:
    """The message of a component."""
    plugin, options, entry = component.plugin, component.options, component.entry
    model = plugin.options
    return ComponentData(
        name=plugin.name,
        target=plugin.target,
        api=plugin.api,
        options_model=f"{model.__module__}:{model.__qualname__}"
        if isinstance(model, type)
        else model,
        options=None if options is None else options.model_dump(mode="json"),
        entry=None if entry is None else _entry_data(entry),
    )


def load_component(data: ComponentData) -> Component:
    """The same component in this process.

    Raises:
        PluginError: this process finds another version, or other content in a local file.
    """
    if data.entry is None:
        entry, plugin = None, Plugin(
            data.name, data.target, api=data.api, options=data.options_model
        )  # fmt: skip
    else:
        entry = _entry(data.entry)
        (plugin,) = prepare([entry])
    model = options_model(plugin, entry)
    options: Any = None
    if model is not None and data.options is not None:
        options = model.model_validate(data.options)
    return Component(plugin=plugin, options=options, entry=entry)


def _entry_data(entry: Entry) -> EntryData:
    path = None if entry.path is None else str(entry.path)
    return EntryData(entry.kind, entry.name, entry.module, entry.provider, entry.version, path)


def _entry(data: EntryData) -> Entry:
    return Entry(
        kind=data.kind,
        name=data.name,
        module=data.module,
        provider=data.provider,
        version=data.version,
        path=None if data.path is None else Path(data.path),
    )
