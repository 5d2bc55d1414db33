"""Tokenizer files of a checkpoint folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nanofw.errors import ModelError
from nanofw.text.tokenizer import FileTokenizer, load_tokenizer

Build = Callable[[str], FileTokenizer]


@pytest.fixture
def folder(tmp_path: Path, build_tokenizer: Build) -> Path:
    build_tokenizer("byte_level").backend.save(str(tmp_path / "tokenizer.json"))
    write_config(tmp_path, bos_token="<s>", eos_token={"content": "</s>", "special": True})
    return tmp_path


def write_config(folder: Path, **config: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def test_encode_and_decode_a_folder(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    token_ids = tokenizer.encode("Zwölf Boxkämpfer")
    assert tokenizer.decode(token_ids) == "Zwölf Boxkämpfer"
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == (2,)


def test_special_tokens_in_a_text_are_single_ids(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("</s>") == [2]
    assert tokenizer.decode([2]) == ""
    assert tokenizer.decode([2], skip_special_tokens=False) == "</s>"


@pytest.mark.parametrize(("setting", "expected"), [(True, [1]), (False, []), (None, [])])
def test_add_bos_token_decides(folder: Path, setting: bool | None, expected: list[int]) -> None:
    write_config(folder, bos_token="<s>", add_bos_token=setting)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("") == expected
    assert tokenizer.encode("", add_special_tokens=False) == []


def test_add_bos_token_false_takes_away_what_the_file_adds(folder: Path) -> None:
    from tokenizers import Tokenizer, processors

    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    backend.save(str(folder / "tokenizer.json"))
    assert load_tokenizer(folder).encode("a")[0] == 1
    write_config(folder, bos_token="<s>", add_bos_token=False)
    assert load_tokenizer(folder).encode("a")[0] != 1
    assert load_tokenizer(folder).encode("<s>a")[0] == 1


def test_truncation_of_the_file_does_not_cut_prompts(folder: Path) -> None:
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    backend.save(str(folder / "tokenizer.json"))
    text = "no prompt is cut or filled up without a word"
    assert load_tokenizer(folder).decode(load_tokenizer(folder).encode(text)) == text
    assert len(load_tokenizer(folder).encode("a")) == 1


def test_a_folder_without_a_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer.json.*token ids"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_broken_file_is_named(folder: Path, name: str) -> None:
    (folder / name).write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match=name):
        load_tokenizer(folder)
