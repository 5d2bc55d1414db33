"""What llguidance's compiler of JSON schemas takes without a word, and does not enforce."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeGuard

from nanofw.errors import misspelt, shown
from nanofw.narrowing import is_list, is_object

LIMIT = 1 << 63
"""The compiler holds numbers as doubles, and bounds of integers as signed integers of 64 bits."""

LOWER_BOUNDS = ("minimum", "exclusiveMinimum")
UPPER_BOUNDS = ("maximum", "exclusiveMaximum")

SCHEMA = ("items", "additionalItems", "additionalProperties")
"""Keywords whose value is a schema; that of `items` may be a list of schemas, too."""
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
MAPPINGS = ("properties", "patternProperties", "$defs", "definitions")

KEYWORDS = (
    *("type", "enum", "const", "format", "pattern", "minLength", "maxLength", "required"),
    *("multipleOf", "minItems", "maxItems", "minProperties", "maxProperties", "uniqueItems"),
    *("contains", "minContains", "maxContains", "propertyNames", "not", "if", "then", "else"),
    *("dependencies", "dependentRequired", "dependentSchemas", "$ref", "$id", "id", "$schema"),
    *("unevaluatedItems", "unevaluatedProperties", "title", "description", "default", "examples"),
    *("example", *LOWER_BOUNDS, *UPPER_BOUNDS, *SCHEMA, *LISTS, *MAPPINGS),
)
"""An unknown keyword that is one slip away from one of these is taken for a misspelt one."""

FORMER = {"divisibleBy": "multipleOf", "disallow": "not", "extends": "allOf"}
"""Keywords of draft 3, and what they are called since."""


def check_schema(schema: object) -> None:
    """Raise ValueError for what would be left out of a schema, or enforced as something else.

    Args:
        schema: of plain dictionaries, lists and scalars.
    """
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if is_object(part):
            _check_keywords(part)
            _check_numbers(part)
            waiting.extend(_parts(part))


def _parts(schema: Mapping[str, object]) -> Iterator[object]:
    """The schemas directly below a schema."""
    for key in SCHEMA:
        value = schema.get(key)
        yield from value if is_list(value) else (value,)
    for key in LISTS:
        if is_list(value := schema.get(key)):
            yield from value
    for key in MAPPINGS:
        if is_object(value := schema.get(key)):
            yield from value.values()


def _check_keywords(schema: Mapping[str, object]) -> None:
    for key in schema:
        if key in FORMER:
            raise ValueError(f"the keyword {key!r} is of draft 3; use {FORMER[key]!r}")
        word = key.replace("_", "").replace("-", "")
        if key not in KEYWORDS and (hint := misspelt(word, KEYWORDS)):
            raise ValueError(f"the keyword {shown(key)} is not known{hint}")
    if schema.get("required") is True:
        raise ValueError("required is true; write the names into `required` of the object")


def _check_numbers(schema: Mapping[str, object]) -> None:
    for key in (*LOWER_BOUNDS, *UPPER_BOUNDS):
        bound = schema.get(key)
        if not _is_number(bound) or _is_held(bound):
            continue
        if key in LOWER_BOUNDS or bound < LIMIT - 1:  # greater maxima are lowered to it
            raise ValueError(f"{key} is {shown(bound)}, which has more digits than can be enforced")
    values = [schema.get("const"), schema.get("enum")]
    while values:
        value = values.pop()
        if is_object(value):
            values.extend(value.values())
        elif is_list(value):
            values.extend(value)
        elif _is_integer(value) and not _is_held(value):
            raise ValueError(f"{shown(value)} has more digits than can be enforced")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, float) or _is_integer(value)  # draft 4 has booleans as bounds


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_held(value: float) -> bool:
    return -LIMIT < value < LIMIT and float(value) == value
