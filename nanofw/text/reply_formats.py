"""The formats of tool calls and of reasoning: those that come with nanofw, and those of packages.

A package adds one by an entry point, whose name is the format's: of the group
`nanofw_tool_formats` with a class that derives from `ToolFormat`, or of the group
`nanofw_reasoning_formats` with a `ReasoningFormat`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from nanofw.contracts.reply_format import ReasoningFormat, ToolCall, ToolFormat, call_schema
from nanofw.errors import ConfigError, near
from nanofw.narrowing import is_object

logger: logging.Logger = logging.getLogger(__name__)

TOOL_GROUP, REASONING_GROUP = "nanofw_tool_formats", "nanofw_reasoning_formats"
TOOL_KEY, REASONING_KEY = "server.tool_format", "server.reasoning"
AUTO, NONE = "auto", "none"


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


TOOL_FORMATS: Mapping[str, type[ToolFormat]] = {"hermes": HermesFormat}
"""Those that come with nanofw; `auto` takes the first whose tags the chat template has."""
REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "think": ReasoningFormat("<think>", "</think>"),
}
"""The same for reasoning."""


@dataclass(frozen=True, slots=True)
class ReplyFormats:
    """How a model writes.

    Attributes:
        tools: None: how calls are written is not known.
        reasoning: None: its replies have none.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None


def formats_of(tools: str, reasoning: str, template_has: Callable[[str], bool]) -> ReplyFormats:
    """The formats of these names; `auto`: the first whose tags the chat template has.

    Args:
        template_has: whether the model's chat template has a text.

    Raises:
        ConfigError: a name that there is not, or a format that cannot be loaded.
    """
    found_tools = _first(_all_tools(), template_has) if tools == AUTO else find_tool_format(tools)
    if reasoning == AUTO:
        return ReplyFormats(found_tools, _first(_all_reasoning(), template_has))
    return ReplyFormats(found_tools, find_reasoning_format(reasoning))


def _first(
    formats: Iterator[ToolFormat] | Iterator[ReasoningFormat], template_has: Callable[[str], bool]
) -> Any:
    return next((one for one in formats if template_has(one.begin)), None)


def _all_tools() -> Iterator[ToolFormat]:
    yield from (kind() for kind in TOOL_FORMATS.values())
    for entry in _installed(TOOL_GROUP).values():
        try:
            yield _tool_format(entry)
        except ConfigError as error:  # the run did not choose it
            logger.warning("%s", error)


def _all_reasoning() -> Iterator[ReasoningFormat]:
    yield from REASONING_FORMATS.values()
    for entry in _installed(REASONING_GROUP).values():
        try:
            yield _reasoning_format(entry)
        except ConfigError as error:  # the run did not choose it
            logger.warning("%s", error)


def find_tool_format(name: str) -> ToolFormat | None:
    """The format of a name. Raises `ConfigError` as `formats_of`."""
    if name == NONE:
        return None
    if name in TOOL_FORMATS:
        return TOOL_FORMATS[name]()
    return _tool_format(_entry(name, TOOL_GROUP, TOOL_KEY, TOOL_FORMATS))


def find_reasoning_format(name: str) -> ReasoningFormat | None:
    """The format of a name. Raises `ConfigError` as `formats_of`."""
    if name == NONE:
        return None
    if name in REASONING_FORMATS:
        return REASONING_FORMATS[name]
    return _reasoning_format(_entry(name, REASONING_GROUP, REASONING_KEY, REASONING_FORMATS))


def _installed(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in sorted(entry_points(group=group), key=_name)}


def _name(entry: EntryPoint) -> str:
    return entry.name


def _entry(name: str, group: str, key: str, built_in: Mapping[str, object]) -> EntryPoint:
    installed = _installed(group)
    if name in installed:
        return installed[name]
    known = [AUTO, NONE, *built_in, *installed]
    hint = near(name, known, count=1) or f"; there are {', '.join(known)}"
    raise ConfigError(f"no format is named {name!r}{hint}", key=key)


def _tool_format(entry: EntryPoint) -> ToolFormat:
    made = _loaded(entry, TOOL_KEY, lambda value: value())
    if not isinstance(made, ToolFormat):
        raise ConfigError(f"tool format {entry.name!r} is not a ToolFormat", key=TOOL_KEY)
    return made


def _reasoning_format(entry: EntryPoint) -> ReasoningFormat:
    made = _loaded(entry, REASONING_KEY, lambda value: value)
    if not isinstance(made, ReasoningFormat) or not made.begin or not made.end:
        reason = f"reasoning format {entry.name!r} is not a ReasoningFormat with both tags"
        raise ConfigError(reason, key=REASONING_KEY)
    return made


def _loaded(entry: EntryPoint, key: str, make: Callable[[Any], object]) -> object:
    try:
        return make(entry.load())
    except Exception as error:
        reason = f"format {entry.name!r} ({entry.value}) cannot be loaded: {error}"
        raise ConfigError(reason, key=key) from error
