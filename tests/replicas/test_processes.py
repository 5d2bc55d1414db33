"""Replicas as processes of this host: in real time on the simulated executor, and on the CPU."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanofw import LLM, AsyncLLM, SamplingParams
from nanofw.config.load import load_config
from nanofw.contracts.requests import FinishReason
from nanofw.errors import ConfigError, ExecutorError, PluginLoadError
from nanofw.replicas import processes
from tests.runtime.parallel.ranks import is_running
from tests.runtime.parallel.test_parity import DEMO, KINDS

LIMIT_S = 20.0
CPU: dict[str, Any] = {"device": "cpu", "max_num_seqs": 4, "max_model_len": 256}
SIM: dict[str, Any] = {
    "device": "cpu", "executor": {"name": "sim", "seconds_per_step": 0.005}, "max_num_seqs": 1,
    "max_model_len": 256, "replicas": 2, "router": "round_robin", "replica_restarts": 0,
}  # fmt: skip
LONG = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def pids_of(llm: AsyncLLM) -> list[list[int]]:
    def read(session: Any) -> list[list[int]]:
        return list(session.engine.pids)

    return await asyncio.wrap_future(llm._thread.call(read))


async def last(stream: Any) -> Any:
    return [event async for event in stream][-1].result


def test_a_dead_process_ends_what_was_handed_out_and_the_rest_goes_on() -> None:
    async def main() -> None:
        prompts = [[number, 2] for number in range(6)]
        with LLM(str(DEMO), **SIM | {"replicas": 1}) as one:
            expected = [r.outputs[0].token_ids for r in one.generate(prompts, LONG)]
        llm = AsyncLLM(str(DEMO), **SIM)
        dead, other = await pids_of(llm)
        streams = [llm.generate(prompt, LONG) for prompt in prompts]
        begun = [await anext(stream) for stream in streams[:2]]  # one at each replica
        rest = [asyncio.create_task(last(stream)) for stream in streams[2:]]
        await llm.stats()  # they have been sent
        os.kill(dead[0], signal.SIGKILL)
        ends = await asyncio.gather(*map(last, streams[:2]), *rest)
        assert [end.finish_reason for end in ends] == (
            [FinishReason.ERROR] + [FinishReason.LENGTH] * 5
        )
        assert [end.outputs[0].token_ids for end in ends[1:]] == expected[1:]
        assert begun[0].token_ids == expected[0][: len(begun[0].token_ids)]
        kept = ends[0].outputs[0].token_ids
        assert 0 < len(kept) < 60
        assert kept == expected[0][: len(kept)]
        error = ends[0].error
        assert error.startswith("replica 0 is gone, and the request could not be started again")
        assert f"replica 0 (process {dead[0]}) was ended by SIGKILL" in error
        assert ends[2].timings.tpot_s == pytest.approx(0.005, rel=1e-6)  # of the modelled machine
        assert await pids_of(llm) == [[], other]
        assert [bool(problem) for problem in llm.replica_problems] == [True, False]
        odd: dict[str, Any] = {"fcfs": {"a": [1, lambda: 0]}}
        refused = await last(llm.generate([5, 2], LONG, arguments=odd))
        assert refused.finish_reason is FinishReason.REFUSED
        assert "fcfs contain an object of the class function" in refused.error
        late = await last(llm.generate([5, 2], LONG))
        assert late.ok
        os.kill(other[0], signal.SIGTERM)
        end = await last(llm.generate([5, 2], LONG))
        assert end.finish_reason is FinishReason.ERROR
        assert re.search("all replicas are gone\nreplica 0: .*\nreplica 1: ", end.error)
        with pytest.raises(ExecutorError, match="all replicas are gone"):
            await last(llm.generate([5, 2], LONG))
        await llm.close()
        assert not is_running(other[0])

    asyncio.run(main())


def test_a_dead_process_is_started_again_and_what_was_counted_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "RESTART_WAIT_S", 0.01)

    async def main() -> None:
        options: dict[str, Any] = SIM | {"replica_restarts": 1}
        async with AsyncLLM(str(DEMO), **options) as llm:
            first, other = await pids_of(llm)
            ends = await asyncio.gather(*(last(llm.generate([n, 2], LONG)) for n in range(4)))
            assert all(end.ok for end in ends)
            before = await llm.stats()
            assert before["num_output_tokens"] == 240
            os.kill(first[0], signal.SIGKILL)
            while (await pids_of(llm))[0] in (first, []):
                assert (await llm.stats())["num_output_tokens"] == 240
                await asyncio.sleep(0)
            assert llm.replica_problems == (None, None)
            again, same = await pids_of(llm)
            assert same == other
            ends = await asyncio.gather(*(last(llm.generate([n, 2], LONG)) for n in range(4)))
            assert all(end.ok for end in ends)
            after: Any = await llm.stats()
            assert after["num_output_tokens"] == 480
            assert [record["stats"]["num_output_tokens"] for record in after["replicas"]] == [
                120, 240,
            ]  # fmt: skip
            os.kill(again[0], signal.SIGKILL)
            while not llm.replica_problems[0]:
                await llm.stats()
            assert "was ended by SIGKILL" in (llm.replica_problems[0] or "")
            assert (await last(llm.generate([5, 2], LONG))).ok
            assert (await pids_of(llm))[0] == []

    asyncio.run(asyncio.wait_for(main(), 60))


OWNER = """
import os, sys, time
from nanofw import AsyncLLM
import asyncio
async def main():
    llm = AsyncLLM({model!r}, **{values!r})
    pids = llm._thread.call(lambda session: sum(session.engine.pids, []))
    print(*await asyncio.wrap_future(pids), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_processes_end_with_the_one_that_started_them(number: signal.Signals) -> None:
    code = OWNER.format(model=str(DEMO), values=SIM)
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 2
    owner.send_signal(number)
    owner.wait(LIMIT_S)
    owner.stdout.close()
    wait_until(lambda: not any(is_running(pid) for pid in pids))


def test_a_replica_that_cannot_start_says_why(tmp_path: Path) -> None:
    plugin = tmp_path / "broken.py"
    plugin.write_text(BROKEN, encoding="utf-8")
    values = SIM | {"scheduler": "broken", "plugins": {"load": [str(plugin)]}}
    with pytest.raises(PluginLoadError, match="replica [01]: scheduler 'broken' of .*") as caught:
        AsyncLLM(str(DEMO), **values)
    assert "RuntimeError('no start')" in str(caught.value)


BROKEN = """
from nanofw.plugins import Plugin, Policy, hookimpl

class Broken(Policy):
    def __init__(self, options, config):
        raise RuntimeError("no start")

    def key(self, request, view):
        return 0

@hookimpl
def scheduler():
    return Plugin("broken", ":Broken", api="scheduler/2", capabilities={"overlap": True})
"""


def test_a_silent_process_is_ended_and_its_requests_start_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "STEP_TIMEOUT_S", 0.5)

    async def main() -> None:
        async with AsyncLLM(str(DEMO), **SIM) as llm:
            (silent,), _ = await pids_of(llm)
            os.kill(silent, signal.SIGSTOP)
            ends = await asyncio.gather(*(last(llm.generate([n, 2], LONG)) for n in range(4)))
            assert all(end.ok for end in ends)
            first, second = llm.replica_problems
            said = f"replica 0 (process {silent}) said nothing for 0.5 s (executor.step_timeout_s)"
            assert first == said
            assert second is None
        assert not is_running(silent)

    asyncio.run(main())


def test_each_replica_has_devices_or_cores_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(device: str, **engine: object) -> list[dict[str, str]]:
        loaded = load_config(values={"model": {"path": str(DEMO)}, "engine": engine})
        return [dict(variables) for variables in processes.environments(loaded, device)]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    pairs = [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    assert given("cuda", replicas=2, tensor_parallel_size=2) == pairs
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7")
    ours = [{"CUDA_VISIBLE_DEVICES": "5"}, {"CUDA_VISIBLE_DEVICES": "GPU-7"}]
    assert given("cuda", replicas=2) == ours
    with pytest.raises(ConfigError, match="engine.replicas: 3 replicas of 1 ranks need 3 devices"):
        given("cuda", replicas=3)
    with pytest.raises(ConfigError, match="engine.device: must have no number"):
        given("cuda:1", replicas=2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert given("cpu", replicas=4) == [{"OMP_NUM_THREADS": "1"}] * 4
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert given("cpu", replicas=2) == [{"OMP_NUM_THREADS": "3"}] * 2


@pytest.mark.slow
def test_two_processes_sample_the_tokens_of_one_engine() -> None:
    sampling = [SamplingParams(max_tokens=12, ignore_eos=True, **kind) for kind in KINDS]
    sampling += [SamplingParams(temperature=1.0, max_tokens=9)] * 6  # seeds by their place
    prompts: list[Any] = [[3, 5 + number, 8] * (number % 4 + 1) for number in range(len(sampling))]
    prompts += ["", {"prompt": "a", "arguments": {"structured": {"regex": "("}}}]
    sampling += [LONG, LONG]
    found: list[Any] = []
    for values in (CPU, CPU | {"replicas": 2}):
        with LLM(str(DEMO), **values, logits_processors=[{"name": "structured"}]) as llm:
            results = llm.generate(prompts, sampling)
            found.append([[o.token_ids for o in result.outputs] for result in results])
            stopped = llm.generate("And it came", SamplingParams(max_tokens=60, stop=[" the"]))[0]
            found[-1] += [stopped.outputs[0].text]
            found[-1] += [(result.finish_reason, result.error) for result in results[-2:]]
            assert llm.engine.stats()["num_running"] == 0
    assert found[0] == found[1]
    engine: Any = llm.engine
    assert engine.outstanding == [0, 0]
