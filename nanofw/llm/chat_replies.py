"""Replies of chats, taken apart: content, reasoning, calls of tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from nanofw.config.load import LoadedConfig
from nanofw.llm.results import RequestResult, StreamEvent
from nanofw.narrowing import is_object
from nanofw.text.replies import ReplyReader
from nanofw.text.reply_formats import ReplyFormats, formats_of

_STRUCTURED = "structured"


def formats_of_run(loaded: LoadedConfig, template_has: Callable[[str], bool]) -> ReplyFormats:
    """How the model of a run writes, as its configuration or the chat template says."""
    section = loaded.config.server
    return formats_of(section.tool_format, section.reasoning, template_has)


def chat_formats(formats: ReplyFormats, record: Mapping[str, object]) -> ReplyFormats:
    """Those of a model that one chat's reply may have.

    Args:
        record: the chat as a prompt: without tools there are no calls, and a reply that a grammar
            constrains has no reasoning.
    """
    arguments = record.get("arguments")
    is_free = not (is_object(arguments) and _STRUCTURED in arguments)
    return ReplyFormats(
        formats.tools if record.get("tools") else None, formats.reasoning if is_free else None
    )


def with_replies(result: RequestResult, formats: ReplyFormats) -> RequestResult:
    """The result of a chat with the reply of each of its samples."""
    reasoning, text = formats.reasoning, (result.prompt or "").rstrip()
    has_begun = reasoning is not None and text.endswith(reasoning.begin)
    outputs = [
        replace(
            output,
            reply=ReplyReader(formats.tools, reasoning=reasoning, in_reasoning=has_begun).read(
                output.text
            ),
        )
        for output in result.outputs
    ]
    return replace(result, outputs=outputs)


def event_with_replies(event: StreamEvent, formats: ReplyFormats) -> StreamEvent:
    """The same of an event, which may have a result."""
    if event.result is None:
        return event
    return replace(event, result=with_replies(event.result, formats))
