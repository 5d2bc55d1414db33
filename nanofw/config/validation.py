"""From plain values to a frozen model, and from pydantic's errors to ones with a place.

Values are validated strictly: a string is no number and a number is no boolean. Two kinds of
values are text by nature and take the type of their field: what an interpolation such as
`${oc.env:X}` gave, and what was typed on the command line.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from nanofw.config.source import KeyPath, ValueSource, dotted, expanded, nearest_source
from nanofw.errors import ConfigError, near

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Values:
    """Merged and interpolated values, with what is known of each.

    Attributes:
        data: nested plain values.
        sources: of every key that some layer set.
        alternatives: another reading of a value, taken when its field refuses the first.
        written: the interpolation that a value came from.
    """

    data: dict[str, Any]
    sources: Mapping[KeyPath, ValueSource]
    alternatives: Mapping[KeyPath, Any]
    written: Mapping[KeyPath, str]

    def source(self, path: KeyPath) -> ValueSource:
        """Where a value came from."""
        return nearest_source(self.sources, path)

    def error(self, message: str, path: KeyPath) -> ConfigError:
        """An error about a key, with its place."""
        source = self.source(path)
        return ConfigError(message, key=dotted(path), source=source.name, line=source.line)


def validate(model: type[M], data: Any, values: Values, at: KeyPath = ()) -> M:
    """Make a frozen model of the values at a key. Relative paths become absolute.

    Raises:
        ConfigError: with key, file and line of everything that is wrong.
    """
    data = copy.deepcopy(data)
    _refuse_unknown(model, data, values, at)
    tried: dict[KeyPath, list[Any]] = {}
    while True:
        try:
            made = model.model_validate_json(json.dumps(data), strict=True)
        except ValidationError as error:
            problems = _by_place(error, data)
            retry = [
                place
                for place in problems
                if (*at, *place) in values.alternatives and place not in tried
            ]
            if not retry:
                # Of a value that neither reading helped, report the one that was written.
                problems |= {place: tried[place] for place in problems if place in tried}
                raise _config_error(model, problems, data, values, at) from None
            for place in retry:
                _put(data, place, values.alternatives[(*at, *place)])
                tried[place] = problems[place]
        else:
            for place in tried:  # what was taken is what is shown
                _put(values.data, (*at, *place), values.alternatives[(*at, *place)])
            return cast("M", _settled(made, values, at))


def _by_place(error: ValidationError, data: Any) -> dict[KeyPath, list[Any]]:
    """Pydantic's errors by the value that they are about; branches of a union share one."""
    problems: dict[KeyPath, list[Any]] = {}
    for item in error.errors(include_url=False):
        if not _is_consequence(item):
            problems.setdefault(_place(item, data), []).append(item)
    return {
        place: items
        for place, items in problems.items()
        if not (_is_branch(place, items) and any(place == other[: len(place)] for other in problems
                                                 if len(other) > len(place)))
    }  # fmt: skip


def _is_consequence(item: Any) -> bool:
    """Whether a collection is only too short because of the items that were refused."""
    return item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]


def _place(item: Any, data: Any) -> KeyPath:
    """The keys that lead to the value; names of a union's branches in between are no keys."""
    place: KeyPath = ()
    value = data
    for part in item["loc"]:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            if item["type"] == "missing" and part == item["loc"][-1]:
                place = (*place, part)
            continue
        place = (*place, part)
    if item["type"] in _TAG_ERRORS:  # about the key that chooses a branch of a union
        return (*place, item["ctx"]["discriminator"].strip("'"))
    return place


_TAG_ERRORS = ("union_tag_invalid", "union_tag_not_found")


def _is_branch(place: KeyPath, items: list[Any]) -> bool:
    """Whether all errors are of branches of a union that a value was not meant for."""
    return all(len(item["loc"]) > len(place) for item in items)


def _refuse_unknown(model: type[BaseModel], data: Any, values: Values, at: KeyPath) -> None:
    """Unknown keys are errors also where a plugin's model would let them pass."""
    if model.model_config.get("extra") in ("forbid", "allow") or not isinstance(data, dict):
        return
    known = set(model.model_fields)
    for field in model.model_fields.values():
        known |= {str(name) for name in (field.alias, field.validation_alias) if name}
    for key in cast("dict[str, Any]", data):
        if key not in known:
            message = f"no such key{near(key, known)}; keys here: {', '.join(sorted(known))}"
            raise values.error(message, (*at, key))


def _config_error(
    model: type[BaseModel],
    problems: dict[KeyPath, list[Any]],
    data: Any,
    values: Values,
    at: KeyPath,
) -> ConfigError:
    errors: list[ConfigError] = []
    for place, items in problems.items():
        path = (*at, *place)
        message = _message(model, place, items)
        if path in values.written:
            message += f" (from {values.written[path]})"
        errors.append(values.error(message, path))
    if len(errors) == 1:
        return errors[0]
    return ConfigError(
        "\n  ".join([f"{len(errors)} values cannot be used", *(str(error) for error in errors)])
    )


def _message(model: type[BaseModel], place: KeyPath, items: list[Any]) -> str:
    first = items[0]
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _siblings(model, place)
        key = str(place[-1])
        if key in getattr(model, "extra_known_keys", ()):
            return "belongs at the top of a file"
        if "." in key and key.partition(".")[0] in known:
            return "no such key; write nested keys as nested mappings"
        hint = _elsewhere(model, place) or near(key, known)
        return f"no such key{hint}; keys here: {', '.join(sorted(known))}"
    if first["type"] == "missing":
        return "is required"
    if first["type"] == "too_short":
        return _WANTED["too_short"]
    if first["type"] == "union_tag_not_found":
        return "is required: it says which kind this is"
    if first["type"] == "union_tag_invalid":
        context = first["ctx"]
        return f"should be one of {context['expected_tags']}, not the string {context['tag']!r}"
    if first["type"] in ("value_error", "assertion_error") and isinstance(
        first["input"], (dict, list)
    ):
        return _wanted(first)
    value = first["input"]
    wanted = " or ".join(dict.fromkeys(_wanted(item) for item in items))
    wanted = wanted.replace(" or should be ", " or ")
    return f"{wanted}, not {_shown(value)}{_hint(value, items)}"


def _elsewhere(model: type[BaseModel], place: KeyPath) -> str:
    """`"; did you mean 'model.dtype'"` where a key of one section stands in another."""
    if len(place) != 2:
        return ""
    key = str(place[1])
    sections = [name for name in model.model_fields if key in _siblings(model, (name, key))]
    return f"; did you mean '{sections[0]}.{key}'" if len(sections) == 1 else ""


_WANTED = {
    "int_type": "should be an integer",
    "int_from_float": "should be an integer",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "string_type": "should be a string",
    "tuple_type": "should be a list",
    "list_type": "should be a list",
    "mapping_type": "should be a mapping",
    "dict_type": "should be a mapping",
    "model_type": "should be a mapping",
    "model_attributes_type": "should be a mapping",
    "dataclass_type": "should be a mapping",
    "none_required": "should be null",
    "path_type": "should be a path",
    "too_short": "needs at least one",
}


def _wanted(item: Any) -> str:
    if item["type"] in _WANTED:
        return _WANTED[item["type"]]
    message = str(item["msg"])
    if message.startswith("Input should be "):
        return "should be " + message.removeprefix("Input should be ")
    return message.removeprefix("Value error, ")


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f"the string {value!r}"
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    return json.dumps(value)


def _hint(value: Any, items: list[Any]) -> str:
    words = {"on": "true", "yes": "true", "off": "false", "no": "false"}
    wants_bool = any(item["type"] == "bool_type" for item in items)
    if wants_bool and isinstance(value, str) and value.lower() in words:
        return f"; write {words[value.lower()]}"
    wants_mapping = any(item["type"] in _MAPPING_TYPES for item in items)
    if wants_mapping and isinstance(value, str) and re.match(r"^\w+:\S", value):
        return "; a space belongs after the colon"
    if wants_mapping and isinstance(value, str) and _names_component(items[0]):
        return f"; write {{name: {value}}}"
    if wants_mapping and value is None:
        return "; leave the key out, or write keys below it"
    return ""


_MAPPING_TYPES = ("model_type", "model_attributes_type", "dict_type", "mapping_type")


def _names_component(item: Any) -> bool:
    return (
        str(item.get("ctx", {}).get("class_name", "")).endswith("Section")
        and str(item["loc"][-1]) in COMPONENT_KEYS
    )


COMPONENT_KEYS = (
    "scheduler", "kv_allocator", "attention_backend", "sampler", "executor", "cost_model",
    "workload",
)  # fmt: skip
"""Sections that have a name."""


def _siblings(model: type[BaseModel], place: KeyPath) -> list[str]:
    """The keys that are allowed beside the one at `place`."""
    owners: list[Any] = [model]
    for part in place[:-1]:
        if not isinstance(part, int):
            owners = [found for owner in owners for found in _section_types(owner, part)]
    known: dict[str, None] = {}
    for owner in owners:
        fields = getattr(owner, "model_fields", None) or getattr(owner, "__dataclass_fields__", {})
        known |= dict.fromkeys([*fields, *getattr(owner, "extra_known_keys", ())])
    return list(known)


def _section_types(owner: Any, key: str) -> list[Any]:
    """The models (or dataclasses) behind a field: optional, in a collection, or in a union."""
    field = getattr(owner, "model_fields", {}).get(key)
    pending: list[Any] = [field.annotation] if field is not None else []
    found: list[Any] = []
    while pending:
        annotation = pending.pop()
        if hasattr(annotation, "model_fields") or hasattr(annotation, "__dataclass_fields__"):
            found.append(annotation)
        else:
            value = getattr(annotation, "__value__", None)
            pending += [] if value is None else [value]
            pending += getattr(annotation, "__args__", ())
    return found


def _put(data: Any, place: KeyPath, value: Any) -> None:
    for part in place[:-1]:
        data = data[part]
    data[place[-1]] = value


def _settled(value: Any, values: Values, path: KeyPath) -> Any:
    """The value, frozen: lists are tuples, and paths absolute against the file that names them."""
    if isinstance(value, Path):
        folder = values.source(path).folder or Path.cwd()
        try:
            return folder / expanded(value)
        except ValueError as error:
            raise values.error(str(error), path) from None
    if isinstance(value, (list, tuple)):
        items: Any = value  # pyright: ignore[reportUnknownVariableType]
        return _settled_items(items, values, path)
    owner: Any = value.__class__
    names: Any = getattr(owner, "model_fields", None) or getattr(owner, "__dataclass_fields__", ())
    changed = {
        name: new
        for name in names
        if (new := _settled(old := getattr(value, name), values, (*path, name))) is not old
    }
    if not changed:
        return value
    if isinstance(value, BaseModel):
        return value.model_copy(update=changed)
    return dataclasses.replace(value, **changed)


def _settled_items(items: Sequence[Any], values: Values, path: KeyPath) -> Sequence[Any]:
    made = tuple(_settled(item, values, (*path, i)) for i, item in enumerate(items))
    is_same = isinstance(items, tuple) and all(a is b for a, b in zip(made, items, strict=True))
    return items if is_same else made
