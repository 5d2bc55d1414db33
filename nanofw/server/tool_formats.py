"""How families of models write calls of tools in their text: a table that packages can extend.

A package adds a format by an entry point of the group `nanofw_tool_formats`, whose name is the
format's and whose value is a class that derives from `ToolFormat`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, ClassVar

from nanofw.errors import ConfigError, near
from nanofw.narrowing import is_list, is_object

GROUP = "nanofw_tool_formats"


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
        begin, end: what stands around a call in the text.
    """

    begin: ClassVar[str]
    end: ClassVar[str]

    @abstractmethod
    def read_call(self, text: str) -> ToolCall:
        """The call between `begin` and `end`. Raises ValueError when it is not one."""

    @abstractmethod
    def grammar(self, functions: Sequence[Mapping[str, Any]], *, several: bool) -> str:
        """What a text that calls one of the functions must match, in llguidance's Lark.

        Args:
            functions: with `name` and, if they take any, the JSON schema of their `parameters`.
            several: there may be more than one call.
        """


class HermesFormat(ToolFormat):
    """Hermes 2 and later, Qwen2.5, Qwen3: an object with `name` and `arguments` within tags."""

    begin = "<tool_call>"
    end = "</tool_call>"

    def read_call(self, text: str) -> ToolCall:
        value: object = json.loads(text)
        if not is_object(value) or not isinstance(name := value.get("name"), str):
            raise ValueError("a call is an object with a name")
        arguments = value.get("arguments", {})
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        if not is_object(arguments):
            raise ValueError("the arguments of a call are an object")
        return ToolCall(name, json.dumps(arguments, ensure_ascii=False))

    def grammar(self, functions: Sequence[Mapping[str, Any]], *, several: bool) -> str:
        more = ' ("\\n" one)*' if several else ""
        schema = json.dumps(call_schema(functions), ensure_ascii=False)
        return (
            f'start: one{more}\none: "{self.begin}\\n" call "\\n{self.end}"\ncall: %json {schema}\n'
        )


def call_schema(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON schema of an object with the name of a function and its arguments."""
    definitions: dict[str, object] = {}
    calls: list[dict[str, Any]] = []
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


FORMATS: Mapping[str, type[ToolFormat]] = {"hermes": HermesFormat}
"""Those that come with nanofw; `auto` takes the first whose tags the chat template has."""


def find_format(name: str) -> ToolFormat:
    """The format of a name.

    Raises:
        ConfigError: there is none, or it cannot be loaded.
    """
    key = "server.tool_format"
    if name in FORMATS:
        return FORMATS[name]()
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in installed:
        known = ["auto", "none", *FORMATS, *installed]
        hint = near(name, known, count=1) or f"; there are {', '.join(known)}"
        raise ConfigError(f"no tool format is named {name!r}{hint}", key=key)
    try:
        made: object = installed[name].load()()
    except Exception as error:
        raise ConfigError(f"tool format {name!r} cannot be loaded: {error}", key=key) from error
    if not isinstance(made, ToolFormat):
        raise ConfigError(f"tool format {name!r} is not a ToolFormat", key=key)
    return made
