"""`AsyncLLM`: one engine in a thread, many callers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from nanofw import LLM, SamplingParams
from nanofw.contracts.requests import FinishReason
from nanofw.errors import ExecutorError, NanofwError, RequestError
from nanofw.llm.async_llm import AsyncLLM
from nanofw.llm.results import RequestResult, StreamEvent
from tests.llm.test_llm import FAILING

T = TypeVar("T")
FAST = "executor.seconds_per_step=0.0005"
LONG = SamplingParams(max_tokens=1900, seed=3)
PROMPTS = [f"prompt number {index}" for index in range(20)]


def params(index: int) -> SamplingParams:
    return SamplingParams(max_tokens=3 + index % 7, seed=index)


def run(main: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await main

    return asyncio.run(bounded())


async def collect(llm: AsyncLLM, prompt: Any, sampling: SamplingParams) -> RequestResult:
    text, result = "", None
    async for event in llm.generate(prompt, sampling):
        assert result is None, "an event after the last"
        text, result = text + event.text, event.result
    assert result is not None
    assert text == result.outputs[0].text
    return result


def test_many_callers_get_what_one_would() -> None:
    async def main() -> list[RequestResult]:
        async with AsyncLLM.from_config("sim") as llm:
            tasks = [collect(llm, prompt, params(i)) for i, prompt in enumerate(PROMPTS)]
            return await asyncio.gather(*tasks)

    results = run(main())
    with LLM.from_config("sim") as llm:
        expected = llm.generate(PROMPTS, [params(i) for i in range(len(PROMPTS))])
    assert [r.outputs[0].text for r in results] == [r.outputs[0].text for r in expected]
    assert [r.prompt for r in results] == PROMPTS


def test_a_sink_has_what_it_takes_and_the_lists_have_the_rest_in_order() -> None:
    async def main() -> None:
        async with AsyncLLM.from_config("sim", FAST) as llm:
            prompt = await llm.encode("a", SamplingParams(max_tokens=200, ignore_eos=True))
            tokens: list[int] = []
            offers = 0

            def sink(events: list[StreamEvent]) -> bool:
                nonlocal offers
                offers += 1
                if offers % 3 == 0:
                    return False
                tokens.extend(token for event in events for token in event.token_ids)
                return True

            result, num_lists = None, 0
            async for events in llm.generate_lists(prompt, sink=sink):
                num_lists += 1
                tokens += [token for event in events for token in event.token_ids]
                result = events[-1].result
            assert result is not None
            assert tuple(tokens) == result.outputs[0].token_ids
            assert 1 < num_lists < 150
            assert offers > num_lists

    run(main())


@pytest.mark.parametrize("how", ["cancel", "leave"])
def test_who_leaves_aborts_the_request(how: str) -> None:
    async def main() -> None:
        async with AsyncLLM.from_config("sim", max_requests=1) as llm:
            if how == "leave":
                stream = llm.generate("a", LONG)
                await anext(stream)
                await stream.aclose()
            else:
                task = asyncio.create_task(collect(llm, "a", LONG))
                while not (await llm.stats())["num_running"]:
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            stats: Any = {"num_finished": {"abort": 0}}
            while not stats["num_finished"]["abort"]:
                await asyncio.sleep(0.001)
                stats = await llm.stats()
            assert stats["blocks"]["num_used"] == 0
            assert (await collect(llm, "b", params(1))).ok

    run(main())


def test_callers_beyond_the_limit_wait_for_a_place() -> None:
    async def main() -> None:
        async with AsyncLLM.from_config("sim", max_requests=2) as llm:
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    stats: Any = await llm.stats()
                    most = max(most, stats["num_running"] + stats["num_waiting"])

            watcher = asyncio.create_task(watch())
            results = await asyncio.gather(*(collect(llm, p, params(1)) for p in PROMPTS))
            watcher.cancel()
            assert all(result.ok for result in results)
            assert most <= 2

    run(main())


def test_who_waits_too_long_for_a_place_is_refused() -> None:
    async def main() -> None:
        options = {"max_requests": 1, "admission_timeout_s": 0.0}
        async with AsyncLLM.from_config("sim", **options) as llm:
            first = llm.generate("a", LONG)
            await anext(first)
            with pytest.raises(RequestError, match="1 requests are being served"):
                await anext(llm.generate("b", LONG))
            await first.aclose()

    run(main())


def test_what_cannot_be_served_is_refused_alone() -> None:
    async def main() -> None:
        async with AsyncLLM.from_config("sim", max_requests=1) as llm:
            for wrong, words in [("", "empty"), ({"promt": "a"}, "did you mean")]:
                result = await collect(llm, wrong, params(1))
                assert words in str(result.error)
            assert (await collect(llm, "good", params(1))).ok

    run(main())


def test_a_failing_engine_tells_everyone(tmp_path: Path) -> None:
    path = tmp_path / "fragile.py"
    path.write_text(FAILING, encoding="utf-8")

    async def collect_error(llm: AsyncLLM) -> RequestResult:
        async for event in llm.generate("b", LONG):
            if event.result is not None:
                return event.result
        raise AssertionError("no result")

    async def main() -> None:
        overrides = (f"plugins.load=[{path}]", "scheduler.name=fragile")
        async with AsyncLLM.from_config("sim", *overrides) as llm:
            short, long = await asyncio.gather(
                collect(llm, "a", SamplingParams(max_tokens=3)), collect_error(llm)
            )
            assert short.ok or "asleep" in str(short.error)
            assert "asleep" in str(long.error)
            assert "asleep" in str(llm.failure)
            with pytest.raises(ExecutorError, match="asleep"):
                await anext(llm.generate("b"))
            with pytest.raises(ExecutorError, match="asleep"):
                await llm.stats()

    run(main())


def test_closing_ends_open_requests() -> None:
    async def main() -> None:
        llm = AsyncLLM.from_config("sim")
        stream = llm.generate("a", LONG)
        await anext(stream)
        await llm.close()
        await llm.close()
        last = [event async for event in stream][-1].result
        assert last is not None
        assert last.error == "the engine was closed"
        with pytest.raises(ExecutorError, match="closed"):
            await anext(llm.generate("b"))

    run(main())


def test_what_keeps_the_engine_from_starting_is_raised() -> None:
    with pytest.raises(NanofwError, match="no such folder"):
        AsyncLLM("./nowhere", executor="sim")
    with pytest.raises(ValueError, match="at least 1"):
        AsyncLLM.from_config("sim", max_requests=0)


def test_metrics_are_prometheus_text() -> None:
    async def main() -> str:
        async with AsyncLLM.from_config("sim") as llm:
            await asyncio.gather(*(collect(llm, p, params(1)) for p in PROMPTS))
            await collect(llm, "", params(1))
            return await llm.metrics()

    samples: dict[str, float] = {}
    for line in run(main()).splitlines():
        if line.startswith("#"):
            assert line.split()[1] in ("HELP", "TYPE")
        else:
            name, value = line.rsplit(" ", 1)
            assert name not in samples
            samples[name] = float(value)
    assert samples['nanofw_finished_requests_total{reason="length"}'] == 20
    assert samples['nanofw_results_total{reason="refused"}'] == 1
    assert samples["nanofw_output_tokens_total"] == 20 * (params(1).max_tokens or 0)
    assert samples["nanofw_ttft_seconds_count"] == 20
    assert samples['nanofw_ttft_seconds_bucket{le="+Inf"}'] == 20
    assert samples['nanofw_kv_blocks{state="used"}'] == 0
    assert samples["nanofw_running_requests"] == 0


REFUSING = """
from nanofw.plugins import Plugin, Policy, Refuse, hookimpl


class Refusing(Policy):
    def key(self, request, view):
        return Refuse("too late", 3.0) if request.client == "arrival" else request.arrival

    def admit(self, request, view):
        return Refuse("no room", 7.0) if request.client == "admission" else True


@hookimpl
def scheduler():
    return Plugin("refusing", ":Refusing", api="scheduler/2")
"""


def test_a_refusal_of_the_policy_says_when_to_come_again(tmp_path: Path) -> None:
    path = tmp_path / "refusing.py"
    path.write_text(REFUSING, encoding="utf-8")

    async def result_of(llm: AsyncLLM, client: str) -> RequestResult | None:
        return [event async for event in llm.generate("a", params(1), client=client)][-1].result

    async def main() -> None:
        overrides = (f"plugins.load=[{path}]", "scheduler.name=refusing")
        async with AsyncLLM.from_config("sim", *overrides) as llm:
            for client, after in (("arrival", 3.0), ("admission", 7.0)):
                result = await result_of(llm, client)
                assert result is not None
                assert result.finish_reason is FinishReason.SHED
                assert result.retry_after_s == after

    run(main())


def test_who_waits_too_long_for_the_first_step_is_shed() -> None:
    async def main() -> None:
        async with AsyncLLM.from_config("sim", FAST, "engine.max_num_seqs=1") as llm:
            first = llm.generate("a", LONG)
            await anext(first)
            waiting = llm.generate("b", params(1), queue_timeout_s=0.001)
            (event,) = [event async for event in waiting]
            assert event.result is not None
            assert event.result.finish_reason is FinishReason.SHED
            assert "waited 0.001 s" in str(event.result.error)
            await first.aclose()

    run(main())


def test_events_that_wait_for_a_slow_caller_are_joined() -> None:
    async def main() -> None:
        async with AsyncLLM.from_config("sim", FAST) as llm:
            stream = llm.generate("a", SamplingParams(max_tokens=1000, seed=1, n=2))
            events = [await anext(stream)]
            while (await llm.stats())["num_running"]:
                pass
            events += [event async for event in stream]
            assert len(events) < 300
            result = events[-1].result
            assert result is not None
            for output in result.outputs:
                mine = [event for event in events[:-1] if event.index == output.index]
                assert "".join(event.text for event in mine) == output.text
                assert sum((event.token_ids for event in mine), ()) == output.token_ids

    run(main())
