"""Random requests: each is served or refused alone, and its neighbours are what they always are.

They come by every way in: `LLM.generate` and `stream`, `AsyncLLM`, and lines of a file for
`nanofw run`, with keywords beside them and without. `python -m tests.fuzz.requests FIRST COUNT`:
the seeds from `FIRST` on, four odd requests each, or twenty lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from nanofw import LLM, AsyncLLM, SamplingParams
from nanofw.cli.main import main as main_command
from nanofw.llm.llm import FIELD_NAMES
from nanofw.llm.results import RequestResult

OVERRIDES = ("engine.max_model_len=128", "logits_processors=[{name: structured}]")
NEIGHBOUR = {"prompt": "neighbour", "max_tokens": 4, "temperature": 0, "seed": 1}

SOUND: dict[str, Any] = {
    "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "logit_bias": {}, "bad_words": [], "min_tokens": 0, "n": 1,
    "logprobs": None, "prompt_logprobs": None, "stop_token_ids": [], "ignore_eos": False,
    "stop": [],
    "include_stop_str_in_output": False, "skip_special_tokens": True, "client": "", "priority": 0,
    "deadline": 1.0, "expected_output_tokens": 1, "arguments": {}, "cache_salt": "", "metadata": 0,
}  # fmt: skip
"""What changes nothing."""

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


def check(requests: list[Any], results: list[RequestResult], neighbour: Any = NEIGHBOUR) -> None:
    """Every request has its own end, and the neighbours have theirs."""
    assert len(results) == len(requests)
    expected = results[0].outputs[0].token_ids
    assert len(expected) == 4
    for request, result in zip(requests, results, strict=True):
        reason = str(result.finish_reason)
        if request is neighbour:
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


def run_with_keywords(llm: LLM, seed: int) -> None:
    """All at once in `LLM`, with a keyword that those take that do not bring it."""
    rng = random.Random(-1 - seed)
    names = [name for name in SAMPLING + OTHERS if name in FIELD_NAMES]
    name = rng.choice([name for name in names if name not in ("id", "arguments")])  # of all prompts
    fields = {name: rng.choice(ODD)}
    neighbour = {**NEIGHBOUR, name: NEIGHBOUR.get(name, SOUND.get(name))}
    requests = [neighbour if one is NEIGHBOUR else one for one in requests_of(seed)]
    check(requests, llm.generate(requests, SamplingParams(max_tokens=4), **fields), neighbour)


def run_streams(llm: LLM, seed: int) -> None:
    """One after the other in `LLM.stream`: one result each, in the last event."""
    results: list[RequestResult] = []
    requests = requests_of(seed)
    for request in requests:
        events = list(llm.stream(request, SamplingParams(max_tokens=4)))
        assert [event.result is not None for event in events] == (
            [False] * (len(events) - 1) + [True]
        )
        results += [event.result for event in events if event.result is not None]
    check(requests, results)


def random_line(rng: random.Random) -> bytes:
    """A line of JSONL: a request as JSON can say it, or what is not JSON."""
    try:
        line = json.dumps(random_request(rng), default=repr, allow_nan=True).encode()
    except ValueError:  # more digits than Python writes
        line = b'{"prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}"
    if rng.random() < 0.15:
        place = rng.randrange(len(line) + 1)
        odd = (b"\xff", b"{", b"\x00", b'"', b"\\ud800", b"\r", b"[" * 3000, "é".encode("utf-16"))
        line = line[:place] + rng.choice(odd) + line[place + rng.randrange(3) :]
    return line.replace(b"\n", b" ")


def run_lines(seed: int) -> None:
    """`nanofw run` on a file: a line of output for each line of input that is not blank."""
    rng = random.Random(seed)
    neighbour = json.dumps(NEIGHBOUR).encode()
    lines = [line for _ in range(20) for line in (neighbour, random_line(rng))]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        source.write_bytes(b"\n".join(lines) + b"\n")
        words = [f"input.file={source}", f"output.file={target}", "sampling.max_tokens=4"]
        with contextlib.redirect_stderr(io.StringIO()):
            code = main_command(["run", "sim", *OVERRIDES, *words])
        assert code in (0, 1), code
        results = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    kept = [line for line in lines if line.strip()]
    assert len(results) == len(kept)
    expected = results[0]["token_ids"]
    for line, result in zip(kept, results, strict=True):
        if line == neighbour:
            assert (result["finish_reason"], result["token_ids"]) == ("length", expected)
        elif result["finish_reason"] == "refused":
            assert result["error"].startswith("in.jsonl:"), result["error"][:200]
            assert len(result["error"]) < 2000, result["error"][:200]
        else:
            assert result["finish_reason"] in ("length", "stop", "error"), result


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
    """A part of the seeds by each way in; raises with the seed of the first fault."""
    ways = [run_together, run_with_keywords, run_streams]

    async def in_loop() -> None:
        async with AsyncLLM.from_config("sim", *OVERRIDES) as llm:
            for seed in range(first + count // 2, first + count):
                try:
                    await run_async(llm, seed)
                except Exception as error:
                    raise AssertionError(f"AsyncLLM, seed {seed}: {error!r}") from error

    with LLM.from_config("sim", *OVERRIDES) as llm:
        for seed in range(first, first + count // 2):
            way = ways[seed % len(ways)]
            try:
                way(llm, seed)
            except Exception as error:
                raise AssertionError(f"{way.__name__}, seed {seed}: {error!r}") from error
    asyncio.run(in_loop())
    for seed in range(first, first + count // 20):
        try:
            run_lines(seed)
        except Exception as error:
            raise AssertionError(f"nanofw run, seed {seed}: {error!r}") from error


def main() -> None:
    first, count = map(int, sys.argv[1:3])
    fuzz(first, count)
    print(f"{count} batches of random requests, each served or refused alone")


if __name__ == "__main__":
    main()
