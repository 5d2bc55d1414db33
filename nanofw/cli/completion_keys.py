"""Keys of a configuration and their values, for shells: from the schema of the chosen plugins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from nanofw.assembly import json_schema, registry_for
from nanofw.cli.completion_words import files, models
from nanofw.config.layers import is_override
from nanofw.config.load import DEFAULT_PRESET, LoadedConfig, load_config
from nanofw.contracts.kinds import KINDS, Kind
from nanofw.errors import NanofwError
from nanofw.plugins import Entry, Registry, load_target

Node = Mapping[str, Any]


def key_words(word: str, given: Sequence[str], own: tuple[str, str] | None) -> list[str]:
    """`section.`, `section.key=` or `section.key=value`, as far as the word goes.

    Args:
        given: the configuration's name and the `key=value` before, which choose the plugins.
        own: prefix of the command's own settings, and `module:Class` of their model.
    """
    key, has_value, value = word.partition("=")
    path, _, start = key.rpartition(".")
    if own is not None and path == own[0]:
        schema: Node = load_target(own[1]).model_json_schema()
        registry, above = None, []
    else:
        schema, registry = _schema(given)
        above = path.split(".") if path else []
    if has_value:
        values = _values([*above, start], schema, registry, value)
        return sorted(f"{key}={text}" for text in values if text.startswith(value))
    before = f"{path}." if path else ""
    keys = _properties(_at(schema, above))
    found = [
        f"{before}{name}{'.' if _properties(_at(schema, [*above, name])) else '='}" for name in keys
    ]
    found += [f"{own[0]}."] if own is not None and not path else []
    return sorted(item for item in found if item.startswith(word))


def _schema(given: Sequence[str]) -> tuple[Node, Registry]:
    """Of a configuration with the plugins that it chooses; the registry has all."""
    loaded = _loaded(given)
    registry = registry_for(loaded)
    entries = [entry for kind in KINDS.values() for entry in _chosen(kind, loaded, registry)]
    return json_schema(dataclasses.replace(registry, entries=tuple(entries))), registry


def _loaded(given: Sequence[str]) -> LoadedConfig:
    """What is written so far, as much of it as can be loaded."""
    names = [item for item in given if not is_override(item)]
    name = names[-1] if names else DEFAULT_PRESET
    for overrides in ([item for item in given if is_override(item)], []):
        try:
            loaded = load_config(name, overrides)
            registry_for(loaded)
        except NanofwError:
            continue
        return loaded
    return load_config()


def _chosen(kind: Kind, loaded: LoadedConfig, registry: Registry) -> Iterable[Entry]:
    section: object = loaded.config
    for key in kind.section:
        section = getattr(section, key, None)
    sections = cast("Sequence[object]", section) if kind.is_list else [section]
    for item in sections:
        name = getattr(item, "name", None)
        try:
            yield registry.find(kind.name, name or "", by_default=True)
        except NanofwError:
            continue  # none is named, auto, or one that is not there


def _values(path: Sequence[str], schema: Node, registry: Registry | None, begun: str) -> list[str]:
    """What a key may be set to, where that can be listed; of files, those that begin so."""
    found: list[str] = models(begun) if tuple(path) == ("model", "path") else []
    kind = next((kind for kind in KINDS.values() if (*kind.section, "name") == tuple(path)), None)
    if kind is not None and registry is not None:
        return [*registry.names(kind.name), *(["auto"] if kind.auto else [])]
    for node in _at(schema, path):
        found += [str(value) for value in node.get("enum", []) if value is not None]
        found += [str(node["const"])] if "const" in node else []
        found += ["true", "false"] if node.get("type") == "boolean" else []
        found += ["null"] if node.get("type") == "null" else []
        found += files(begun) if node.get("format") == "path" else []
    return list(dict.fromkeys(found))


def _at(schema: Node, path: Sequence[str]) -> list[Node]:
    """The alternatives at a path, references followed."""
    nodes = _alternatives(schema, schema)
    for key in path:
        nodes = [
            found
            for node in nodes
            for found in _alternatives(node.get("properties", {}).get(key, {}), schema)
        ]
    return nodes


def _alternatives(node: Node, schema: Node) -> list[Node]:
    if "$ref" in node:
        return _alternatives(schema["$defs"][node["$ref"].removeprefix("#/$defs/")], schema)
    if "anyOf" in node:
        return [found for item in node["anyOf"] for found in _alternatives(item, schema)]
    return [node]


def _properties(nodes: Iterable[Node]) -> list[str]:
    return list(dict.fromkeys(key for node in nodes for key in node.get("properties", {})))
