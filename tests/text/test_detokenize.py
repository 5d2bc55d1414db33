"""Streams of text equal decoding the whole."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import nanofw
from nanofw.text.byte_level import ByteTokenizer, byte_alphabet
from nanofw.text.tokenizer import FileTokenizer, Tokenizer, load_tokenizer
from tests.text.conftest import BUILDERS, SENTENCES

NUM_SEQUENCES = 2_000
REPLACEMENT = "\ufffd"
Build = Callable[[str], FileTokenizer]


def streamed(tokenizer: Tokenizer, token_ids: list[int], skip: bool) -> list[str]:
    stream = tokenizer.stream(skip_special_tokens=skip)
    return [*(stream.push_token(token_id) for token_id in token_ids), stream.finish()]


def assert_equals_whole(tokenizer: Tokenizer, token_ids: list[int], skip: bool = True) -> None:
    whole = tokenizer.decode(token_ids, skip_special_tokens=skip)
    assert "".join(streamed(tokenizer, token_ids, skip)) == whole, token_ids


def random_sequences(tokenizer: Tokenizer, count: int, seed: int) -> list[list[int]]:
    """Uniform ids, ids of multilingual text cut anywhere, and both mixed."""
    draw = random.Random(seed)
    texts = [tokenizer.encode(text, add_special_tokens=False) for text in SENTENCES]
    sequences: list[list[int]] = []
    for index in range(count):
        noise = [draw.randrange(tokenizer.vocab_size) for _ in range(draw.randrange(24))]
        text = draw.choice(texts)
        start = draw.randrange(len(text) + 1)
        part = text[start : start + draw.randrange(24)]
        sequences.append((noise, part, noise[:3] + part + noise[3:6])[index % 3])
    return sequences


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("name", list(BUILDERS))
def test_random_tokens_stream_as_the_whole(build_tokenizer: Build, name: str, skip: bool) -> None:
    tokenizer = build_tokenizer(name)
    for token_ids in random_sequences(tokenizer, NUM_SEQUENCES, seed=len(name)):
        assert_equals_whole(tokenizer, token_ids, skip)


@pytest.mark.parametrize(
    ("name", "prefix"), [("byte_level", ""), ("sentencepiece", ""), ("sentencepiece_no_strip", " ")]
)
def test_text_survives_the_round_trip(build_tokenizer: Build, name: str, prefix: str) -> None:
    tokenizer = build_tokenizer(name)
    for text in SENTENCES:
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        parts = streamed(tokenizer, token_ids, True)
        assert "".join(parts) == prefix + text
        assert all(REPLACEMENT not in part for part in parts)


def id_of(tokenizer: FileTokenizer, token: str) -> int:
    token_id = tokenizer.backend.token_to_id(token)
    assert token_id is not None
    return token_id


@pytest.mark.parametrize("text", ["ř", "😀", "你", "👩‍👩‍👧‍👦", "ňé中"])
def test_B058_a_character_comes_whole(build_tokenizer: Build, text: str) -> None:
    """Bytes of one character in 2-4 tokens: nothing until the last, and no U+FFFD."""
    tokenizer = build_tokenizer("byte_level")
    alphabet = {byte: character for character, byte in byte_alphabet().items()}
    token_ids = [id_of(tokenizer, alphabet[byte]) for byte in text.encode()]
    parts = streamed(tokenizer, token_ids, True)
    assert "".join(parts) == tokenizer.decode(token_ids) == text
    assert all(REPLACEMENT not in part for part in parts)
    assert all(part == "" or part in text for part in parts)


def test_B058_a_character_cut_off_is_marked_once_at_the_end(build_tokenizer: Build) -> None:
    tokenizer = build_tokenizer("byte_level")
    token_ids = [id_of(tokenizer, "ð"), id_of(tokenizer, "Ł")]
    assert streamed(tokenizer, token_ids, True) == ["", "", REPLACEMENT]


def test_special_tokens_are_left_out_and_other_added_tokens_are_text(
    build_tokenizer: Build,
) -> None:
    tokenizer = build_tokenizer("byte_level")
    ids = [id_of(tokenizer, token) for token in ("<s>", "<tool>", "žluť", "</s>")]
    assert streamed(tokenizer, ids, True) == ["", "<tool>", "žluť", "", ""]
    assert streamed(tokenizer, ids, False) == ["<s>", "<tool>", "žluť", "</s>", ""]


def test_an_id_outside_the_vocabulary_has_no_text(build_tokenizer: Build) -> None:
    for name in ("byte_level", "sentencepiece"):
        tokenizer = build_tokenizer(name)
        assert_equals_whole(tokenizer, [tokenizer.vocab_size + 5, 7, 8])


def test_a_decoder_that_cannot_stream_says_so(
    build_tokenizer: Build, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = FileTokenizer(build_tokenizer("wordpiece").backend, {})
    with caplog.at_level(logging.WARNING, logger="nanofw"):
        parts = streamed(tokenizer, [3, 4, 3], True)
    assert parts == ["", "", "", "ab a"]
    assert "WordPiece" in caplog.text


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece", "metaspace_unigram"])
def test_the_cost_is_linear_in_the_length(build_tokenizer: Build, name: str) -> None:
    """Sixteen times the tokens cost nowhere near 256 times the time."""
    tokenizer = build_tokenizer(name)
    draw = random.Random(3)
    token_ids = [draw.randrange(tokenizer.vocab_size) for _ in range(32_000)]

    def seconds(count: int) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            streamed(tokenizer, token_ids[:count], True)
            best = min(best, time.perf_counter() - start)
        return best

    seconds(len(token_ids))
    assert seconds(32_000) < 80 * seconds(2_000)


def test_byte_tokenizer_streams_as_the_whole() -> None:
    tokenizer = ByteTokenizer(vocab_size=300)
    for text in SENTENCES:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    for token_ids in random_sequences(tokenizer, NUM_SEQUENCES, seed=1):
        assert_equals_whole(tokenizer, token_ids)
    assert tokenizer.decode([72, 105, 299]) == "Hi<299>"


def test_the_embedded_tokenizer_streams_as_the_whole() -> None:
    tokenizer = load_tokenizer(Path(nanofw.__file__).parent / "models" / "embedded" / "demo")
    for token_ids in random_sequences(tokenizer, 10_000, seed=2):
        assert_equals_whole(tokenizer, token_ids)


def real_tokenizers() -> list[Path]:
    """Folders named in NANOFW_TEST_TOKENIZERS; `tests/text/fetch_tokenizers.py` makes some."""
    value = os.environ.get("NANOFW_TEST_TOKENIZERS", "")
    return [path.parent for path in sorted(Path(value).glob("*/tokenizer.json"))] if value else []


@pytest.mark.weights
@pytest.mark.parametrize("skip", [True, False])
def test_real_tokenizers_stream_as_the_whole(skip: bool) -> None:
    folders = real_tokenizers()
    if not folders:
        pytest.skip("NANOFW_TEST_TOKENIZERS names no folder with tokenizers")
    for folder in folders:
        tokenizer = load_tokenizer(folder)
        for token_ids in random_sequences(tokenizer, 10_000, seed=11):
            assert_equals_whole(tokenizer, token_ids, skip)
