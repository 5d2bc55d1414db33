"""Chosen plugins on their way to another process: by name, version and options."""

from __future__ import annotations

from nanofw.plugins import Component, Plugin, prepare
from nanofw.plugins.component import options_model
from nanofw.runtime.parallel.messages import ComponentData


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
        entry=entry,
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
        entry = data.entry
        (plugin,) = prepare([entry])
    model = options_model(plugin, entry)
    options: object = None
    if model is not None and data.options is not None:
        options = model.model_validate(data.options)
    return Component(plugin=plugin, options=options, entry=entry)
