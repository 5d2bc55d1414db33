"""Two engines as actors on two nodes, behind one router."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nanofw import LLM, AsyncLLM, SamplingParams
from nanofw.contracts.requests import FinishReason
from nanofw.errors import ConfigError, ExecutorError
from tests.runtime.parallel.ranks import is_running
from tests.runtime.parallel.test_parity import DEMO, KINDS

ray = pytest.importorskip("ray")

LIMIT_S = 10.0
VALUES: dict[str, Any] = {"device": "cpu", "max_num_seqs": 4, "max_model_len": 256}
TWO: dict[str, Any] = VALUES | {"replicas": 2, "executor": "ray"}
LONG = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """All CPUs of the cluster are free again."""
    yield
    if "cluster" in request.fixturenames:
        wait_until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pids_of(llm: LLM) -> list[list[int]]:
    engine: Any = llm.engine
    return engine.pids


@pytest.mark.slow  # local processes are tried in test_processes.py
def test_two_replicas_sample_the_tokens_of_one_engine(cluster: Any) -> None:
    sampling = [SamplingParams(max_tokens=12, ignore_eos=True, **kind) for kind in KINDS]
    sampling += [SamplingParams(temperature=1.0, max_tokens=9)] * 6  # seeds by their place
    prompts: list[Any] = [[3, 5 + number, 8] * (number % 4 + 1) for number in range(len(sampling))]
    # refused: by the router; by the router; by the replica, where the grammar is read
    prompts += ["", {"prompt_token_ids": [1] * 300}]
    prompts += [{"prompt": "a", "arguments": {"structured": {"regex": "("}}}]
    sampling += [LONG, LONG, LONG]
    found: list[Any] = []
    for values in (VALUES, TWO):
        with LLM(str(DEMO), **values, logits_processors=[{"name": "structured"}]) as llm:
            results = llm.generate(prompts, sampling)
            found.append([[o.token_ids for o in result.outputs] for result in results])
            streamed = list(llm.stream("And it came to pass", LONG))
            stopped = llm.generate("And it came", SamplingParams(max_tokens=60, stop=[" the"]))[0]
            found[-1] += [streamed[-1].result.outputs[0].text, stopped.outputs[0].text]
            found[-1] += [(result.finish_reason, result.error) for result in results[-3:]]
            stats = llm.engine.stats()
            assert stats["num_submitted"] == len(prompts) + 2
            assert stats["num_running"] == 0
            assert "nanofw_output_tokens_total" in llm.metrics()
    assert found[0] == found[1]
    engine: Any = llm.engine
    assert engine.outstanding == [0, 0]
    assert "".join(event.text for event in streamed) == found[1][-5]
    assert [reason for reason, _ in found[1][-3:]] == [FinishReason.REFUSED] * 3
    assert all(result.timings.ttft_s >= 0 for result in results[:-3])


@pytest.mark.slow
def test_requests_of_a_dead_replica_start_again_and_streams_end_with_an_error(cluster: Any) -> None:
    with LLM(str(DEMO), **VALUES) as llm:
        expected = [r.outputs[0].token_ids for r in llm.generate([[1, 2, 3]] * 9, LONG)]
    llm = LLM(str(DEMO), **TWO)
    engine: Any = llm.engine
    streams = [llm.stream("And it came to pass", LONG) for _ in range(2)]
    firsts = [next(stream) for stream in streams]  # one at each replica
    assert firsts[0].text == firsts[1].text
    assert min(engine.outstanding) > 0
    dead, others = pids_of(llm)
    os.kill(dead[0], signal.SIGKILL)
    begin = time.monotonic()
    results = llm.generate([[1, 2, 3]] * 9, LONG)
    assert [result.outputs[0].token_ids for result in results] == expected
    ends = [list(stream)[-1].result for stream in streams]
    errors = [end.error for end in ends if end is not None and end.error]
    assert len(errors) == 1
    assert errors[0].startswith("replica 0 is gone, and the request could not be started again")
    assert [end.finish_reason for end in ends if end is not None].count(FinishReason.LENGTH) == 1
    assert pids_of(llm) == [[], others]
    os.kill(others[0], signal.SIGKILL)
    with pytest.raises(ExecutorError, match="all replicas are gone\nreplica 0: .*\nreplica 1: "):
        llm.generate([[1, 2, 3]], LONG)
    assert time.monotonic() - begin < 4 * LIMIT_S
    wait_until(lambda: not any(is_running(pid) for pid in (*dead, *others)))
    llm.close()


def test_one_engine_is_not_built_of_several() -> None:
    from nanofw.assembly import build, select
    from nanofw.config.load import load_config

    values = {"model": {"path": str(DEMO)}, "engine": {"replicas": 2, "device": "cpu"}}
    loaded = load_config(values=values | {"executor": {"name": "ray"}})
    with pytest.raises(ConfigError, match=r"engine.replicas: must be 1 here"):
        build(select(loaded))


@pytest.mark.slow
def test_ray_starts_a_dead_replica_again(cluster: Any) -> None:
    async def main() -> None:
        options: dict[str, Any] = TWO | {"executor": {"name": "ray", "max_restarts": 1}}
        async with AsyncLLM(str(DEMO), **options) as llm:
            first = await pids(llm)
            os.kill(first[1][0], signal.SIGKILL)
            deadline = time.monotonic() + 6 * LIMIT_S
            while not all(now := await pids(llm)) or now == first:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            assert now[0] == first[0]
            assert now[1] != first[1]
            results = await asyncio.gather(*(last(llm) for _ in range(8)))
            assert all(result.ok for result in results)

    async def pids(llm: AsyncLLM) -> Any:
        def read(session: Any) -> list[list[int]]:
            return list(session.engine.pids)

        return await asyncio.wrap_future(llm._thread.call(read))

    async def last(llm: AsyncLLM) -> Any:
        return [event async for event in llm.generate("And it", LONG)][-1].result

    asyncio.run(main())


@pytest.mark.slow
def test_replicas_of_two_ranks_and_a_local_plugin(cluster: Any, tmp_path: Path) -> None:
    plugin = tmp_path / "newest.py"
    plugin.write_text(NEWEST, encoding="utf-8")
    values = TWO | {
        "tensor_parallel_size": 2,
        "executor": {"name": "ray", "placement_timeout_s": 8},
        "scheduler": "newest",
        "plugins": {"load": [str(plugin)]},
    }
    with LLM(str(DEMO), **VALUES) as llm:
        expected = [r.outputs[0].token_ids for r in llm.generate([[1, 2, 3]] * 3, LONG)]
    with LLM(str(DEMO), **values) as llm:
        assert [len(group) for group in pids_of(llm)] == [3, 3]
        all_pids = [pid for group in pids_of(llm) for pid in group]
        assert [r.outputs[0].token_ids for r in llm.generate([[1, 2, 3]] * 3, LONG)] == expected
    wait_until(lambda: not any(is_running(pid) for pid in all_pids))


@pytest.mark.slow
def test_a_request_that_ends_engines_is_tried_twice_and_the_others_are_served(
    cluster: Any, tmp_path: Path
) -> None:
    plugin = tmp_path / "poisoned.py"
    plugin.write_text(POISONED, encoding="utf-8")
    values = TWO | {
        "executor": {"name": "ray", "max_restarts": 1},
        "scheduler": "poisoned",
        "plugins": {"load": [str(plugin)]},
    }
    prompts: list[Any] = [{"prompt_token_ids": [1, 2, number]} for number in range(6)]
    with LLM(str(DEMO), **values) as llm:
        first = pids_of(llm)
        results = llm.generate([*prompts, prompts[0] | {"priority": 13}], LONG)
        assert all(result.ok for result in llm.generate(prompts, LONG))
        assert not {pid for group in pids_of(llm) for pid in group} & {p for g in first for p in g}
    poison = results.pop()
    assert poison.finish_reason is FinishReason.ERROR
    assert "tried before" in str(poison.error)
    assert "that is poison" in str(poison.error)
    # those that ran beside it both times were tried twice too
    assert {result.finish_reason for result in results} <= {FinishReason.LENGTH, FinishReason.ERROR}


POISONED = """
from nanofw.plugins import Plugin, Policy, hookimpl

class Poisoned(Policy):
    def key(self, request, view):
        return request.arrival

    def chunk(self, request, view):
        if request.priority == 13:
            raise RuntimeError("that is poison")

@hookimpl
def scheduler():
    return Plugin("poisoned", ":Poisoned", api="scheduler/2", capabilities={"overlap": True})
"""
NEWEST = """
from nanofw.plugins import Plugin, Policy, hookimpl

class Newest(Policy):
    def key(self, request, view):
        return -request.arrival

@hookimpl
def scheduler():
    return Plugin("newest", ":Newest", api="scheduler/2", capabilities={"overlap": True})
"""
