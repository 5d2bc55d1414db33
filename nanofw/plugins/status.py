"""The state of every plugin, for people who look for the reason why one is not there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from nanofw.contracts.kinds import KINDS
from nanofw.errors import PluginError
from nanofw.narrowing import JsonObject
from nanofw.plugins.checks import missing_requirements
from nanofw.plugins.component import load_plugin, options_model
from nanofw.plugins.discovery import Entry
from nanofw.plugins.lint import Finding, LintError, Subject, lint
from nanofw.plugins.manifest_imports import ManifestImports, seen_imports
from nanofw.plugins.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginStatus:
    """One entry and what is known of it.

    Attributes:
        state: `available` (by its metadata), `ok` (loaded), `failed`, `missing requirement`,
            `not imported` (it needs torch, which is not here), `duplicate` (name it as
            `distribution:name`) or `left out`.
        error: why it failed, with its own traceback, and what else the check found; or what left
            it out.
        findings: what the rules of the check found, each on its own.
        summary: the manifest's line, when it was loaded.
    """

    entry: Entry
    state: str
    error: str = ""
    findings: tuple[Finding, ...] = ()
    summary: str = ""
    api: str = ""

    def as_dict(self) -> JsonObject:
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
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "summary": self.summary or None,
            "api": self.api or None,
        }


def statuses(registry: Registry, *, check: bool = False) -> list[PluginStatus]:
    """Every entry, by kind and name.

    Args:
        check: import all manifests and what they name, each guarded on its own.
    """
    checked = _subjects(registry) if check else [None] * len(registry.entries)
    found = [
        _status(registry, entry, subject)
        for entry, subject in zip(registry.entries, checked, strict=True)
    ]
    found += [
        PluginStatus(entry=entry, state="left out", error=f"by {setting}")
        for entry, setting in registry.left_out
    ]
    order = list(KINDS)
    return sorted(
        found,
        key=lambda item: (order.index(item.entry.kind), item.entry.name, item.entry.origin),
    )


def _subjects(registry: Registry) -> list[Subject]:
    """What the rules look at, one for each entry: all of a manifest goes with the first one."""
    offered = [*registry.entries, *(entry for entry, _ in registry.left_out)]
    imports = _imports(registry.entries)
    subjects: list[Subject] = []
    seen: set[tuple[str, str]] = set()
    for entry in registry.entries:
        manifest = (entry.provider, entry.module)
        is_first = manifest not in seen
        seen.add(manifest)
        siblings = {item.id for item in offered if (item.provider, item.module) == manifest}
        subjects.append(
            Subject(
                entry=entry,
                siblings=frozenset(siblings if is_first else ()),
                imports=imports.get(entry.module) if is_first else None,
            )
        )
    return subjects


def _imports(entries: Iterable[Entry]) -> Mapping[str, ManifestImports]:
    """Of installed packages: what a local file imports is the business of the run that names it."""
    modules = [item.module for item in entries if item.path is None and not item.is_builtin]
    return seen_imports(list(dict.fromkeys(modules)))


def _status(registry: Registry, entry: Entry, subject: Subject | None) -> PluginStatus:
    others = registry.providers(entry.kind, entry.name)
    is_duplicate = len(others) > 1 and entry.id not in (registry.overrides or {})
    state = "duplicate" if is_duplicate else "available"
    if subject is None:
        return PluginStatus(entry=entry, state=state)
    findings: list[Finding] = []
    try:
        findings.extend(lint(subject))
    except LintError as error:
        if needs_torch(error):
            return PluginStatus(entry=entry, state="not imported", error=str(error))
        findings.append(Finding(error.rule, "error", str(error)))
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        state = "missing requirement" if errors[0].rule == "requirement" else "failed"
    elif not is_duplicate:
        state = "ok"
    loaded = not errors or errors[0].rule != "descriptor"
    plugin = load_plugin(entry) if loaded else None
    return PluginStatus(
        entry=entry,
        state=state,
        error="; ".join(finding.text for finding in findings),
        findings=tuple(findings),
        summary=plugin.summary if plugin else "",
        api=plugin.api if plugin else "",
    )


def needs_torch(error: PluginError) -> bool:
    """Whether an import failed because there is no torch: what computes is not checked then."""
    cause = error.__cause__
    return isinstance(cause, ModuleNotFoundError) and cause.name == "torch"


def description(entry: Entry) -> JsonObject:
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


def _fields(model: type[BaseModel]) -> list[JsonObject]:
    schema = model.model_json_schema()
    fields: list[JsonObject] = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shape = schema["properties"].get(name, {})
        fields.append(
            {
                "key": name,
                "type": _type(shape),
                "default": "required" if field.is_required() else default,
                "text": shape.get("description", ""),
            }
        )
    return fields


def _type(shape: JsonObject) -> str:
    if "anyOf" in shape:
        return " | ".join(_type(item) for item in shape["anyOf"])
    if "const" in shape or "enum" in shape:
        return " | ".join(repr(value) for value in shape.get("enum", [shape.get("const")]))
    return str(shape.get("type", "any"))
