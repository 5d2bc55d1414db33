"""Stop strings: found across borders of tokens, never leaked in part."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanofw.text.byte_level import ByteTokenizer
from nanofw.text.stop import StopFinder, StopStrings
from nanofw.text.stream import TextStream
from nanofw.text.tokenizer import FileTokenizer
from tests.text.conftest import SENTENCES

Build = Callable[[str], FileTokenizer]


def run(strings: list[str], pieces: Iterable[str]) -> tuple[list[str], str | None]:
    """What a finder lets through for each piece, and what it found."""
    finder = StopFinder(StopStrings(strings))
    shown: list[str] = []
    for piece in pieces:
        shown.append(finder.push_text(piece))
        if finder.match is not None:
            return shown, finder.match
    return [*shown, finder.finish()], None


def reference(strings: list[str], text: str) -> tuple[str, str | None]:
    """Text before the stop string that ends first; the longest among those."""
    for end in range(1, len(text) + 1):
        found = [string for string in strings if text[:end].endswith(string)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_B055_no_piece_of_a_stop_string_is_shown() -> None:
    assert run(["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J"]) == (["ABC", "", "", "", ""], "DEFGHIJ")


def test_what_only_looked_like_a_stop_string_is_shown_after_all() -> None:
    assert run(["DEFGHIJ"], ["ABC", "DEF", "G", "X"]) == (["ABC", "", "", "DEFGX", ""], None)
    assert run(["DEFGHIJ"], ["ABC", "DEF"]) == (["ABC", "", "DEF"], None)


def test_the_match_that_ends_first_wins_however_the_text_is_cut() -> None:
    assert run(["bc", "abcd"], ["abcd"]) == (["a"], "bc")
    assert run(["bc", "abcd"], ["abc", "d"]) == (["a"], "bc")
    assert run(["bc", "abc"], ["xabc"]) == (["x"], "abc")


@settings(max_examples=500)
@given(
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    st.text("abc", max_size=40),
    st.lists(st.integers(0, 40), max_size=8),
)
def test_any_cut_of_the_text_gives_the_reference(
    strings: list[str], text: str, cuts: list[int]
) -> None:
    borders = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]
    shown, match = run(strings, pieces)
    assert ("".join(shown), match) == reference(strings, text)


@pytest.mark.parametrize("strings", [[""], ["a", ""], [3]])
def test_an_empty_stop_string_is_refused(strings: list[str]) -> None:
    with pytest.raises(ValueError, match="non-empty string"):
        StopStrings(strings)


def test_B098_the_text_ends_before_the_stop_string() -> None:
    tokenizer = ByteTokenizer()
    stream = TextStream(tokenizer, stop=StopStrings(["was"]))
    shown = stream.push_tokens(tokenizer.encode("There was a king"))
    assert shown == stream.text == "There "
    assert stream.match == "was"
    assert tokenizer.decode(stream.token_ids) == "There was"
    assert stream.push_tokens(tokenizer.encode("more")) == ""
    assert stream.finish() == ""


def test_the_stop_string_is_shown_on_request() -> None:
    tokenizer = ByteTokenizer()
    stream = TextStream(tokenizer, stop=StopStrings(["was"]), include_stop=True)
    assert stream.push_tokens(tokenizer.encode("There was a king")) == "There was"


def test_min_tokens_come_before_stop_strings_count() -> None:
    tokenizer = ByteTokenizer()
    stream = TextStream(tokenizer, stop=StopStrings(["a"]), min_tokens=3)
    stream.push_tokens(tokenizer.encode("aabac"))
    assert (stream.text, stream.match) == ("aab", "a")


def test_tokens_held_by_the_detokenizer_do_not_count_too_many(build_tokenizer: Build) -> None:
    """The bytes of 你 are certain only when the run of byte tokens ends, one token later."""
    tokenizer = build_tokenizer("sentencepiece")
    token_ids = tokenizer.encode("a你bc", add_special_tokens=False)
    stream = TextStream(tokenizer, stop=StopStrings(["你"]))
    stream.push_tokens(token_ids)
    stream.finish()
    assert (stream.text, stream.match) == ("a", "你")
    assert tokenizer.decode(stream.token_ids) == "a你"


def test_a_stop_string_at_the_very_end_of_a_held_run_is_found(build_tokenizer: Build) -> None:
    tokenizer = build_tokenizer("sentencepiece")
    stream = TextStream(tokenizer, stop=StopStrings(["好"]))
    stream.push_tokens(tokenizer.encode("你好", add_special_tokens=False))
    stream.finish()
    assert (stream.text, stream.match) == ("你", "好")


@pytest.mark.parametrize(
    "name", ["byte_level", "sentencepiece", "metaspace_unigram", "without_decoder"]
)
def test_streams_of_real_tokens_stop_at_the_fewest_tokens(
    build_tokenizer: Build, name: str
) -> None:
    """Whatever the tokens: shown text is the whole's up to the stop string, and no fewer tokens
    hold it."""
    tokenizer = build_tokenizer(name)
    draw = random.Random(5)
    num_found = 0
    for _ in range(1_000):
        source = tokenizer.encode(draw.choice(SENTENCES), add_special_tokens=False)
        noise = [draw.randrange(tokenizer.vocab_size) for _ in range(4)]
        token_ids = source[:20] + noise + source[20:30]
        whole = tokenizer.decode(token_ids)
        start = draw.randrange(max(1, len(whole)))
        wish = whole[start : start + draw.randint(1, 5)].split("\ufffd")[0]
        stop = [wish or "x", "zzz"]
        stream = TextStream(tokenizer, stop=StopStrings(stop))
        shown = "".join(stream.push_tokens([token_id]) for token_id in token_ids) + stream.finish()
        assert (shown, stream.match) == reference(stop, whole)
        assert stream.text == shown
        if stream.match is not None:
            num_found += 1
            wanted = shown + stream.match
            assert tokenizer.decode(stream.token_ids).startswith(wanted)
            assert not tokenizer.decode(stream.token_ids[:-1]).startswith(wanted)
    assert num_found > 500
