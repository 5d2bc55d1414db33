"""How models write calls of tools and reasoning in their text: what an outside package fills in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nanofw.narrowing import JsonObject, is_list, is_object


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function.

    Attributes:
        arguments: JSON text of an object.
    """

    name: str
    arguments: str


class ToolFormat(ABC):
    """One way of writing calls.

    Attributes:
        begin: the tag before a call.
        end: the tag after a call.
    """

    begin: ClassVar[str]
    end: ClassVar[str]

    @abstractmethod
    def read_call(self, text: str) -> ToolCall:
        """The call between `begin` and `end`. Raises ValueError if the text is not a call."""

    @abstractmethod
    def grammar(self, functions: Sequence[Mapping[str, Any]], *, several: bool) -> str:
        """A grammar in llguidance's Lark for a text that calls one of the functions.

        Args:
            functions: with `name` and, if they take any, the JSON schema of their `parameters`.
            several: there may be more than one call.
        """


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The tags around the reasoning at the beginning of a reply."""

    begin: str
    end: str


def call_schema(functions: Sequence[Mapping[str, Any]]) -> JsonObject:
    """The JSON schema of an object with the name of a function and its arguments."""
    definitions: dict[str, object] = {}
    calls: list[JsonObject] = []
    for number, function in enumerate(functions):
        key = f"arguments_{number}"
        parameters = function.get("parameters") or {"type": "object"}
        definitions[key] = _moved(parameters, f"#/$defs/{key}")
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": function["name"]},
                    "arguments": {"$ref": f"#/$defs/{key}"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {
        "anyOf": calls,
        "$defs": definitions,
        "x-guidance": {"whitespace_pattern": " ?"},
    }


def _moved(schema: object, place: str) -> object:
    """A schema whose references to itself follow it to another place."""
    if is_object(schema):
        return {
            key: f"{place}{value[1:]}"
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _moved(value, place)
            for key, value in schema.items()
        }
    return [_moved(item, place) for item in schema] if is_list(schema) else schema
