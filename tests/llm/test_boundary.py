"""The boundary between a request and the run: its sender has one answer, the others go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nanofw import LLM, AsyncLLM
from nanofw.cli.main import main
from nanofw.errors import ExecutorError
from nanofw.llm.results import RequestResult

GOOD = {"prompt": "good", "max_tokens": 3, "temperature": 0, "seed": 1}


class Odd(Mapping[str, Any]):
    """A mapping that raises wherever it is read."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getitem__(self, key: str) -> Any:
        raise self._error

    def __iter__(self) -> Iterator[str]:
        raise self._error

    def __len__(self) -> int:
        raise self._error


def run_llm(bad: Any, **fields: Any) -> list[RequestResult]:
    with LLM.from_config("sim") as llm:
        return llm.generate([GOOD, bad, GOOD], **fields)


def run_async(bad: Any, **fields: Any) -> list[RequestResult]:
    async def one(llm: AsyncLLM, prompt: Any) -> RequestResult:
        results = [event.result async for event in llm.generate(prompt, **fields) if event.result]
        assert len(results) == 1
        return results[0]

    async def run() -> list[RequestResult]:
        async with AsyncLLM.from_config("sim") as llm:
            calls = (one(llm, prompt) for prompt in (GOOD, bad, GOOD))
            return await asyncio.wait_for(asyncio.gather(*calls), 60)

    return asyncio.run(run())


@pytest.mark.parametrize("run", [run_llm, run_async])
@pytest.mark.parametrize("fields", [{}, {"client": "me"}, {"metadata": Odd(LookupError())}])
@pytest.mark.parametrize("error", [LookupError("no"), SystemExit(2), GeneratorExit()])
def test_a_prompt_that_raises_when_it_is_read_is_refused_alone(
    run: Any, fields: dict[str, Any], error: BaseException
) -> None:
    before, bad, after = run(Odd(error), **fields)
    assert (str(bad.finish_reason), type(error).__name__ in str(bad.error)) == ("refused", True)
    assert before.outputs[0].token_ids == after.outputs[0].token_ids
    assert before.ok


def test_a_refused_prompt_takes_no_place_in_the_engine_and_is_counted() -> None:
    async def run() -> tuple[str, str]:
        async with AsyncLLM.from_config("sim", max_requests=1) as llm:
            first = llm.generate("x", max_tokens=1500)
            await anext(first)
            (event,) = [event async for event in llm.generate({"promt": "x"})]
            assert event.result is not None
            return str(event.result.finish_reason), await llm.metrics()

    reason, metrics = asyncio.run(asyncio.wait_for(run(), 60))
    assert reason == "refused"
    assert 'nanofw_results_total{reason="refused"} 1' in metrics


@pytest.mark.parametrize("overlap", ["true", "false"])
@pytest.mark.parametrize("n", [1, 2])
def test_a_text_that_cannot_be_made_ends_its_request_alone(
    monkeypatch: pytest.MonkeyPatch, n: int, overlap: str
) -> None:
    with LLM.from_config("sim", f"engine.overlap={overlap}") as llm:
        (sound,) = llm.generate([GOOD])
        tokenizer = llm.tokenizer
        assert tokenizer is not None
        decode = type(tokenizer).decode
        target: list[tuple[int, ...]] = []

        def fragile(self: Any, token_ids: Any, **keywords: Any) -> str:
            if len(token_ids) == 5:
                target.append(tuple(token_ids))
                raise LookupError("no such token")
            return decode(self, token_ids, **keywords)

        monkeypatch.setattr(type(tokenizer), "decode", fragile)
        bad = {"prompt": "bad", "max_tokens": 5, "n": n, "id": "bad"}
        results = llm.generate([GOOD, bad, GOOD])
        assert target
        assert [str(one.finish_reason) for one in results] == ["length", "error", "length"]
        assert "its text cannot be made: LookupError: no such token" in str(results[1].error)
        assert results[2].outputs[0].token_ids == sound.outputs[0].token_ids
        monkeypatch.setattr(type(tokenizer), "decode", decode)
        (again,) = llm.generate([bad])
        assert again.ok, "the id is free again"


FAILS_ON_ADD = """
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.plugins import Plugin, Policy, hookimpl

class Asks(Policy):
    def key(self, request, view):
        return view.cached_tokens(request) if request.index > 1 else 0

class Fails(PagedPrefixAllocator):
    def num_cached_tokens(self, token_ids, salt=0):
        raise OSError("the disk of the cache is gone")

@hookimpl
def scheduler():
    return Plugin("asks", ":Asks", api="scheduler/2")

@hookimpl
def kv_allocator():
    return Plugin("fails", ":Fails", api="kv_allocator/2", capabilities={"block_sizes": ("*",)})
"""


def test_an_engine_that_fails_while_requests_are_added_tells_everyone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.py").write_text(FAILS_ON_ADD, encoding="utf-8")
    words = [f"plugins.load=[{tmp_path / 'odd.py'}]", "scheduler.name=asks"]
    words.append("kv_allocator.name=fails")
    output = tmp_path / "x.jsonl"
    prompts = json.dumps([{"prompt": "x", "id": f"r{i}"} for i in range(5)])
    assert main(["run", "sim", *words, f"input.prompts={prompts}", f"output.file={output}"]) == 3
    said = capsys.readouterr().err
    assert "kv_allocator 'fails' of " in said
    assert "num_cached_tokens() raised OSError: the disk of the cache is gone" in said
    results = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert [(one["id"], one["finish_reason"]) for one in results] == [
        (f"r{i}", "error") for i in range(5)
    ]

    async def run() -> list[str]:
        async with AsyncLLM.from_config("sim", *words) as llm:

            async def one() -> str:
                try:
                    events = [event async for event in llm.generate("x")]
                except ExecutorError:  # it had failed before
                    return "error"
                assert events[-1].result is not None
                return str(events[-1].result.finish_reason)

            return list(await asyncio.gather(*(one() for _ in range(5))))

    assert asyncio.run(asyncio.wait_for(run(), 60)) == ["error"] * 5
