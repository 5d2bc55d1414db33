"""JSON Schema of the configuration with the options of installed plugins: editors complete it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pydantic import BaseModel

from nanofw.config.schema import ComponentSection, Config, ModelSection, Section, section_class
from nanofw.contracts.kinds import KINDS, Kind
from nanofw.errors import PluginError
from nanofw.narrowing import JsonObject
from nanofw.plugins import Entry, Registry, load_plugin
from nanofw.plugins.component import options_model

_INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}"}


def json_schema(registry: Registry) -> dict[str, object]:
    """The schema. Plugins that do not load are listed in `$comment` and left out.

    Sections accept what any of their plugins does, since a file may leave the name to a layer
    below it.
    """
    schema = Config.model_json_schema()
    definitions: dict[str, object] = schema.pop("$defs")
    skipped: list[str] = []
    named = (ComponentSection, ModelSection)
    kinds = [kind for kind in KINDS.values() if issubclass(_class(kind), named)]
    for kind in kinds:
        definitions[_name(kind)] = definitions[_class(kind).__name__]
        _redirect(_place(kind, schema, definitions), _class(kind).__name__, _name(kind))
    for kind in kinds:
        section = definitions[_name(kind)]
        definitions[_name(kind)] = _section(registry, kind, section, definitions, skipped)
    for name in {_class(kind).__name__ for kind in kinds}:
        del definitions[name]
    schema["properties"]["base"] = {
        "description": "A preset or file, or several, merged below this one.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$defs"] = definitions
    if skipped:
        schema["$comment"] = "\n".join(skipped)
    _allow_interpolations(schema)
    return schema


def _class(kind: Kind) -> type[Section]:
    return section_class(kind.section)


def _name(kind: Kind) -> str:
    return f"{kind.name}_section"


def _place(kind: Kind, schema: JsonObject, definitions: JsonObject) -> Any:
    """Where the schema speaks of a kind's section."""
    *above, key = kind.section
    owner = definitions[section_class(tuple(above)).__name__] if above else schema
    return owner["properties"][key]


def _redirect(place: object, old: str, new: str) -> None:
    """Point references to one definition to another."""
    for found in _mappings(place):
        if found.get("$ref") == f"#/$defs/{old}":
            found["$ref"] = f"#/$defs/{new}"


def _mappings(value: object) -> list[dict[str, object]]:
    """Every mapping in a plain value, itself included, the innermost first."""
    if isinstance(value, list):
        return [found for item in cast("list[object]", value) for found in _mappings(item)]
    if not isinstance(value, dict):
        return []
    mapping = cast("dict[str, object]", value)
    return [*(found for item in mapping.values() for found in _mappings(item)), mapping]


def _section(
    registry: Registry, kind: Kind, section: Any, definitions: JsonObject, skipped: list[str]
) -> JsonObject:
    core = {key: value for key, value in section["properties"].items() if key != "name"}
    variants: list[JsonObject] = []
    if "default" in section["properties"]["name"]:
        variants.append(_variant([None], {}, core, "chosen by what the checkpoint states"))
    if kind.auto:
        variants.append(_variant(["auto"], {}, core, "chosen by what the machine has"))
    for entry in registry.entries:
        if entry.kind != kind.name:
            continue
        try:
            variants.append(_plugin(entry, core, definitions))
        except PluginError as error:
            skipped.append(str(error).splitlines()[0])
    return {"description": kind.text, "anyOf": variants}


def _plugin(
    entry: Entry, core: dict[str, object], definitions: dict[str, object]
) -> dict[str, object]:
    plugin = load_plugin(entry)
    model = options_model(plugin, entry)
    options = _options(model, definitions) if model else {}
    names = [entry.name, f"{entry.provider}:{entry.name}"]
    return _variant(names, options, core, plugin.summary)


def _options(model: type[BaseModel], definitions: dict[str, object]) -> dict[str, object]:
    """The properties of an options model; what they refer to moves to the top."""
    prefix = f"{model.__module__}.{model.__qualname__}."
    schema = model.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
    for name, definition in schema.get("$defs", {}).items():
        definitions[prefix + name] = definition
    return schema.get("properties", {})


def _variant(
    names: Sequence[str | None], options: dict[str, object], core: dict[str, object], summary: str
) -> dict[str, object]:
    return {
        "type": "object",
        "description": summary,
        "properties": {"name": {"enum": names}, **options, **core},
        "additionalProperties": False,
    }


def _allow_interpolations(schema: object) -> None:
    """Let every property be `${...}`, whose value is known only when it is loaded."""
    for found in _mappings(schema):
        properties = found.get("properties")
        if isinstance(properties, dict) and "type" in found:
            found["properties"] = {
                key: {"anyOf": [value, _INTERPOLATION]}
                for key, value in cast("dict[str, object]", properties).items()
            }
