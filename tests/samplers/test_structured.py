from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

import nanofw.models
from nanofw.contracts.arrays import IntArray
from nanofw.contracts.requests import FinishReason, Request
from nanofw.engine.host_processors import HostProcessors
from nanofw.errors import ConfigError, RequestError
from nanofw.plugins import HostProcessor
from nanofw.samplers.logits_processors.grammars import COPIES_PER_LEXER
from nanofw.samplers.logits_processors.manifest import StructuredOptions
from nanofw.samplers.logits_processors.structured import Structured
from tests.engine.sim_engines import SPEC, Run, make_engine, make_request
from tests.samplers.grammar_cases import problem, random_arguments
from tests.text.conftest import (
    byte_level,
    fallback_then_metaspace,
    metaspace_unigram,
    sentencepiece,
    sentencepiece_no_strip,
    strip_each_token,
    without_decoder,
    wordpiece,
)

MODEL = Path(nanofw.models.__file__).parent / "embedded" / "demo"
VOCAB, EOS = 4096, 0
TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
EMPTY = np.empty(0, np.int32)
NUM_CASES = 200
CHUNKS = {"chunk_tokens": 5, "max_num_batched_tokens": 16}
BOTH = pytest.mark.parametrize("overlap", [False, True])


def make(
    *, vocab_size: int = VOCAB, eos: tuple[int, ...] = (EOS,), path: Any = MODEL, **options: Any
) -> Structured:
    config: Any = SimpleNamespace(
        vocab_size=vocab_size,
        eos_token_ids=eos,
        tokenizer_path=None if path is None else str(path),
    )
    return Structured(StructuredOptions(num_threads=2, **options), config)


def allowed(processor: Structured, request_id: str, vocab_size: int = VOCAB) -> list[int]:
    """Token ids that may come next."""
    bits = np.full(-(-vocab_size // 32), -1, np.int32)
    processor.mask(request_id, bits)
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()


def encode(text: str) -> IntArray:
    return np.array(TOKENIZER.encode(text).ids, np.int32)


def texts(token_ids: list[int]) -> list[str]:
    return [TOKENIZER.decode([token_id]) for token_id in token_ids]


# -- engines ------------------------------------------------------------------------------


def engine_of(processor: Structured, **settings: Any) -> Any:
    return make_engine(
        spec=replace(SPEC, vocab_size=VOCAB, eos_token_ids=(EOS,)),
        host_processors=HostProcessors({"structured": processor}, VOCAB),
        max_model_len=1024,
        sim={"eos_probability": 0.2},
        **{"num_blocks": 4096, **settings},
    )


def constrained(index: int, **fields: Any) -> Request:
    return make_request(
        f"case-{index}",
        3 + index % 40,
        None,
        seed=index,
        arguments={"structured": random_arguments(index)},
        **fields,
    )


def outputs(engine: Any) -> dict[str, Any]:
    """Outputs of all cases among free requests, by id."""
    for index in range(NUM_CASES):
        engine.add_request(constrained(index))
        if index % 4 == 0:
            engine.add_request(make_request(f"free-{index}", 9, 30, seed=index, ignore_eos=True))
    return Run(engine).to_end(100_000).outputs


@pytest.fixture(scope="module")
def alone() -> dict[str, list[int]]:
    """Tokens of each case by itself: whatever runs beside it must not change them."""
    processor = make()
    found: dict[str, list[int]] = {}
    for index in range(0, NUM_CASES, 5):
        engine = engine_of(processor)
        engine.add_request(constrained(index))
        found |= Run(engine).to_end().tokens()
    return found


@pytest.mark.parametrize(
    ("overlap", "settings"),
    [
        (False, {}),
        (True, {"num_blocks": 60}),
        pytest.param(True, {}, marks=pytest.mark.slow),
        pytest.param(False, {"num_blocks": 60}, marks=pytest.mark.slow),
        pytest.param(False, CHUNKS, marks=pytest.mark.slow),
        pytest.param(True, CHUNKS, marks=pytest.mark.slow),
    ],
)
def test_every_output_is_valid(
    settings: dict[str, Any], overlap: bool, alone: dict[str, list[int]]
) -> None:
    engine = engine_of(make(), overlap=overlap, **settings)
    ended = outputs(engine)
    for index in range(NUM_CASES):
        output, arguments = ended[f"case-{index}"], random_arguments(index)
        assert output.finish_reason is FinishReason.STOP, (arguments, output)
        text = TOKENIZER.decode(output.token_ids[:-1].tolist())
        assert problem(arguments, text) is None, (arguments, text)
    for key, tokens in alone.items():
        assert ended[key].token_ids.tolist() == tokens
    free = [output for key, output in ended.items() if key.startswith("free")]
    assert all(len(output.token_ids) == 30 for output in free)
    in_the_middle = [
        output
        for key, output in ended.items()
        if key.startswith("case") and output.num_recomputed_tokens > output.num_prompt_tokens
    ]
    assert (len(in_the_middle) > 10) == ("num_blocks" in settings)


@BOTH
def test_samples_of_one_prompt_have_a_state_each(overlap: bool) -> None:
    engine = engine_of(make(), overlap=overlap, num_blocks=60)
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 4}
    engine.add_request(
        make_request("a", 9, 200, n=6, arguments={"structured": {"json_schema": schema}})
    )
    samples = Run(engine).collect()
    found = {TOKENIZER.decode(output.token_ids[:-1].tolist()) for output in samples}
    assert len(found) == 6
    assert all(problem({"json_schema": schema}, text) is None for text in found)


@BOTH
def test_a_request_with_a_wrong_grammar_is_refused_alone(overlap: bool) -> None:
    engine = engine_of(make(), overlap=overlap)
    engine.add_request(constrained(1))
    with pytest.raises(RequestError, match=r"'structured'.*: regex cannot be used.*unclosed group"):
        engine.add_request(
            make_request("bad", 4, 9, n=3, arguments={"structured": {"regex": "a("}})
        )
    engine.add_request(constrained(2))
    ended = Run(engine).to_end().outputs
    assert sorted(ended) == ["case-1", "case-2"]


@BOTH
def test_a_grammar_too_large_for_its_lexer_fails_its_request_alone(overlap: bool) -> None:
    engine = engine_of(make(max_lexer_states=16), overlap=overlap)
    hard = {"structured": {"regex": r"(.|\n)*(foo|bar).{10,30}(x|yz)*"}}
    engine.add_request(make_request("hard", 4, 200, seed=1, arguments=hard))
    engine.add_request(
        make_request("easy", 4, 200, seed=1, arguments={"structured": {"choice": ["ab"]}})
    )
    ended = Run(engine).to_end().outputs
    assert ended["hard"].finish_reason is FinishReason.ERROR
    assert "logits_processor 'structured': mask_rows() failed" in (ended["hard"].error or "")
    assert "too many states" in (ended["hard"].error or "")
    assert ended["easy"].finish_reason is FinishReason.STOP


def test_a_shared_lexer_that_is_full_is_replaced() -> None:
    processor = make(max_lexer_states=50)
    arguments = {"regex": r"(.|\n)*(foo|bar).{10,30}(x|yz)*"}
    rng, problems = random.Random(0), list[str]()
    for index in range(60):
        processor.start(str(index), arguments, EMPTY)
        try:
            for _ in range(30):
                token = rng.choice(allowed(processor, str(index)))
                processor.advance(str(index), np.array([token], np.int32))
        except ValueError as error:
            problems.append(str(error))
        processor.finish(str(index))
    assert all("too many states" in problem for problem in problems)
    assert len(problems) < 30  # one lexer for all of them would be full after a few


# -- masks --------------------------------------------------------------------------------


def test_it_keeps_the_contract() -> None:
    assert isinstance(make(), HostProcessor)


def test_masks_follow_the_committed_tokens_and_end_with_the_end_token() -> None:
    processor = make()
    assert processor.start("a", {"regex": "ab|abc"}, encode("a prompt"))
    assert texts(allowed(processor, "a")) == ["ab"]  # forced text comes in the tokenizer's tokens
    processor.advance("a", encode("ab"))
    assert sorted(texts(allowed(processor, "a"))) == ["", "c"]
    processor.advance("a", encode("c"))
    assert allowed(processor, "a") == [EOS]


@pytest.mark.parametrize("regex", ["ab", "ab|abc", "ab+"])
def test_after_an_end_token_that_is_ignored_only_end_tokens_come(regex: str) -> None:
    processor = make()
    processor.start("a", {"regex": regex}, EMPTY)
    processor.advance("a", encode("ab"))
    for _ in range(4):
        assert EOS in allowed(processor, "a")
        processor.advance("a", np.array([EOS], np.int32))
    assert allowed(processor, "a") == [EOS]
    with pytest.raises(ValueError, match="after the end of the grammar"):
        processor.advance("a", encode("b"))


@BOTH
def test_a_complete_grammar_goes_on_with_end_tokens_when_they_are_ignored(overlap: bool) -> None:
    engine = engine_of(make(), overlap=overlap)
    asked = {"structured": {"choice": ["ab"]}}
    engine.add_request(make_request("a", 4, 6, ignore_eos=True, arguments=asked))
    (output,) = Run(engine).collect()
    assert output.finish_reason is FinishReason.LENGTH
    assert output.token_ids.tolist() == [*encode("ab"), *[EOS] * 5]


def test_every_end_token_of_the_model_ends_a_grammar() -> None:
    processor = make(eos=(EOS, 77, 5000))
    processor.start("a", {"choice": ["x"]}, EMPTY)
    processor.advance("a", encode("x"))
    assert allowed(processor, "a") == [EOS, 77]


def test_ids_beyond_the_tokenizer_are_never_allowed() -> None:
    processor = make(vocab_size=VOCAB + 40)
    processor.start("a", {"regex": r"(?s:.)*"}, EMPTY)
    assert max(allowed(processor, "a", VOCAB + 40)) < VOCAB


def test_a_forbidden_token_is_an_error_that_names_it() -> None:
    processor = make()
    processor.start("a", {"choice": ["yes", "no"]}, EMPTY)
    with pytest.raises(ValueError, match="doesn't satisfy the grammar"):
        processor.advance("a", encode("z"))
    with pytest.raises(ValueError, match="doesn't satisfy the grammar"):
        allowed(processor, "a")


def test_masks_of_many_rows_equal_those_of_each_and_keep_what_others_cleared() -> None:
    processor, plain = make(), make()
    for index in range(40):
        for one in (processor, plain):
            one.start(str(index), random_arguments(index), EMPTY)
    before = np.random.default_rng(0).integers(-(2**31), 2**31, (50, VOCAB // 32), np.int64)
    before = before.astype(np.int32)
    ids: list[str | None] = [str(i) if i < 40 else None for i in range(50)]
    random.Random(0).shuffle(ids)
    bits = before.copy()
    assert processor.mask_rows(ids, bits) == {}
    for line, request_id in enumerate(ids):
        expected = before[line].copy()
        if request_id is not None:
            plain.mask(request_id, expected)
        assert np.array_equal(bits[line], expected)


def test_a_live_request_outlives_its_place_in_the_cache() -> None:
    processor = make(max_cached_grammars=1)
    words = ["red", "green", "blue", "white"]
    for word in words * 2:
        processor.start(word, {"choice": [word]}, EMPTY)
    for word in words:
        processor.advance(word, encode(word))
        assert allowed(processor, word) == [EOS]
        processor.finish(word)


def test_more_requests_than_share_a_lexer() -> None:
    processor = make()
    for index in range(2 * COPIES_PER_LEXER + 3):
        processor.start(str(index), {"choice": ["ab", "cd"]}, EMPTY)
    bits = np.full((2 * COPIES_PER_LEXER + 3, VOCAB // 32), -1, np.int32)
    assert processor.mask_rows([str(i) for i in range(len(bits))], bits) == {}
    assert (bits == bits[0]).all()


# -- arguments ----------------------------------------------------------------------------


def test_reasons_fit_into_a_line() -> None:
    with pytest.raises(ValueError) as caught:
        make().check({"regex": "(a"})
    wanted = (
        'regex cannot be used: invalid regex "(a" (in regex): regex parse error: unclosed group'
    )
    assert str(caught.value) == wanted


def test_true_is_any_json() -> None:
    processor = make()
    processor.start("a", {"json_schema": True}, EMPTY)
    processor.advance("a", encode('[{"x":[null,-1.5e3]}]'))
    assert allowed(processor, "a") == [EOS]


def test_lark_grammars_and_json_text() -> None:
    processor = make()
    processor.start("lark", {"lark": 'start: "x" start "y" | "z"'}, EMPTY)
    processor.advance("lark", encode("xxzyy"))
    assert allowed(processor, "lark") == [EOS]
    processor.start("text", {"json_schema": json.dumps({"const": {"a": 1}})}, EMPTY)
    processor.advance("text", encode('{"a": 1}'))
    assert allowed(processor, "text") == [EOS]


@pytest.mark.parametrize(
    ("whitespace", "good", "bad"),
    [
        ("none", '{"a":1}', '{"a": 1}'),
        ("space", '{"a": 1}', '{"a":  1}'),
        ("any", '{\n  "a":  1\n}', '{"a" 1}'),
    ],
)
def test_whitespace_in_json(whitespace: str, good: str, bad: str) -> None:
    processor = make(json_whitespace=whitespace)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    for key in ("good", "bad"):
        processor.start(key, {"json_schema": schema}, EMPTY)
    processor.advance("good", encode(good))
    assert allowed(processor, "good") == [EOS]
    with pytest.raises(ValueError, match="doesn't satisfy"):
        processor.advance("bad", encode(bad))


def test_the_default_holds_for_requests_that_bring_nothing() -> None:
    processor = make(default={"choice": ["x"]})
    assert processor.start("default", None, EMPTY)
    assert not processor.start("free", False, EMPTY)
    assert processor.start("own", {"choice": ["y"]}, EMPTY)
    assert texts(allowed(processor, "default")) == ["x"]
    assert texts(allowed(processor, "own")) == ["y"]
    assert not make().start("nothing", None, EMPTY)


def test_frozen_arguments_are_read_as_plain_ones() -> None:
    schema = MappingProxyType({"enum": (MappingProxyType({"a": (1, 2)}),)})
    processor = make(default=MappingProxyType({"json_schema": schema}))
    processor.start("a", None, EMPTY)
    processor.advance("a", encode('{"a":[1,2]}'))
    assert allowed(processor, "a") == [EOS]


DEEP: dict[str, Any] = {}
for _ in range(100_000):
    DEEP = {"not": DEEP}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of json_schema, regex, choice, lark; there is nothing"),
        ({"regex": "a", "choice": ["a"]}, "exactly one of .*; there is regex, choice"),
        ({"schema": {}}, "there is schema"),
        (True, "give one of json_schema"),
        ("a*", "give one of json_schema"),
        ({"regex": 3}, "regex must be a string, not 3"),
        ({"regex": "a("}, "regex cannot be used: .*unclosed group"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": r"[^\s\S]"}, "regex cannot be used: there is no text that it matches"),
        ({"regex": r"a[^\s\S]b"}, "there is no text that it matches"),
        ({"lark": r"start: /[^\s\S]/"}, "there is no text that it matches"),
        ({"choice": []}, "at least one string"),
        ({"choice": "abc"}, "list of at least one string"),
        ({"choice": ["a", 1]}, "made of strings, not 1"),
        ({"lark": "start: missing"}, "lark cannot be used"),
        ({"lark": None}, "lark must be a string"),
        ({"json_schema": "{"}, "json_schema is not JSON"),
        ({"json_schema": "3"}, "json_schema must be an object"),
        ({"json_schema": {"type": "foo"}}, "json_schema cannot be used: Invalid type: foo"),
        ({"json_schema": {"not": {}}}, "Unimplemented keys"),
        ({"json_schema": {"const": float("nan")}}, "json_schema is not JSON"),
        ({"json_schema": {"const": {1, 2}}}, "json_schema is not JSON: set is not a type of JSON"),
        ({"json_schema": DEEP}, "nested too deeply"),
        ({"json_schema": False}, "json_schema is false, which nothing matches"),
        ({"json_schema": {"anyOf": []}}, "Unsatisfiable"),
        ({"json_schema": "[" * 100_000}, "nested too deeply"),
    ],
)
def test_wrong_arguments_are_refused_with_the_reason(arguments: Any, message: str) -> None:
    processor = make()
    for method in (processor.check, lambda value: processor.start("a", value, EMPTY)):
        with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
            method(arguments)


# -- tokenizers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build", [byte_level, sentencepiece, sentencepiece_no_strip], ids=lambda build: build.__name__
)
def test_other_families_of_tokenizers(build: Any, tmp_path: Path) -> None:
    tokenizer = build()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocab_size, eos = tokenizer.get_vocab_size(), tokenizer.token_to_id("</s>")
    processor = make(vocab_size=vocab_size, eos=(eos,), path=tmp_path)
    engine = make_engine(
        spec=replace(SPEC, vocab_size=vocab_size, eos_token_ids=(eos,)),
        host_processors=HostProcessors({"structured": processor}, vocab_size),
        max_model_len=1024,
        num_blocks=4096,
        sim={"eos_probability": 0.2},
    )
    cases = {f"case-{index}": random_arguments(index) for index in range(0, 80, 2)}
    for key, arguments in cases.items():
        engine.add_request(make_request(key, 5, None, arguments={"structured": arguments}))
    ended = Run(engine).to_end().outputs
    for key, arguments in cases.items():
        text = tokenizer.decode(ended[key].token_ids[:-1].tolist())
        assert problem(arguments, text) is None, (arguments, text)


@pytest.mark.parametrize(
    "build",
    [fallback_then_metaspace, strip_each_token, metaspace_unigram, without_decoder, wordpiece],
    ids=lambda build: build.__name__,
)
def test_tokenizers_that_would_be_misread_are_refused(build: Any, tmp_path: Path) -> None:
    tokenizer = build()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="structured output cannot use .*decoder"):
        make(vocab_size=tokenizer.get_vocab_size(), eos=(2,), path=tmp_path)


# -- construction -------------------------------------------------------------------------


def test_what_it_cannot_work_with_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs a model with a tokenizer\.json"):
        make(path=None)
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json\. Give prompts as token ids"):
        make(path=tmp_path)
    with pytest.raises(ConfigError, match="needs a model with an end token"):
        make(eos=(VOCAB,))
    with pytest.raises(ConfigError, match="default.*unclosed group"):
        make(default={"regex": "("})
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read: Model missing"):
        make(path=tmp_path)
    with pytest.raises(ConfigError, match="cannot use"):
        make(vocab_size=100)


@pytest.mark.parametrize(
    "arguments",
    [{"regex": ""}, {"regex": "a*"}, {"choice": [""]}, {"lark": 'start: ""'},
     {"regex": r"ab|[^\s\S]"}],
)  # fmt: skip
def test_the_empty_text_is_a_match_like_any_other(arguments: Any) -> None:
    assert make().start("a", arguments, EMPTY)
