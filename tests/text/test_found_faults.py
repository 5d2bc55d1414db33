"""Faults that people found in tokenizer files and chat templates, by their ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nanofw.errors import ModelError
from nanofw.text.chat import ChatTemplate, load_chat_template
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


CONTENT = b"{% for m in messages %}{{ m.content }}{% endfor %}"
NESTED = b"{% if true %}" * 3000 + b"{% endif %}" * 3000
BROKEN = {
    "break": (b"{% break %}", "cannot be compiled"),
    "nested": (b"{% for m in messages %}" * 300 + b"{% endfor %}" * 300, "chat template 'default'"),
    "deep": (NESTED, "chat template 'default'"),
    "syntax": (b"a\n{% if %}", "line 2"),
    "not_utf8": (b"\xff\xfe{{ messages }}", "cannot be read"),
    "large": (b" " * (17 << 20), "larger than"),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("is_further", [False, True])
def test_F039_a_broken_template_ends_only_the_chats_that_use_it(
    tmp_path: Path, case: str, is_further: bool
) -> None:
    content, words = BROKEN[case]
    folder = tmp_path / "additional_chat_templates" if is_further else tmp_path
    folder.mkdir(exist_ok=True)
    path = folder / ("rag.jinja" if is_further else "chat_template.jinja")
    path.write_bytes(content)
    if is_further:
        (tmp_path / "chat_template.jinja").write_bytes(CONTENT)
    chat = load_chat_template(tmp_path)
    assert chat.variables == frozenset()
    for _ in range(2):
        with pytest.raises(ModelError) as error:
            chat.render([USER], template="rag" if is_further else None)
        assert str(path) in str(error.value)
        assert words.replace("default", "rag" if is_further else "default") in str(error.value)
        assert len(str(error.value)) < 600
    if is_further:
        assert chat.render([USER]) == "Hi"


@pytest.mark.parametrize("content", [b"{", b"{}", b"[]", b'{"chat_template": 3}', b'{"a": "\xff"}'])
def test_F039_a_broken_file_of_a_template_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "chat_template.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"chat_template\.json") as error:
        load_chat_template(tmp_path).render([USER])
    assert str(error.value).count("chat_template.json") == 1
