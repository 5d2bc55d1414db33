"""What a value from JSON, from YAML or from a user is, told to the reader and the type checker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

# An object of JSON whose values its reader knows.
JsonObject: TypeAlias = dict[str, Any]
# What a plugin claims: values by capability. docs/plugins/capabilities.md has their types.
Claims: TypeAlias = Mapping[str, Any]
# What `stats()` of an engine answers: counters and gauges by name; docs/measuring.md lists them.
Stats: TypeAlias = Mapping[str, Any]


def is_object(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether the value is an object of JSON: a mapping. Its keys are not looked at."""
    return isinstance(value, Mapping)


def is_dict(value: object) -> TypeGuard[dict[str, object]]:
    """Whether the value is an object of JSON that can be changed. Its keys are not looked at."""
    return isinstance(value, dict)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether the value is a number of JSON, which true and false are not."""
    return type(value) in (int, float)


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Whether the value is a list or a tuple."""
    return isinstance(value, (list, tuple))
