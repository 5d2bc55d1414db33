"""Checks the components that a configuration names, without a model."""

from __future__ import annotations

from nanofw.assembly import reasons
from nanofw.assembly.features import AUTO
from nanofw.assembly.sections import executor_section, named_model, named_sections
from nanofw.assembly.selection import Chooser, registry_for
from nanofw.config.load import LoadedConfig
from nanofw.errors import PluginLoadError
from nanofw.plugins import Component, Registry
from nanofw.plugins.capabilities import BUILT_BY_EXECUTOR
from nanofw.plugins.status import needs_torch


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
    sections += named_sections(config, built, named_model(config) if "model" in built else None)
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
