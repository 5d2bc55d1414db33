"""Reasoning and calls of tools, taken out of a reply in any pieces."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from nanofw.errors import ConfigError
from nanofw.server.replies import ReplyPart, ReplyReader
from nanofw.server.tool_formats import HermesFormat, ToolCall, call_schema, find_format

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "<b>"}}\n</tool_call>'
CALLED = ReplyPart(call=ToolCall("f", '{"a": "<b>"}'))

REPLIES = [
    ("Hello < you", [ReplyPart(content="Hello < you")]),
    (CALL, [CALLED]),
    (f"I call. {CALL}\n{CALL}\n", [ReplyPart(content="I call. "), CALLED, CALLED]),
    (f"<think>\nhm <tool\n</think>\n\n{CALL}", [ReplyPart(reasoning="hm <tool\n"), CALLED]),
    ("<think>for ever", [ReplyPart(reasoning="for ever")]),
    (" <thin air", [ReplyPart(content=" <thin air")]),
    ("a <tool_call>no</tool_call> b", [ReplyPart(content="a <tool_call>no</tool_call> b")]),
    ("a <tool_call>[1]", [ReplyPart(content="a <tool_call>[1]")]),
    (CALL.removesuffix("\n</tool_call>"), [CALLED]),
    ("a</think>b", [ReplyPart(content="a</think>b")]),
]


def parts_of(reader: ReplyReader, pieces: list[str]) -> list[ReplyPart]:
    """Parts with their texts joined, as a client joins them."""
    made: list[ReplyPart] = []
    for part in [*(p for piece in pieces for p in reader.push(piece)), *reader.finish()]:
        last = made[-1] if made else ReplyPart()
        if part.call is None and last.call is None and bool(part.content) == bool(last.content):
            made[-1:] = [ReplyPart(last.content + part.content, last.reasoning + part.reasoning)]
        else:
            made.append(part)
    return made


@pytest.mark.parametrize(("reply", "expected"), REPLIES)
def test_parts_do_not_depend_on_the_pieces(reply: str, expected: list[ReplyPart]) -> None:
    dice = random.Random(0)
    for _ in range(20):
        places = sorted(dice.sample(range(len(reply)), k=dice.randrange(min(9, len(reply)))))
        ends = [0, *places, len(reply)]
        pieces = [reply[a:b] for a, b in pairwise(ends)]
        reader = ReplyReader(HermesFormat(), reasoning=True)
        assert parts_of(reader, pieces) == expected
    assert parts_of(ReplyReader(), [reply]) == [ReplyPart(content=reply)]


def test_a_prompt_may_have_begun_the_reasoning() -> None:
    reader = ReplyReader(reasoning=True, in_reasoning=True)
    expected = [ReplyPart(reasoning="why"), ReplyPart(content="so")]
    assert parts_of(reader, ["\nwhy</thi", "nk>\n", "\nso"]) == expected


def test_references_of_parameters_follow_them() -> None:
    parameters = {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {}}}
    schema = call_schema([{"name": "f"}, {"name": "g", "parameters": parameters}])
    assert schema["$defs"]["arguments_1"]["properties"]["a"] == {
        "$ref": "#/$defs/arguments_1/$defs/b"
    }
    assert schema["anyOf"][0]["properties"]["name"] == {"const": "f"}


def test_a_format_that_there_is_not_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        find_format("hermess")
