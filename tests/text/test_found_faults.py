"""Faults that people found in tokenizer files and chat templates, by their ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nanofw.text.chat import ChatTemplate
from nanofw.text.tokenizer import load_tokenizer
from tests.fuzz.chats import CHATML, PARTS, REASONING, rendered_here, rendered_there
from tests.fuzz.tokenizer_folders import read_here, read_there, write
from tests.text.conftest import byte_level

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


IM_START = {"content": "<|im_start|>", "special": True, "normalized": False}
FLAGS = ("lstrip", "rstrip", "single_word")


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": {"added_tokens_decoder": {"500": IM_START}}},
        {"tokenizer_config.json": {"additional_special_tokens": ["<|im_start|>"]}},
        {"tokenizer_config.json": {"extra_special_tokens": ["<|im_start|>"]}},
        {"tokenizer_config.json": {"eos_token": "<|im_start|>", "pad_token": "<pad>"}},
        {"added_tokens.json": {"<|im_start|>": 500}},
        {"special_tokens_map.json": {"eos_token": "<|im_start|>"}},
    ],
    ids=["decoder", "additional", "extra", "named", "added_tokens", "map"],
)
def test_F038_tokens_that_only_other_files_name(tmp_path: Path, files: dict[str, Any]) -> None:
    folder = write(tmp_path, {"tokenizer.json": json.loads(byte_level().to_str()), **files})
    ours = read_here(folder)
    assert ours == read_there(folder)
    assert "<|im_start|>" in ours["text"]
    tokenizer = load_tokenizer(folder)
    assert len(tokenizer.encode("<|im_start|>", add_special_tokens=False)) == 1


def test_F038_a_token_that_is_special_only_in_the_configuration(tmp_path: Path) -> None:
    tool = {
        "content": "<tool>",
        "special": True,
        "normalized": False,
        **dict.fromkeys(FLAGS, False),
    }
    config = {"added_tokens_decoder": {"420": tool}}
    files = {"tokenizer.json": json.loads(byte_level().to_str()), "tokenizer_config.json": config}
    folder = write(tmp_path, files)
    assert read_here(folder) == read_there(folder)
    assert "<tool>" not in read_here(folder)["without_special"]
