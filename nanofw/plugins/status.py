"""The state of every plugin, for people who look for the reason why one is not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from nanofw.contracts.kinds import KINDS
from nanofw.errors import PluginError
from nanofw.plugins.capabilities import unknown_capabilities
from nanofw.plugins.checks import missing_requirements
from nanofw.plugins.component import Component, options_model
from nanofw.plugins.discovery import Entry
from nanofw.plugins.manager import load_plugin
from nanofw.plugins.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginStatus:
    """One entry and what is known of it.

    Attributes:
        state: `available` (by its metadata), `ok` (loaded), `failed`, `missing requirement`,
            `not imported` (it needs torch, which is not here), `duplicate` (name it as
            `distribution:name`) or `left out`.
        error: why it failed, with its own traceback; what left it out; or what nobody asks for.
        summary: the manifest's line, when it was loaded.
    """

    entry: Entry
    state: str
    error: str = ""
    summary: str = ""
    api: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        entry = self.entry
        return {
            "kind": entry.kind,
            "name": entry.name,
            "distribution": entry.provider,
            "version": entry.version,
            "module": entry.module,
            "path": str(entry.path) if entry.path else None,
            "state": self.state,
            "error": self.error or None,
            "summary": self.summary or None,
            "api": self.api or None,
        }


def statuses(registry: Registry, *, check: bool = False) -> list[PluginStatus]:
    """Every entry, by kind and name.

    Args:
        check: import all manifests and what they name, each guarded on its own.
    """
    found = [_status(registry, entry, check) for entry in registry.entries]
    found += [
        PluginStatus(entry=entry, state="left out", error=f"by {setting}")
        for entry, setting in registry.left_out
    ]
    order = list(KINDS)
    return sorted(
        found,
        key=lambda item: (order.index(item.entry.kind), item.entry.name, item.entry.origin),
    )


def _status(registry: Registry, entry: Entry, check: bool) -> PluginStatus:
    others = registry.providers(entry.kind, entry.name)
    is_duplicate = len(others) > 1 and entry.id not in (registry.overrides or {})
    state = "duplicate" if is_duplicate else "available"
    if not check:
        return PluginStatus(entry=entry, state=state)
    try:
        plugin = load_plugin(entry)
        notes = missing_requirements(plugin)
        if notes:
            state = "missing requirement"
        else:
            options_model(plugin, entry)
            Component(plugin=plugin, entry=entry).check_target()
            state = state if is_duplicate else "ok"
            notes = [
                f"nothing asks for {key!r}" for key in unknown_capabilities(plugin.capabilities)
            ]
    except PluginError as error:
        state = "not imported" if needs_torch(error) else "failed"
        return PluginStatus(entry=entry, state=state, error=str(error))
    return PluginStatus(
        entry=entry, state=state, error="; ".join(notes), summary=plugin.summary, api=plugin.api
    )


def needs_torch(error: PluginError) -> bool:
    """Whether an import failed because there is no torch: what computes is not checked then."""
    cause = error.__cause__
    return isinstance(cause, ModuleNotFoundError) and cause.name == "torch"


def description(entry: Entry) -> dict[str, Any]:
    """Everything that a manifest says, its options field by field: plain values."""
    plugin = load_plugin(entry)
    model = options_model(plugin, entry)
    return {
        "name": plugin.name,
        "kind": plugin.kind,
        "api": plugin.api,
        "summary": plugin.summary,
        "distribution": entry.provider,
        "version": entry.version,
        "manifest": entry.module,
        "target": plugin.target,
        "capabilities": dict(plugin.capabilities),
        "missing": missing_requirements(plugin),
        "options": _fields(model) if model else [],
    }


def _fields(model: type[BaseModel]) -> list[dict[str, Any]]:
    schema = model.model_json_schema()
    fields: list[dict[str, Any]] = []
    for name, field in model.model_fields.items():
        shape = schema["properties"].get(name, {})
        fields.append(
            {
                "key": name,
                "type": _type(shape),
                "default": "required" if field.is_required() else field.get_default(),
                "text": shape.get("description", ""),
            }
        )
    return fields


def _type(shape: dict[str, Any]) -> str:
    if "anyOf" in shape:
        return " | ".join(_type(item) for item in shape["anyOf"])
    if "const" in shape or "enum" in shape:
        return " | ".join(repr(value) for value in shape.get("enum", [shape.get("const")]))
    return str(shape.get("type", "any"))
