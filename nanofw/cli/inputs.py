"""Where `nanofw run` takes its prompts from: a list, a file, or standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from nanofw.cli.files import STDIN
from nanofw.config.schema import InputSection
from nanofw.errors import ConfigError
from nanofw.llm.prompts import parse_prompt

if TYPE_CHECKING:
    from nanofw.config.load import LoadedConfig

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
TEXT_SUFFIXES = (".txt", ".text", ".md")
MAX_LINE_BYTES = 16 << 20
"""Of one prompt."""
MAX_BYTES = 1 << 30
"""Of all prompts together, which are held until they are finished."""
MAX_PROMPTS = 1_000_000


@dataclass(frozen=True, slots=True)
class InputPrompt:
    """One prompt as it was found.

    Attributes:
        value: what `parse_prompt` takes.
        place: where it came from, for messages: `prompts.jsonl:3`.
        error: why it cannot be read, or None.
    """

    value: object
    place: str
    error: str | None = None


def check_prompts(loaded: LoadedConfig) -> None:
    """Raise ConfigError, with key and line, for a prompt of the configuration that is not one."""
    for index, prompt in enumerate(loaded.config.input.prompts or ()):
        try:
            parse_prompt(prompt, loaded.config.sampling)
        except ValueError as error:
            raise loaded.error(str(error), ("input", "prompts", index)) from None


def read_prompts(section: InputSection) -> list[InputPrompt]:
    """The prompts that the configuration names.

    Raises:
        ConfigError: there are none, or a file cannot be read.
    """
    prompts: list[InputPrompt] = []
    if section.prompts is not None:
        prompts += listed_prompts(section.prompts)
    elif section.file is not None:
        name = STDIN if section.file.name == STDIN else section.file
        prompts += file_prompts(name, section.format)
    if not prompts:
        raise ConfigError("there are no prompts: set input.prompts or input.file", key="input")
    return prompts


def listed_prompts(prompts: Sequence[object]) -> Iterator[InputPrompt]:
    """The prompts of `input.prompts`."""
    for index, prompt in enumerate(prompts):
        yield InputPrompt(prompt, f"input.prompts[{index}]")


def file_prompts(path: str | Path, layout: str = "auto") -> Iterator[InputPrompt]:
    """The prompts of a file, or of standard input when the path is `-`.

    Args:
        layout: `jsonl`: an object or a string a line; `text`: a prompt a line; `auto`: by the
            suffix of the file, and where that says nothing, and on standard input, by whether
            its first line is an object. Blank lines are skipped.

    Raises:
        ConfigError: the file cannot be opened.
    """
    if str(path) == STDIN:
        yield from _prompts_of_lines(sys.stdin.buffer, "stdin", layout)
        return
    path, guess = Path(path), ""
    suffix = path.suffix.lower()
    if layout == "auto" and suffix in JSONL_SUFFIXES:
        layout, guess = "jsonl", f"taken for JSONL by the file's suffix, {path.suffix}"
    elif layout == "auto" and suffix in TEXT_SUFFIXES:
        layout = "text"
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", key="input.file") from error
    with file:
        yield from _prompts_of_lines(file, path.name, layout, guess)


def _prompts_of_lines(
    file: BinaryIO, name: str, layout: str, guess: str = ""
) -> Iterator[InputPrompt]:
    """`guess`: why lines are taken for JSON when the configuration does not say so."""
    for number, line in enumerate(_lines(file, name), 1):
        place = f"{name}:{number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            yield InputPrompt(None, place, f"{place}: the line is not UTF-8: {error.reason}")
            continue
        if not text.strip():
            continue
        if layout == "auto":
            layout = "jsonl" if text.lstrip().startswith("{") else "text"
            guess = f"taken for JSONL as line {number} begins with {{"
        yield _json_prompt(text, place, guess) if layout == "jsonl" else InputPrompt(text, place)


def _lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The lines of a file, which may be endless. Raises ConfigError at the bounds."""
    num_bytes = 0
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
        num_bytes += len(line)
        problem = ""
        if len(line) > MAX_LINE_BYTES:
            problem = f"the line is longer than {MAX_LINE_BYTES:,} bytes"
        elif num_bytes > MAX_BYTES:
            problem = f"the prompts are longer than {MAX_BYTES:,} bytes; make several runs"
        elif number > MAX_PROMPTS:
            problem = f"there are more than {MAX_PROMPTS:,} lines; make several runs"
        if problem:
            raise ConfigError(problem, key="input.file", source=name, line=number)
        yield line


class _TwiceError(ValueError):
    """An object has a key twice: one of the two would be dropped without a word."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _TwiceError(f"the key {twice!r} occurs twice")
    return made


def _json_prompt(text: str, place: str, guess: str) -> InputPrompt:
    try:
        value = json.loads(text, object_pairs_hook=_unique)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
        return InputPrompt(value, place)
    except UnicodeEncodeError:
        return InputPrompt(
            None, place, f"{place}: half of a surrogate pair (\\ud800 to \\udfff) is not text"
        )
    except _TwiceError as error:
        return InputPrompt(None, place, f"{place}: {error}")
    except ValueError as error:
        hint = f" ({guess}; input.format=text reads a prompt a line)" if guess else ""
        return InputPrompt(None, place, f"{place}: not JSON: {error}{hint}")
    except RecursionError:
        return InputPrompt(None, place, f"{place}: JSON nested too deeply")
