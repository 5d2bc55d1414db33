"""Random requests: each is served or refused alone, and its neighbours are what they always are.

`python -m tests.fuzz.requests FIRST COUNT`: the seeds from `FIRST` on.
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

import numpy as np

from nanofw import LLM, AsyncLLM, SamplingParams
from nanofw.llm.results import RequestResult

OVERRIDES = ("engine.max_model_len=128", "logits_processors=[{name: structured}]")
NEIGHBOUR = {"prompt": "neighbour", "max_tokens": 4, "temperature": 0, "seed": 1}

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, 10**400, 10**5000, 0.0,
    -0.5, 0.3, 1.5, 1e308, float("nan"), float("inf"), "", "a", "\ud800", "x" * 5000, b"x", [], [1],
    [[1]], [[]], ["a", 3], [[1] * 500], {}, {"a": 1}, {1: 2}, {3: 1e9}, {"3": 5}, object(), {1, 2},
    range(3), np.int64(3), np.float32(0.5), np.arange(3), [{}], [None], lambda: 1,
    [[[[[[]]]]]], {"type": "object"},
)  # fmt: skip
SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "logit_bias", "bad_words", "max_tokens", "min_tokens", "n", "seed",
    "logprobs", "prompt_logprobs", "stop_token_ids", "ignore_eos", "stop",
    "include_stop_str_in_output", "skip_special_tokens",
)  # fmt: skip
OTHERS = (
    "id", "client", "priority", "deadline", "expected_output_tokens", "arguments", "sampling",
    "cache_salt", "metadata", "tools", "chat_template_kwargs", "body", "user", "nothing",
)  # fmt: skip
GRAMMARS: tuple[Any, ...] = (
    {"regex": "[0-9]+"}, {"regex": "("}, {"choice": []}, {"choice": ["a", "b"]},
    {"lark": "start: x"},
    {"json_schema": {"type": "object"}}, {"json_schema": {"$ref": "#/nowhere"}}, {"json_schema": 3},
    {"regex": "a" * 5000}, {"json_schema": {"const": "x" * 3000}}, {},
)  # fmt: skip


def random_request(rng: random.Random) -> Any:
    """A prompt in any form, with any fields."""
    if rng.random() < 0.1:
        return rng.choice(ODD)
    contents: dict[str, tuple[Any, ...]] = {
        "prompt": ("Hello", "", *ODD),
        "prompt_token_ids": ([1, 2, 3], [], [10**30], [[1], [2, 3]], np.arange(4), *ODD),
        "messages": ([{"role": "user", "content": "x"}], [{}], *ODD),
    }
    record: dict[str, Any] = {}
    for name in rng.choices(tuple(contents), weights=(6, 3, 1), k=1 if rng.random() < 0.95 else 2):
        good = contents[name][0]
        record[name] = good if rng.random() < 0.7 else rng.choice(contents[name])
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        record[rng.choice(SAMPLING + OTHERS)] = rng.choice(ODD)
    if rng.random() < 0.2:
        record["arguments"] = {"structured": rng.choice(GRAMMARS)}
    record.setdefault("max_tokens", 4)
    return record


def requests_of(seed: int) -> list[Any]:
    """Random requests between neighbours."""
    rng = random.Random(seed)
    made: list[Any] = [NEIGHBOUR]
    for _ in range(4):
        made += [random_request(rng), NEIGHBOUR]
    return made


def check(requests: list[Any], results: list[RequestResult]) -> None:
    """Every request has its own end, and the neighbours have theirs."""
    assert len(results) == len(requests)
    expected = results[0].outputs[0].token_ids
    assert len(expected) == 4
    for request, result in zip(requests, results, strict=True):
        reason = str(result.finish_reason)
        if request is NEIGHBOUR:
            assert (reason, result.outputs[0].token_ids) == ("length", expected)
        elif reason == "refused":
            assert result.error
            assert len(result.error) < 2000, result.error[:200]
        else:
            assert reason in ("length", "stop", "error"), result


def run_together(llm: LLM, seed: int) -> None:
    """All at once in `LLM`."""
    requests = requests_of(seed)
    check(requests, llm.generate(requests, SamplingParams(max_tokens=4)))


async def run_async(llm: AsyncLLM, seed: int) -> None:
    """All at once in `AsyncLLM`."""

    async def one(prompt: Any) -> RequestResult:
        results = [event.result async for event in llm.generate(prompt) if event.result]
        assert len(results) == 1
        return results[0]

    requests = requests_of(seed)
    calls = asyncio.gather(*map(one, requests))
    check(requests, await asyncio.wait_for(calls, 120))


def fuzz(first: int, count: int) -> None:
    """Half of the seeds in one engine of each kind; raises with the seed of the first fault."""

    async def in_loop() -> None:
        async with AsyncLLM.from_config("sim", *OVERRIDES) as llm:
            for seed in range(first + count // 2, first + count):
                try:
                    await run_async(llm, seed)
                except Exception as error:
                    raise AssertionError(f"AsyncLLM, seed {seed}: {error!r}") from error

    with LLM.from_config("sim", *OVERRIDES) as llm:
        for seed in range(first, first + count // 2):
            try:
                run_together(llm, seed)
            except Exception as error:
                raise AssertionError(f"LLM, seed {seed}: {error!r}") from error
    asyncio.run(in_loop())


def main() -> None:
    first, count = map(int, sys.argv[1:3])
    fuzz(first, count)
    print(f"{count} batches of random requests, each served or refused alone")


if __name__ == "__main__":
    main()
