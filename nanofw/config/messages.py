"""Words for what is wrong with a value: what its key takes, and what may have been meant."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from nanofw.config.source import KeyPath
from nanofw.contracts.kinds import KINDS
from nanofw.errors import near, shown

_NAMED = {kind.section[-1] for kind in KINDS.values() if not kind.is_list and kind.name != "model"}
"""Sections that are chosen by their name; a model is chosen by its path."""

MAX_SHOWN = 120
"""Characters of a number in a message."""
_EXPECTED = {
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
"""By pydantic's type of error."""
_MAPPING_TYPES = ("model_type", "model_attributes_type", "dict_type", "mapping_type")
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
_RAISED = ("value_error", "assertion_error")
_BOOLEANS = {"on": "true", "yes": "true", "off": "false", "no": "false"}


def message(model: type[BaseModel], place: KeyPath, problems: Sequence[ErrorDetails]) -> str:
    """What is wrong with the value at a place of a model; branches of a union have one each."""
    first = problems[0]
    kind, value = first["type"], first["input"]
    if kind in _UNKNOWN_KEY:
        return _unknown_key(model, place)
    if kind == "missing":
        return "is required"
    if kind == "too_short":
        return _EXPECTED[kind]
    if kind == "union_tag_not_found":
        return "is required: it says which kind this is"
    if kind == "union_tag_invalid":
        context = first.get("ctx", {})
        return f"should be one of {context['expected_tags']}, not the string {context['tag']!r}"
    if kind in _RAISED and isinstance(value, (dict, list)):
        return _expected(first)
    expected = " or ".join(dict.fromkeys(_expected(problem) for problem in problems))
    expected = expected.replace(" or should be ", " or ")
    return f"{expected}, not {_shown(value)}{_hint(value, problems)}"


def unknown_key(key: str, known: Sequence[str], hint: str = "") -> str:
    """Words for a key that does not exist among the known ones."""
    return f"no such key{hint or near(key, known)}; keys here: {', '.join(sorted(known))}"


def field_names(owner: object) -> tuple[str, ...]:
    """The fields of a pydantic model or a dataclass, of the class or an instance."""
    kind: type[object] = owner if isinstance(owner, type) else type(owner)
    if issubclass(kind, BaseModel):
        return tuple(kind.model_fields)
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return ()


def _unknown_key(model: type[BaseModel], place: KeyPath) -> str:
    key, known = str(place[-1]), _siblings(model, place)
    if key in _keys_of_files(model):
        return "belongs at the top of a file"
    if "." in key and key.partition(".")[0] in known:
        return "no such key; write nested keys as nested mappings"
    return unknown_key(key, known, _elsewhere(model, place))


def _elsewhere(model: type[BaseModel], place: KeyPath) -> str:
    """`"; did you mean 'model.dtype'"` where a key of one section stands in another."""
    if len(place) != 2:
        return ""
    key = str(place[1])
    sections = [name for name in model.model_fields if key in _siblings(model, (name, key))]
    return f"; did you mean '{sections[0]}.{key}'" if len(sections) == 1 else ""


def _siblings(model: type[BaseModel], place: KeyPath) -> list[str]:
    """The keys that are allowed beside the one at `place`."""
    owners: list[object] = [model]
    for part in place[:-1]:
        if not isinstance(part, int):
            owners = [found for owner in owners for found in _section_types(owner, part)]
    known: dict[str, None] = {}
    for owner in owners:
        known |= dict.fromkeys([*field_names(owner), *_keys_of_files(owner)])
    return list(known)


def _keys_of_files(owner: object) -> Sequence[str]:
    """Keys that a file may have and that are gone once it is loaded."""
    return getattr(owner, "extra_known_keys", ())


def _section_types(owner: object, key: str) -> list[object]:
    """The models (or dataclasses) behind a field: optional, in a collection, or in a union."""
    field = (
        owner.model_fields.get(key)
        if isinstance(owner, type) and issubclass(owner, BaseModel)
        else None
    )
    pending: list[object] = [field.annotation] if field is not None else []
    found: list[object] = []
    while pending:
        annotation = pending.pop()
        if isinstance(annotation, type) and field_names(annotation):
            found.append(annotation)
        else:
            value = getattr(annotation, "__value__", None)  # of an alias
            pending += [] if value is None else [value]
            pending += getattr(annotation, "__args__", ())
    return found


def _expected(problem: ErrorDetails) -> str:
    if problem["type"] in _EXPECTED:
        return _EXPECTED[problem["type"]]
    text = problem["msg"]
    if text.startswith("Input should be "):
        return "should be " + text.removeprefix("Input should be ")
    return text.removeprefix("Value error, ")


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f"the string {shown(value)}"
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _hint(value: object, problems: Sequence[ErrorDetails]) -> str:
    """What to write instead."""
    types = {problem["type"] for problem in problems}
    if "bool_type" in types and isinstance(value, str) and value.lower() in _BOOLEANS:
        return f"; write {_BOOLEANS[value.lower()]}"
    if types.isdisjoint(_MAPPING_TYPES):
        return ""
    if value is None:
        return "; leave the key out, or write keys below it"
    if isinstance(value, str) and re.match(r"^\w+:\S", value):
        return "; a space belongs after the colon"
    if isinstance(value, str) and _names_component(problems[0]):
        return f"; write {{name: {value}}}"
    return ""


def _names_component(problem: ErrorDetails) -> bool:
    section = str(problem.get("ctx", {}).get("class_name", ""))
    return section.endswith("Section") and str(problem["loc"][-1]) in _NAMED
