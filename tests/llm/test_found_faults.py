"""Faults that people found in how requests are read and refused, by their ids."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
import pytest
import torch

import nanofw.models
from nanofw import LLM, AsyncLLM, SamplingParams
from nanofw.config.load import load_config
from nanofw.errors import ConfigError, RequestError
from nanofw.llm.results import RequestResult

GOOD = {"prompt": "good", "max_tokens": 3, "temperature": 0}
SIM = ("engine.max_model_len=256",)


def served(bad: Any, *overrides: str) -> tuple[RequestResult, list[RequestResult]]:
    """The result of a bad request between two good ones, and those of the good ones."""
    with LLM.from_config("sim", *SIM, *overrides) as llm:
        before, result, after = llm.generate([GOOD, bad, GOOD])
    return result, [before, after]


def served_async(bad: Any, *overrides: str) -> tuple[RequestResult, list[RequestResult]]:
    """The same from `AsyncLLM`, all at once."""

    async def one(llm: AsyncLLM, prompt: Any) -> RequestResult:
        results = [event.result async for event in llm.generate(prompt) if event.result]
        assert len(results) == 1
        return results[0]

    async def main() -> list[RequestResult]:
        async with AsyncLLM.from_config("sim", *SIM, *overrides) as llm:
            calls = (one(llm, prompt) for prompt in (GOOD, bad, GOOD))
            return await asyncio.wait_for(asyncio.gather(*calls), 60)

    before, result, after = asyncio.run(main())
    return result, [before, after]


BOTH = pytest.mark.parametrize("serve", [served, served_async], ids=["LLM", "AsyncLLM"])


def assert_refused_alone(serve: Any, bad: Any, words: str, *overrides: str) -> None:
    result, others = serve(bad, *overrides)
    assert (str(result.finish_reason), words in str(result.error)) == ("refused", True), result
    assert len(str(result.error)) < 1000
    assert all(other.ok for other in others)


@BOTH
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None, "min_tokens": 2147483647}, "min_tokens is 2147483647"),
        ({"max_tokens": 2**32, "min_tokens": 2**32}, "max_tokens is 4294967296"),
        ({"top_k": 2**40}, "top_k is"),
        ({"seed": 2**64}, "seed is"),
        ({"priority": 10**400}, "priority is"),
        ({"expected_output_tokens": 2**31}, "expected_output_tokens is"),
        ({"max_tokens": 10**5000}, "max_tokens is a very large int"),
        ({"logit_bias": {10**5000: 1}}, "logit_bias key is"),
    ],
)
def test_F002_integers_have_bounds(serve: Any, fields: Any, words: str) -> None:
    assert_refused_alone(serve, {"prompt": "x", **fields}, words)


def test_F002_a_default_out_of_bounds_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="min_tokens is 2147483647"):
        load_config("sim", ["sampling.max_tokens=null", "sampling.min_tokens=2147483647"])


@pytest.mark.parametrize("min_tokens", [2**30, 1000])
def test_F002_the_greatest_min_tokens_is_served(min_tokens: int) -> None:
    params = SamplingParams(max_tokens=None, min_tokens=min_tokens, temperature=0)
    with LLM("embedded:demo", dtype="float32", max_model_len=64) as llm:
        (result,) = llm.generate("x", params)
    assert result.ok
    assert result.num_output_tokens == 64 - len(result.prompt_token_ids)


@BOTH
@pytest.mark.parametrize("deadline", [10**400, float("nan"), float("inf"), True, "1"])
def test_F003_a_deadline_is_a_finite_number(serve: Any, deadline: Any) -> None:
    assert_refused_alone(serve, {"prompt": "x", "deadline": deadline}, "deadline must be")


class _Odd(dict[str, Any]):
    """A prompt whose reading raises something unexpected."""

    def __contains__(self, key: object) -> bool:
        raise RuntimeError("odd")


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@BOTH
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (_Odd(prompt="x"), "odd"),
        ({"prompt": "x", "bad_words": nested(100_000)}, "nested"),
        ({"prompt": "x", "stop": nested(100_000)}, "nested"),
    ],
    ids=["raises", "bad_words", "stop"],
)
def test_F003_whatever_a_request_raises_reaches_its_sender_alone(
    serve: Any, bad: Any, words: str
) -> None:
    assert_refused_alone(serve, bad, words)


def test_F005_bad_words_are_bounded_in_bytes() -> None:
    long = {"prompt": "x", "bad_words": [[1] * 1_000_000]}
    assert_refused_alone(served, long, "max_model_len is 256")
    wide = {"prompt": "x", "bad_words": [[1] * 200, *([[1]] * 10_000)]}
    assert_refused_alone(served, wide, "at most 4194304 are kept")
    texts = {"prompt": "x", "bad_words": ["x" * 300_000]}
    assert_refused_alone(served, texts, "bad_words has 300000 characters")


def test_F005_ids_are_bounded_as_each_sample_has_one() -> None:
    request = {"prompt": "x", "id": "i" * 1_000_000, "n": 1000}
    assert_refused_alone(served, request, "id has 1000000 characters; at most 4096 are taken")


@BOTH
@pytest.mark.parametrize("key", ["prompt", "messages"])
def test_F006_a_text_that_cannot_fit_is_not_tokenized(serve: Any, key: str, tmp_path: Path) -> None:
    text = "x" * 10_000_000
    value: Any = text if key == "prompt" else [{"role": "user", "content": text}]
    overrides = (f"model.path={chat_model(tmp_path)}",)
    assert_refused_alone(serve, {key: value}, "no more than", *overrides)


def chat_model(folder: Path) -> Path:
    """The embedded model with a chat template."""
    source = Path(nanofw.models.__file__).parent / "embedded" / "demo"
    target = folder / "model"
    shutil.copytree(source, target)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    return target


@BOTH
@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "x", "bad_words": ["a", 3]},
        {"prompt": "x", "bad_words": 3},
        {"prompt": "x", "stop": [{}]},
        {"prompt": "x", "stop": 3},
        {"messages": [{"role": "user", "content": "x"}], "tools": 3},
        {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"tools": 3}},
        {
            "messages": [{"role": "user", "content": "x"}],
            "add_generation_prompt": True,
            "chat_template_kwargs": {"messages": []},
        },
        {"prompt": "x", "arguments": {1: 2}},
        {"prompt": "x", "logit_bias": [3]},
        {"prompt": {}},
        {"prompt_token_ids": [[1], [2, 3]]},
        {"prompt_token_ids": [10**30]},
    ],
    ids=lambda fields: json.dumps(fields, default=str)[:60],
)
def test_F007_every_entry_point_refuses(serve: Any, fields: Any, tmp_path: Path) -> None:
    assert_refused_alone(serve, fields, "", f"model.path={chat_model(tmp_path)}")


CHAT = [{"role": "user", "content": "x"}]
THINKS = (
    "{% for m in messages %}{{ m.role + ': ' + m.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<no thoughts>{% endif %}"
)


@pytest.fixture
def chatty(tmp_path: Path) -> Iterator[LLM]:
    """A simulated model whose template reads `enable_thinking`."""
    folder = chat_model(tmp_path)
    (folder / "chat_template.jinja").write_text(THINKS, encoding="utf-8")
    overrides = (
        f"model.path={folder}",
        "logits_processors=[{name: structured}]",
        "sampling.max_tokens=40",
    )
    with LLM.from_config("sim", *SIM, *overrides) as llm:
        yield llm


class Point(pydantic.BaseModel, extra="forbid"):
    x: Literal[1, 22]


def lookup(word: str) -> str:
    """Look a word up.

    Args:
        word: what to look up.
    """
    return word


def test_F057_what_chat_is_given_acts(chatty: LLM) -> None:
    (result,) = chatty.chat(CHAT, max_tokens=3, temperature=0, client="me", metadata={"a": 1})
    assert result.num_output_tokens == 3
    assert result.metadata == {"a": 1}
    cases: tuple[dict[str, Any], ...] = (
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"enable_thinking": False},
    )
    for keywords in cases:
        (result,) = chatty.chat(CHAT, max_tokens=1, **keywords)
        assert str(result.prompt).endswith("<no thoughts>")
    (result,) = chatty.chat(CHAT, tools=[lookup], max_tokens=1)
    assert '"description": "what to look up."' in str(result.prompt)
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    (result,) = chatty.chat([{"role": "user", "content": parts}], max_tokens=1)
    assert result.prompt == "user: one\ntwo\n"
    (result,) = chatty.chat(CHAT, arguments={"structured": {"json_schema": Point}})
    assert isinstance(Point.model_validate_json(result.outputs[0].text), Point)
    two = chatty.chat([CHAT, CHAT], max_tokens=2)
    assert [one.num_output_tokens for one in two] == [2, 2]


@pytest.mark.parametrize("method", ["generate", "chat", "stream"])
@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"max_tokenz": 3}, "did you mean 'max_tokens'"),
        ({"use_tqdm": True}, "here it is progress"),
        ({"response_format": {"type": "json_object"}}, "json_schema"),
        ({"max_completion_tokens": 3}, "here it is max_tokens"),
    ],
)
def test_F057_what_a_method_does_not_know_is_an_error(
    chatty: LLM, method: str, keywords: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        getattr(chatty, method)(CHAT if method == "chat" else "x", **keywords)


def test_F057_a_typo_of_a_template_variable_is_an_error(chatty: LLM) -> None:
    with pytest.raises(ValueError, match="did you mean 'enable_thinking'"):
        chatty.chat(CHAT, enable_thinkin=False)


def test_F058_types_of_torch_and_arrays_are_taken() -> None:
    params = SamplingParams(prompt_logprobs=0, max_tokens=1, temperature=0)
    with LLM("embedded:demo", dtype=torch.float32, max_model_len=np.int64(64)) as llm:
        tensor: Any = torch.tensor([1, 2, 3])
        several = llm.generate(tensor, params)
        (one,) = llm.generate([[5]], params)
        tokenizer = llm.get_tokenizer()
        assert tokenizer is not None
        assert several[0].prompt_token_ids == (1, 2, 3)
    assert len(several) == 1
    assert len(several[0].prompt_logprobs or []) == 3
    assert one.prompt_logprobs == [None]


@pytest.mark.parametrize(
    ("keyword", "words"),
    [
        ("enable_lora", "merge them into the weights"),
        ("revision", "folder of a downloaded revision"),
        ("load_format", "safetensors"),
        ("download_dir", "HF_HOME"),
        ("speculative_config", "no speculative decoding"),
        ("pipeline_parallel_size", "tensor_parallel_size"),
    ],
)
def test_F058_keywords_of_other_engines_say_what_to_use_here(keyword: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LLM("embedded:demo", **{keyword: 1})


def test_F058_wrong_sampling_parameters_are_named() -> None:
    with pytest.raises(TypeError, match="no 'max_token'; did you mean 'max_tokens'"):
        SamplingParams(max_token=3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="there are temperature"):
        SamplingParams(guided=3)  # pyright: ignore[reportCallIssue]


def test_F059_an_overloaded_engine_names_the_request() -> None:
    async def main() -> tuple[str, str]:
        async with AsyncLLM.from_config("sim", max_requests=1, admission_timeout_s=0.01) as llm:
            first = llm.generate("x", SamplingParams(max_tokens=100_000))
            await anext(first)
            errors: list[str] = []
            for prompt in ({"prompt": "x", "id": "mine"}, "x"):
                with pytest.raises(RequestError) as raised:
                    await anext(llm.generate(prompt))
                errors.append(str(raised.value))
            return errors[0], errors[1]

    named, unnamed = asyncio.run(main())
    assert named.startswith("request 'mine': 1 requests")
    assert unnamed.startswith("1 requests")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}},
            "line of an OpenAI batch",
        ),
        ({"prompt": "x", "max_completion_tokens": 3}, "here it is max_tokens"),
        ({"prompt": "x", "user": "me"}, "here it is client"),
    ],
)
def test_F062_keys_of_servers_say_what_to_use_here(record: Any, words: str) -> None:
    assert_refused_alone(served, record, words)


@BOTH
def test_F062_metadata_comes_back_with_the_result(serve: Any) -> None:
    result, _ = serve({"prompt": "x", "max_tokens": 2, "metadata": {"row": 7}})
    assert result.ok
    assert result.to_record()["metadata"] == {"row": 7}


WITHOUT_TOP_P = """
from nanofw.plugins import Plugin, hookimpl
from nanofw.samplers.standard import StandardSampler

class Plain(StandardSampler):
    def check(self, sampling, arguments):
        if sampling.top_p != 1:
            raise ValueError("top_p must be 1")

@hookimpl
def sampler():
    return [Plugin(
        "plain", ":Plain", api="sampler/2",
        capabilities={"devices": ("*",), "needs_history": "device", "overlap": True},
    )]
"""


@pytest.mark.parametrize("is_set", [False, True], ids=["default", "set"])
def test_F018_a_default_that_nobody_set_is_not_asked_of_a_sampler(
    tmp_path: Path, is_set: bool
) -> None:
    path = tmp_path / "plain.py"
    path.write_text(WITHOUT_TOP_P, encoding="utf-8")
    settings: dict[str, Any] = {"sampling": {"top_p": 0.95}} if is_set else {}
    with LLM("embedded:demo", sampler="plain", plugins={"load": [str(path)]}, **settings) as llm:
        (result,) = llm.generate("x", max_tokens=2)
        (asked,) = llm.generate("x", max_tokens=2, top_p=0.5)
    assert str(result.finish_reason) == ("refused" if is_set else "length")
    assert "top_p must be 1" in str(asked.error)
