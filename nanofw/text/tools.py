"""Tools as templates take them: JSON descriptions, also of Python functions."""

from __future__ import annotations

import contextlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from nanofw.errors import shown
from nanofw.narrowing import is_list, is_object
from nanofw.text.messages import plain


def check_tools(tools: object) -> list[dict[str, object]] | None:
    """Tools as a list of JSON descriptions.

    Raises:
        ValueError: it is not a list of objects and functions, or a function cannot be described.
    """
    if tools is None:
        return None
    if not is_list(tools):
        raise ValueError(f"tools must be a list of objects or functions, not {shown(tools)}")
    return [_tool(index, tool) for index, tool in enumerate(tools)]


def _tool(index: int, tool: object) -> dict[str, object]:
    if is_object(tool):
        return {key: plain(item) for key, item in tool.items()}
    if inspect.isfunction(tool) or inspect.ismethod(tool):
        return describe_function(tool)
    raise ValueError(f"tool {index} must be an object or a function, not {shown(tool)}")


def describe_function(function: Callable[..., object]) -> dict[str, object]:
    """The description of a function, from its signature and its docstring.

    Raises:
        ValueError: the function has no docstring, or a parameter no type or no description.
    """
    name = function.__name__
    doc = inspect.getdoc(function)
    if not doc:
        raise ValueError(f"tool {name} has no docstring that says what it does")
    sections = _sections(doc)
    descriptions = _descriptions(sections.get("Args", []))
    try:
        hints = typing.get_type_hints(function)
        parameters = _parameters(function, hints, descriptions)
    except (ValueError, TypeError, NameError) as error:
        raise ValueError(f"tool {name} cannot be described: {error}") from None
    made: dict[str, object] = {
        "name": name,
        "description": "\n".join(sections[""]).strip(),
        "parameters": parameters,
    }
    with contextlib.suppress(ValueError, KeyError):  # the model never writes what is returned
        returned = made["return"] = json_type(hints["return"])
        if text := " ".join(line.strip() for line in sections.get("Returns", [])).strip():
            returned["description"] = text
    return {"type": "function", "function": made}


def _parameters(
    function: Callable[..., object], hints: Mapping[str, object], descriptions: Mapping[str, str]
) -> dict[str, object]:
    properties: dict[str, object] = {}
    required: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in ("self", "cls") and name not in hints:
            continue
        for what, known in (("type", hints), ("description in its docstring", descriptions)):
            if name not in known:
                raise ValueError(f"its parameter {name!r} has no {what}")
        properties[name] = {**json_type(hints[name]), "description": descriptions[name]}
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
    made: dict[str, object] = {"type": "object", "properties": properties}
    return {**made, "required": required} if required else made


_UNIONS: tuple[object, ...] = (typing.Union, types.UnionType)
_PLAIN_TYPES: dict[object, dict[str, object]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
}


def json_type(hint: object) -> dict[str, object]:
    """The JSON schema of a type hint. Raises ValueError for one that JSON does not have."""
    kind: object = typing.get_origin(hint)
    arguments: tuple[object, ...] = typing.get_args(hint)
    if kind is None and isinstance(hint, type) and issubclass(hint, Enum):
        return _choice_type([member.value for member in hint])
    if kind is None and hint in _PLAIN_TYPES:
        return dict(_PLAIN_TYPES[hint])
    if kind is typing.Literal:
        return _choice_type(list(arguments))
    if kind in _UNIONS:
        return _union_type(arguments)
    if kind is list:
        return {"type": "array", "items": json_type(arguments[0])}
    if kind is tuple and len(arguments) > 1 and ... not in arguments:
        return {"type": "array", "prefixItems": [json_type(item) for item in arguments]}
    if kind is dict and len(arguments) > 1:
        return {"type": "object", "additionalProperties": json_type(arguments[1])}
    raise ValueError(f"the type {hint!r} has no JSON schema; give the tool as a JSON description")


def _choice_type(values: list[object]) -> dict[str, object]:
    if not values or any(
        type(value) not in (int, float, str, bool, type(None)) for value in values
    ):
        raise ValueError(f"{values!r} cannot all be written as JSON values")
    names = list(dict.fromkeys(str(_PLAIN_TYPES[type(value)]["type"]) for value in values))
    return {"type": names[0] if len(names) == 1 else names, "enum": values}


def _union_type(kinds: Sequence[object]) -> dict[str, object]:
    made = [json_type(kind) for kind in kinds if kind is not type(None)]
    union: dict[str, object]
    if len(made) == 1:
        union = made[0]
    elif all(set(one) == {"type"} for one in made):
        names = sorted({str(one["type"]) for one in made})
        union = {"type": names[0] if len(names) == 1 else names}
    else:
        union = {"anyOf": made}
    return {**union, "nullable": True} if type(None) in kinds else union


_SECTION = re.compile(r"^(Args|Returns|Raises):\s*$")
_ENTRY = re.compile(r"^(\s*)(\w+)(?:\s*\([^()]*\))?:\s*(.*)$")


def _sections(doc: str) -> dict[str, list[str]]:
    """Lines of a docstring by section; those before the first one under an empty name."""
    made: dict[str, list[str]] = {"": []}
    name = ""
    for line in doc.splitlines():
        if match := _SECTION.match(line):
            name = match[1]
        else:
            made.setdefault(name, []).append(line)
    return made


def _descriptions(lines: Sequence[str]) -> dict[str, str]:
    """What an `Args` section says of each parameter."""
    made: dict[str, str] = {}
    name, indent = "", 0
    for line in filter(str.strip, lines):
        match = _ENTRY.match(line)
        if match and (not made or len(match[1]) <= indent):
            indent, name = len(match[1]), match[2]
            made[name] = match[3].strip()
        elif name:
            made[name] = f"{made[name]} {line.strip()}".strip()
    return made
