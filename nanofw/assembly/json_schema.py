"""JSON Schema of the configuration with the options of installed plugins: editors complete it."""

from __future__ import annotations

from typing import Any, cast

from pydantic import BaseModel

from nanofw.config.schema import Config
from nanofw.errors import PluginError
from nanofw.plugins import Entry, Registry, load_plugin
from nanofw.plugins.component import options_model

_SECTIONS = {
    "SchedulerSection": "scheduler",
    "AllocatorSection": "kv_allocator",
    "AttentionBackendSection": "attention_backend",
    "SamplerSection": "sampler",
    "ExecutorSection": "executor",
}
"""Sections of one kind by their definition's name."""

_PLACES = {
    ("Config", "logits_processors"): "logits_processor",
    ("ExecutorSection", "cost_model"): "cost_model",
    ("InputSection", "workload"): "workload",
}
"""Where the bare component section stands, and for which kind."""

_INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}"}


def json_schema(registry: Registry) -> dict[str, Any]:
    """The schema. Plugins that do not load are listed in `$comment` and left out.

    Sections accept what any of their plugins does, since a file may leave the name to a layer
    below it.
    """
    schema = Config.model_json_schema()
    definitions: dict[str, Any] = schema.pop("$defs")
    skipped: list[str] = []
    sections = dict(_SECTIONS)
    definitions["Config"] = {"properties": schema["properties"]}
    for (owner, key), kind in _PLACES.items():
        name = f"{kind}_section"
        definitions[name] = definitions["ComponentSection"]
        sections[name] = kind
        _redirect(definitions[owner]["properties"][key], f"#/$defs/{name}")
    for name, kind in sections.items():
        definitions[name] = _section(registry, kind, definitions[name], definitions, skipped)
    del definitions["Config"], definitions["ComponentSection"]
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


def _redirect(place: Any, target: str) -> None:
    """Point the references to the bare component section somewhere else."""
    for found in _mappings(place):
        if found.get("$ref") == "#/$defs/ComponentSection":
            found["$ref"] = target


def _mappings(value: Any) -> list[dict[str, Any]]:
    """Every mapping in a plain value, itself included, the innermost first."""
    if isinstance(value, list):
        return [found for item in cast("list[Any]", value) for found in _mappings(item)]
    if not isinstance(value, dict):
        return []
    mapping = cast("dict[str, Any]", value)
    return [*(found for item in mapping.values() for found in _mappings(item)), mapping]


def _section(
    registry: Registry, kind: str, section: Any, definitions: dict[str, Any], skipped: list[str]
) -> dict[str, Any]:
    core = {key: value for key, value in section["properties"].items() if key != "name"}
    variants = [_variant(["auto"], {}, core, "chosen by what the machine has")]
    if kind not in ("executor", "attention_backend"):
        variants = []
    for entry in registry.entries:
        if entry.kind != kind:
            continue
        try:
            variants.append(_plugin(entry, core, definitions))
        except PluginError as error:
            skipped.append(str(error).splitlines()[0])
    return {"description": section.get("description", ""), "anyOf": variants}


def _plugin(entry: Entry, core: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    plugin = load_plugin(entry)
    model = options_model(plugin, entry)
    options = _options(model, definitions) if model else {}
    names = [entry.name, f"{entry.provider}:{entry.name}"]
    return _variant(names, options, core, plugin.summary)


def _options(model: type[BaseModel], definitions: dict[str, Any]) -> dict[str, Any]:
    """The properties of an options model; what they refer to moves to the top."""
    prefix = f"{model.__module__}.{model.__qualname__}."
    schema = model.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
    for name, definition in schema.get("$defs", {}).items():
        definitions[prefix + name] = definition
    return schema.get("properties", {})


def _variant(
    names: list[str], options: dict[str, Any], core: dict[str, Any], summary: str
) -> dict[str, Any]:
    return {
        "type": "object",
        "description": summary,
        "properties": {"name": {"enum": names}, **options, **core},
        "additionalProperties": False,
    }


def _allow_interpolations(schema: Any) -> None:
    """Let every property be `${...}`, whose value is known only when it is loaded."""
    for found in _mappings(schema):
        properties = found.get("properties")
        if isinstance(properties, dict) and "type" in found:
            found["properties"] = {
                key: {"anyOf": [value, _INTERPOLATION]}
                for key, value in cast("dict[str, Any]", properties).items()
            }
