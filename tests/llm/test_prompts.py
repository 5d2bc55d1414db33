"""What may be given as a prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nanofw.contracts.requests import SamplingParams
from nanofw.llm.prompts import override_sampling, parse_prompt

DEFAULTS = SamplingParams(temperature=0.5, max_tokens=7)


def test_texts_and_ids() -> None:
    assert parse_prompt("Hi", DEFAULTS).text == "Hi"
    assert parse_prompt([1, 2], DEFAULTS).token_ids == [1, 2]
    assert parse_prompt((), DEFAULTS).token_ids == ()
    array = np.array([3, 4], np.int32)
    assert parse_prompt(array, DEFAULTS).token_ids is array


def test_a_record_carries_its_settings() -> None:
    record = {
        "prompt": "Hi",
        "id": 12,
        "client": "a",
        "priority": -1,
        "deadline": 2.5,
        "expected_output_tokens": 9,
        "temperature": 0,
        "stop": "x",
        "sampling": {"stop_token_ids": [4]},
        "arguments": {"grammar": {"regex": "a*"}},
    }
    prompt = parse_prompt(record, DEFAULTS)
    assert (prompt.id, prompt.client, prompt.priority, prompt.deadline) == ("12", "a", -1, 2.5)
    assert prompt.expected_output_tokens == 9
    assert prompt.arguments == {"grammar": {"regex": "a*"}}
    assert prompt.sampling == SamplingParams(
        temperature=0, max_tokens=7, stop=("x",), stop_token_ids=(4,)
    )


def test_a_chat_record() -> None:
    record = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function"}],
        "chat_template": "rag",
        "chat_template_kwargs": {"enable_thinking": False},
    }
    prompt = parse_prompt(record, DEFAULTS)
    assert prompt.chat == {
        "tools": [{"type": "function"}],
        "template": "rag",
        "enable_thinking": False,
    }


def test_json_spells_token_ids_as_keys_and_lists() -> None:
    record = {"prompt": "a", "logit_bias": {"5": 1.5}, "bad_words": [[1, 2], "x"]}
    sampling = parse_prompt(record, DEFAULTS).sampling
    assert sampling.logit_bias == {5: 1.5}
    assert sampling.bad_words == ((1, 2), "x")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias key 'x' is not a token id"),
        (3, "a string, a list of token ids or an object, not int"),
        (b"x", "not bytes"),
        ([1, "a"], "integers, not 'a'"),
        ([1, True], "integers, not True"),
        ({}, "exactly one of prompt, prompt_token_ids, messages; there is none"),
        ({"prompt": "a", "messages": []}, "prompt and messages"),
        ({"promt": "a"}, "'promt'; did you mean 'prompt'"),
        ({"prompt": "a", "max_token": 1}, "did you mean 'max_tokens'"),
        ({"prompt": 3}, "prompt must be a string"),
        ({"prompt": "a", "tools": []}, "tools goes with messages"),
        ({"prompt": "a", "top_p": 1, "sampling": {"top_p": 1}}, "top_p is given twice"),
        ({"prompt": "a", "sampling": {"topp": 1}}, "unknown sampling parameter 'topp'"),
        ({"prompt": "a", "sampling": 3}, "sampling must be an object"),
        ({"prompt": "a", "deadline": "soon"}, "deadline must be a number of seconds"),
        ({"prompt": "a", "id": ["x"]}, "id must be a string"),
        ({"prompt_token_ids": "abc"}, "a list of integers"),
        ({"prompt_token_ids": [1, True]}, "must be integers, not True"),
        ({"prompt_token_ids": [1, 2.0]}, "must be integers, not 2.0"),
    ],
)
def test_what_is_no_prompt_says_why(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_prompt(value, DEFAULTS)


def test_an_unknown_field_is_never_dropped() -> None:
    with pytest.raises(ValueError, match="unknown key 'foo'"):
        parse_prompt({"prompt": "a", "foo": 1}, DEFAULTS)


def test_override_keeps_the_rest() -> None:
    assert override_sampling(DEFAULTS, {"top_k": 3}) == SamplingParams(
        temperature=0.5, max_tokens=7, top_k=3
    )


def test_arguments_for_all_give_way_to_those_of_a_prompt() -> None:
    common = {"structured": {"regex": "a"}, "other": 1}
    assert parse_prompt("text", SamplingParams(), common).arguments == common
    record = {"prompt": "text", "arguments": {"structured": False}}
    prompt = parse_prompt(record, SamplingParams(), common)
    assert prompt.arguments == {"structured": False, "other": 1}


@pytest.mark.parametrize(
    "biases",
    [{" 5": 1}, {"+5": 1}, {"0_5": 1}, {"05": 1}, {"\u0665": 1}, {"-0": 1}, {"5": 1, 5: 2}],
)
def test_a_token_id_has_one_spelling(biases: dict[Any, float]) -> None:
    with pytest.raises(ValueError, match="logit_bias"):
        parse_prompt({"prompt": "x", "logit_bias": biases}, DEFAULTS)


@pytest.mark.parametrize("arguments", [[1], "structured", 5, [("structured", {})]])
def test_arguments_of_processors_are_an_object(arguments: Any) -> None:
    with pytest.raises(ValueError, match="arguments are an object by the names of plugins"):
        parse_prompt("a", SamplingParams(), arguments)
