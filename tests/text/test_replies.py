"""Reasoning and calls of tools, taken out of a reply in any pieces."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from pathlib import Path

import pytest
from llguidance import LLMatcher

from nanofw.contracts.reply_format import ToolCall, call_schema
from nanofw.errors import ConfigError
from nanofw.text.replies import ReplyPart, ReplyReader
from nanofw.text.reply_formats import (
    REASONING_FORMATS,
    HermesFormat,
    find_tool_format,
    formats_of,
)

DOCS = Path(__file__).parents[2] / "docs"
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
        reader = ReplyReader(HermesFormat(), reasoning=REASONING_FORMATS["think"])
        assert parts_of(reader, pieces) == expected
    assert parts_of(ReplyReader(), [reply]) == [ReplyPart(content=reply)]


def test_a_prompt_may_have_begun_the_reasoning() -> None:
    reader = ReplyReader(reasoning=REASONING_FORMATS["think"], in_reasoning=True)
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
        find_tool_format("hermess")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that docs/plugins/reply_format.md shows, and a broken one, installed."""
    text = (DOCS / "plugins" / "reply_format.md").read_text(encoding="utf-8")
    code, entries = re.findall(r"```(?:python|toml)\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_formats.py").write_text(code, encoding="utf-8")
    info = tmp_path / "my_formats-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: my-formats\nVersion: 1.0\n", encoding="utf-8")
    names = entries.replace("project.entry-points.", "").replace('"', "")
    broken = "broken = nothing_there:Broken\n"
    names = names.replace("tool_formats]\n", f"tool_formats]\n{broken}", 1)
    (info / "entry_points.txt").write_text(names, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("package")
def test_a_package_adds_formats_as_its_page_says() -> None:
    template = "{{ messages }} <reflect> <call:"
    found = formats_of("auto", "auto", lambda text: text in template)
    assert found.tools is not None
    assert found.reasoning is not None
    reply = '<reflect>hm</reflect>so <call:f>{"a": 1}</call><call:g>no</call>'
    for size in (1, 3, len(reply)):
        reader = ReplyReader(found.tools, reasoning=found.reasoning)
        pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
        assert parts_of(reader, pieces) == [
            ReplyPart(reasoning="hm"),
            ReplyPart(content="so "),
            ReplyPart(call=ToolCall("f", '{"a": 1}')),
            ReplyPart(content="<call:g>no</call>"),
        ]
    functions = [{"name": "f", "parameters": {"type": "object", "properties": {}}}, {"name": "g"}]
    grammar = LLMatcher.grammar_from_lark(found.tools.grammar(functions, several=True))
    assert not LLMatcher.validate_grammar(grammar)
    with pytest.raises(ConfigError, match=r"format 'broken' \(nothing_there:Broken\) cannot be"):
        formats_of("broken", "none", lambda text: False)
