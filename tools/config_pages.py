"""Makes the reference of the configuration from the docstrings of its classes: every key of runs,
experiments, measurements and plugins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import contract_pages
from pydantic import BaseModel

from nanofw.cli.completion_words import SYNTAX, Syntax
from nanofw.compare.experiment import ExperimentOptions
from nanofw.config.schema import Config
from nanofw.contracts.kinds import KINDS
from nanofw.contracts.requests import SamplingParams
from nanofw.plugins import load_target
from nanofw.plugins.component import load_plugin, options_model
from nanofw.plugins.registry import Registry, build_registry

Shape = Mapping[str, Any]
Row = tuple[str, ...]
_REF = "#/$defs/"
_WHOLE_RANGE = 1 << 40  # a bound of the implementation, not one that a reader would meet
_NAMES = {"string": "text", "boolean": "true or false", "object": "mapping", "null": "null"}
_PLURAL = re.compile(r"^(list|integer|number|text|mapping)\b")
_BOUNDS = (
    ("minimum", "from {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "to {}"),
    ("exclusiveMaximum", "below {}"),
)


def run_keys() -> str:
    """The sections of a run, one after the other."""
    schema = Config.model_json_schema()
    sampling: Shape = schema["$defs"]["SamplingParams"]["properties"]
    for key, text in contract_pages.attribute_texts(SamplingParams):
        sampling[key]["description"] = text[0].upper() + text[1:].replace("None:", "null:")
    return "\n".join(_sections(schema, ()))


def experiment_keys() -> str:
    """The sections of an experiment, below `compare.` on a command line."""
    return "\n".join(_sections(ExperimentOptions.model_json_schema(), ("compare",)))


def command_keys() -> str:
    """The keys of commands that have settings of their own, a section for each command."""
    return "\n".join(_commands("nanofw", SYNTAX))


def _commands(before: str, commands: Mapping[str, Syntax]) -> Iterator[str]:
    for word, syntax in commands.items():
        yield from _commands(f"{before} {word}", syntax.commands)
        if syntax.own is not None and syntax.own[0] != "compare":
            prefix, model = syntax.own
            rows = _model_rows(load_target(model), prefix)
            yield f"## `{before} {word}`\n\n{_table(rows)}"


def plugin_options() -> str:
    """The options of the plugins that come with nanofw."""
    registry = build_registry()
    return "\n".join(part for kind in KINDS for part in _options(registry, kind))


def _options(registry: Registry, kind: str) -> Iterator[str]:
    for entry in registry.entries:
        if entry.kind == kind and entry.is_builtin:
            model = options_model(load_plugin(entry), entry)
            if model is not None and model.model_fields:
                yield f"### `{kind}` {entry.name}\n\n{_table(_model_rows(model))}"


def _model_rows(model: type[BaseModel], prefix: str = "") -> list[Row]:
    """The keys of a model, and those of the sections below it if the keys have a prefix."""
    schema = model.model_json_schema()
    return list(_rows(schema, schema, prefix))


def _rows(shape: Shape, schema: Shape, prefix: str) -> Iterator[Row]:
    for key, item in shape["properties"].items():
        name = f"{prefix}.{key}" if prefix else key
        if prefix and (below := _section(item, schema)):
            yield from _rows(below, schema, name)
        else:
            yield _row(name, item, schema, is_needed=key in shape.get("required", ()))


def _sections(
    schema: Shape, at: tuple[str, ...], shape: Shape | None = None, defaults: object = None
) -> Iterator[str]:
    """A section's own keys in a table, then the sections below it.

    Args:
        at: where the section stands.
        shape: its definition; None: the schema itself.
        defaults: what the section above says of its keys.
    """
    shape = shape or schema
    properties: Shape = shape.get("properties", {})
    below = {key: found for key in properties if (found := _section(properties[key], schema))}
    rows = [
        _row(key, _with_default(key, item, defaults), schema, key in shape.get("required", ()))
        for key, item in properties.items()
        if key not in below
    ]
    if at:
        yield f"## `{'.'.join(at)}`\n\n{_text(at, shape)}\n\n{_table(rows)}"
    for key, found in below.items():
        is_list = properties[key].get("type") == "array"
        given = None if is_list else properties[key].get("default")
        yield from _sections(schema, (*at, f"{key}[]" if is_list else key), found, given)


def _with_default(key: str, shape: Shape, defaults: object) -> Shape:
    given: Shape = defaults if isinstance(defaults, dict) else {}
    return {**shape, "default": given[key]} if key in given else shape


def _section(shape: Shape, schema: Shape) -> Shape | None:
    """The definition of a key that is a section, or a list of sections."""
    for item in (shape, shape.get("items", {}), *shape.get("anyOf", ())):
        if _REF in (reference := item.get("$ref", "")):
            return schema["$defs"][reference.removeprefix(_REF)]
    return None


def _text(at: tuple[str, ...], shape: Shape) -> str:
    """What the section of a kind decides; of another section, its docstring."""
    path = tuple(key.removesuffix("[]") for key in at)
    kinds = [kind for kind in KINDS.values() if kind.section == path]
    if kinds:
        default = f" Default: `{kinds[0].default}`." if kinds[0].default else ""
        return f"{kinds[0].text[0].upper()}{kinds[0].text[1:]}.{default}"
    return " ".join(shape.get("description", "").partition("\n\n")[0].split())


def _row(key: str, shape: Shape, schema: Shape, is_needed: bool) -> Row:
    text = shape.get("description", "")
    default = f"`{json.dumps(shape['default'])}`" if "default" in shape else "empty"
    default = "must be given" if is_needed and "default" not in shape else default
    cells = (f"`{key}`", _type(shape, schema), default, text)
    return tuple(" ".join(cell.split()) for cell in cells)


def _type(shape: Shape, schema: Shape) -> str:
    """A type in words, with its bounds."""
    for several in ("anyOf", "oneOf"):
        if several in shape:
            return ", or ".join(dict.fromkeys(_type(item, schema) for item in shape[several]))
    if "$ref" in shape:
        return _type(schema["$defs"][shape["$ref"].removeprefix(_REF)], schema)
    if "const" in shape or "enum" in shape:
        return ", ".join(f"`{json.dumps(v)}`" for v in shape.get("enum", [shape.get("const")]))
    if shape.get("type") == "array":
        items = _type(shape.get("items", {}), schema)
        return f"list of {_PLURAL.sub(lambda word: word[0] + 's', items)}"
    bounds = [
        text.format(shape[bound])
        for bound, text in _BOUNDS
        if bound in shape and abs(shape[bound]) < _WHOLE_RANGE
    ]
    found = str(shape.get("type", "anything"))
    return " ".join([_NAMES.get(found, found), *bounds])


def _table(rows: Sequence[Row]) -> str:
    lines: list[Row] = [("key", "type", "default", "what it does"), ("---",) * 4, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
