"""Which tools a chat may, must or must not call."""

from __future__ import annotations

from nanofw.contracts.reply_format import ToolFormat
from nanofw.narrowing import JsonObject, is_list, is_object
from nanofw.server.errors import ApiError
from nanofw.server.parameters import constrain
from nanofw.server.reading import Reader
from nanofw.server.schemas import ChatRequest, NamedTool

_BY_NAME = ("properties", "$defs", "definitions")
_PARTS = ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf")
_TOGETHER = frozenset(
    {"allOf", "not", "if", "dependentSchemas", "unevaluatedProperties", "patternProperties"}
)
"""With these, parts of a schema that stand apart describe one object."""


def apply_tools(record: JsonObject, request: ChatRequest, reader: Reader) -> ToolFormat | None:
    """How calls in the reply are written; None: there will not be any.

    A call that is forced is constrained by a grammar: the function's name, and arguments that its
    schema allows.

    Args:
        record: the prompt, which gets the grammar.

    Raises:
        ApiError: the parameters contradict each other, or this server cannot do it.
    """
    _check(request)
    if not request.tools:
        return None
    choice = request.tool_choice or "auto"
    if choice == "none":
        del record["tools"]
        return None
    written = reader.tools
    if written is None:
        reason = (
            "tools are not supported by this model: its chat template does not say how calls are "
            "written; server.tool_format names a format"
        )
        raise ApiError(400, reason, param="tools")
    if choice == "auto":
        if request.parallel_tool_calls is False:  # the reply ends with its first call
            stops = record.get("stop", ())
            record["stop"] = [*([stops] if isinstance(stops, str) else stops), written.end]
        return written
    functions = [tool["function"] for tool in record["tools"]]
    if isinstance(choice, NamedTool):
        functions = [item for item in functions if item["name"] == choice.function.name]
    several = not isinstance(choice, NamedTool) and request.parallel_tool_calls is not False
    functions = [
        {name: closed(value) if name == "parameters" else value for name, value in item.items()}
        for item in functions
    ]
    grammar = written.grammar(functions, several=several)
    constrain(record, {"lark": grammar}, "tool_choice", reader.limits, reader.defaults)
    return written


def closed(schema: object) -> object:
    """The same schema, in which objects have no properties but those that it names.

    Clients leave `additionalProperties: false` out, or remove it, and a model that may add
    properties may never end. What a schema says of further properties holds.
    """
    try:
        return schema if _is_composed(schema) else _closed(schema)
    except RecursionError:
        return schema


def _is_composed(schema: object) -> bool:
    if is_list(schema):
        return any(map(_is_composed, schema))
    if not is_object(schema):
        return False
    also = {"$ref", "anyOf", "oneOf"} if "properties" in schema else set[str]()
    return bool((_TOGETHER | also) & schema.keys()) or any(map(_is_composed, schema.values()))


def _closed(schema: object) -> object:
    if is_list(schema):
        return [_closed(part) for part in schema]
    if not is_object(schema):
        return schema
    made: dict[str, object] = {}
    for key, value in schema.items():
        if key in _BY_NAME and is_object(value):
            made[key] = {name: _closed(part) for name, part in value.items()}
        else:
            made[key] = _closed(value) if key in _PARTS else value
    if is_object(schema.get("properties")):
        made.setdefault("additionalProperties", False)
    return made


def _check(request: ChatRequest) -> None:
    tools, choice = request.tools or [], request.tool_choice
    if not tools:
        for name in ("tool_choice", "parallel_tool_calls"):
            if getattr(request, name) not in (None, "none", "auto"):
                raise ApiError(400, f"{name} needs tools", param=name)
        return
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise ApiError(400, "two tools have the same name", param="tools")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        reason = f"tool_choice names {choice.function.name[:128]!r}, which is not among the tools"
        raise ApiError(400, reason, param="tool_choice")
    if choice not in (None, "none", "auto") and request.response_format is not None:
        reason = "tool_choice forces a call, so the reply cannot have a response_format"
        raise ApiError(400, reason, param="response_format")
