"""Faults that people found in tokenizer files and chat templates, by their ids."""

from __future__ import annotations

from typing import Any

import pytest

from nanofw.text.chat import ChatTemplate
from tests.fuzz.chats import CHATML, PARTS, REASONING, rendered_here, rendered_there

USER = {"role": "user", "content": "Hi"}


def rendered(template: str, *messages: dict[str, Any], **arguments: Any) -> str:
    """The text, which is what transformers makes of it, too."""
    arguments = arguments or {"add_generation_prompt": False}
    case = (template, {}, {"messages": list(messages), **arguments})
    text = rendered_here(case)
    assert text == rendered_there(case)
    assert text is not None
    return text


@pytest.mark.parametrize("text", ["It is ", "\n\n", "```python\n", "", " ", "assistant"])
def test_F040_a_continued_message_keeps_its_end(text: str) -> None:
    last = {"role": "assistant", "content": text}
    template = "{% for m in messages %}{{ m.content }}<end>\nassistant{% endfor %}"
    assert rendered(template, USER, last, continue_final_message=True) == (
        f"Hi<end>\nassistant{text}"
    )


def test_F040_the_last_text_of_parts_is_continued() -> None:
    parts = [{"type": "text", "text": "A cat "}, {"type": "image"}]
    last = {"role": "assistant", "content": parts}
    assert rendered(PARTS, USER, last, continue_final_message=True).endswith("A cat ")


def test_F040_a_prompt_ends_in_one_way() -> None:
    chat = ChatTemplate({"default": CHATML}, {})
    with pytest.raises(ValueError, match="exclude each other"):
        chat.render([USER], continue_final_message=True, add_generation_prompt=True)


def test_F041_null_keys_are_dropped() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert "None" not in rendered(CHATML, USER, message)


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "thinking"])
def test_F042_reasoning_has_every_name(key: str) -> None:
    message = {"role": "assistant", "content": "4", key: "2 + 2"}
    assert "<think>2 + 2</think>" in rendered(REASONING, USER, message)
    assert "(2 + 2)" in rendered("{{ '(' + messages[0].thinking + ')' }}", message)
