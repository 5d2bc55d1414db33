"""Prompts from lists, files and standard input."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from nanofw.cli.inputs import file_prompts, listed_prompts
from nanofw.errors import ConfigError


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_prompts_of_the_configuration() -> None:
    prompts = list(listed_prompts(["a", {"prompt": "b"}]))
    assert [item.value for item in prompts] == ["a", {"prompt": "b"}]
    assert prompts[1].place == "input.prompts[1]"


def test_a_text_file_is_a_prompt_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "p.txt", b"\xef\xbb\xbfone\r\n\n  two \n{three\n")
    prompts = list(file_prompts(path))
    assert [item.value for item in prompts] == ["one", "  two ", "{three"]
    assert [item.place for item in prompts] == ["p.txt:1", "p.txt:3", "p.txt:4"]


@pytest.mark.parametrize("name", ["prompts", "p.data", "p.requests.2"])
def test_a_file_whose_name_says_nothing_is_told_apart_by_its_first_line(
    tmp_path: Path, name: str
) -> None:
    prompts = list(file_prompts(write(tmp_path / name, b'\n{"prompt": "a"}\n{"prompt": "b"}')))
    assert [item.value for item in prompts] == [{"prompt": "a"}, {"prompt": "b"}]
    assert [e.value for e in file_prompts(write(tmp_path / name, b"a\n{b\n"))] == ["a", "{b"]
    (braces,) = file_prompts(write(tmp_path / name, b"{placeholder} says"))
    assert "input.format=text" in str(braces.error)


def test_a_bad_line_of_jsonl_is_an_error_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", b'{"prompt": "a"}\n{"prompt": \n\xff\xfe\n"b"\n\n[1, 2]\n')
    prompts = list(file_prompts(path))
    assert [item.value for item in prompts] == [{"prompt": "a"}, None, None, "b", [1, 2]]
    assert str(prompts[1].error).startswith("p.jsonl:2: not JSON")
    assert "p.jsonl:3: the line is not UTF-8" in str(prompts[2].error)


@pytest.mark.parametrize("line", [b'{"prompt": "a", "prompt": "b"}', b'[{"a": {"b": 1, "b": 2}}]'])
def test_a_key_that_occurs_twice_is_told(tmp_path: Path, line: bytes) -> None:
    prompts = list(file_prompts(write(tmp_path / "p.jsonl", b'"x"\n' + line)))
    assert [item.error is None for item in prompts] == [True, False]
    assert "occurs twice" in str(prompts[1].error)


@pytest.mark.parametrize("name", ["p.JSONL", "p.Json", "p.ndJSON"])
def test_the_suffix_may_be_written_in_capitals(tmp_path: Path, name: str) -> None:
    prompts = list(file_prompts(write(tmp_path / name, b'{"prompt": "a"}')))
    assert [item.value for item in prompts] == [{"prompt": "a"}]


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b'{"prompt": "a"}\n"b"\n', [{"prompt": "a"}, "b"]), (b"a\n{b\n", ["a", "{b"])],
)
def test_standard_input_is_told_apart_by_its_first_line(
    content: bytes, expected: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))
    assert [item.value for item in file_prompts("-")] == expected


def test_what_was_guessed_wrongly_names_the_key_that_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"\n{first, a prompt\nsecond\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))
    first, second = (str(item.error) for item in file_prompts("-"))
    hint = "(taken for JSONL as line 2 begins with {; input.format=text reads a prompt a line)"
    assert first.startswith("stdin:2: not JSON")
    assert first.endswith(hint)
    assert second.endswith(hint)
    path = write(tmp_path / "p.json", b"first\n")
    assert "by the file's suffix, .json; input.format=text" in str(next(file_prompts(path)).error)
    assert "input.format" not in str(next(file_prompts(path, "jsonl")).error)


def test_the_format_can_be_said(tmp_path: Path) -> None:
    path = write(tmp_path / "p.data", b'"a"\n')
    assert next(file_prompts(path, "jsonl")).value == "a"
    assert next(file_prompts(path, "text")).value == '"a"'


def test_a_missing_file_names_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"input.file: cannot read .*none.txt: No such file"):
        list(file_prompts(tmp_path / "none.txt"))
