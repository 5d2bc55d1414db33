"""A rank or the engine's process fails: one error with the cause, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nanofw import AsyncLLM
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.engine.engine import Engine
from nanofw.errors import ConfigError, ExecutorError, ModelError
from nanofw.runtime.options import TorchOptions
from nanofw.runtime.parallel.executor import ParallelExecutor
from nanofw.runtime.parallel.patience import Patience
from tests.runtime.driver import component
from tests.runtime.parallel.faults import FaultOptions
from tests.runtime.parallel.ranks import engine_over, executor_of, is_running, run
from tests.runtime.parallel.test_parity import DEMO, greedy

LIMIT_S = 10.0
PATIENT = TorchOptions(step_timeout_s=120)
IMPATIENT = TorchOptions(step_timeout_s=2)


def faulty(options: TorchOptions = PATIENT, **fault: Any) -> ParallelExecutor:
    """Two ranks, one of which will fail."""
    sampler = component("sampler", "faulty", "tests.runtime.parallel.faults:FaultySampler")
    from dataclasses import replace

    plugin = replace(sampler.plugin, options="tests.runtime.parallel.faults:FaultOptions")
    chosen = replace(sampler, plugin=plugin, options=FaultOptions(**fault))
    return executor_of(DEMO, 2, options=options, components={"sampler": chosen})


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No child process, no thread and no open file more than before."""
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    children_before = set(children())
    yield
    assert not set(children()) - children_before
    assert threading.active_count() <= before[0]
    assert len(os.listdir("/proc/self/fd")) <= before[1]


def children() -> list[str]:
    """Command lines of this process's children that are workers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(stat[1]) == os.getpid() and b"workers.main" in command:
            found.append(command.decode())
    return found


def step_until_it_fails(engine: Engine) -> tuple[Exception, float, list[Any]]:
    """The error, seconds that it took to come once things went wrong, what had finished."""
    sampling = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 30, 30)]
    for number, params in enumerate(sampling):
        engine.add_request(Request(id=f"r{number}", prompt_token_ids=[5, 6, 7], sampling=params))
    finished: list[Any] = []
    begin = time.monotonic()
    try:
        while engine.has_unfinished:
            begin = time.monotonic()
            finished += engine.step().finished
    except Exception as error:
        return error, time.monotonic() - begin, finished + engine.take_finished()
    raise AssertionError("nothing failed")


def test_B078_a_rank_that_raises_ends_the_run_with_its_traceback() -> None:
    executor = faulty(rank=1, phase="decode", deed="raise", num_steps=5)
    engine = engine_over(executor, DEMO)
    error, seconds, finished = step_until_it_fails(engine)
    assert isinstance(error, ExecutorError)
    assert seconds < LIMIT_S
    for part in ("rank 1", "RuntimeError: the sampler has had enough", "faults.py", "in _at"):
        assert part in str(error)
    assert [output.id for output in finished] == ["r0"]
    assert not any(is_running(pid) for pid in executor.facts().process_ids)
    with pytest.raises(ExecutorError, match="had enough"):
        executor.check(Request(id="x", prompt_token_ids=[1]))
    engine.close()
    engine.close()
    again = executor_of(DEMO, 2)  # a restart right after
    try:
        assert run(engine_over(again, DEMO), [[1, 2]], greedy(1, 2))
    finally:
        again.close()


def shared_memory(pid: int) -> set[str]:
    """What a process has of it, but semaphores, which are multiprocessing's."""
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    return {line for line in maps if "/dev/shm/" in line and "/dev/shm/sem." not in line}


def test_a_killed_rank_is_named_with_its_signal() -> None:
    others = shared_memory(os.getpid())  # of other tests
    executor = executor_of(DEMO, 2)
    pids = executor.facts().process_ids
    for pid in (os.getpid(), *pids):  # nothing in shared memory that could stay
        assert not shared_memory(pid) - others
    engine = engine_over(executor, DEMO, overlap=True)
    timer = threading.Timer(0.7, os.kill, (pids[0], signal.SIGKILL))
    sampling = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    for number in range(50):
        engine.add_request(Request(id=f"r{number}", prompt_token_ids=[5, 6, 7], sampling=sampling))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(ExecutorError, match=r"rank 0 .*SIGKILL"):
        step_on(engine)
    assert time.monotonic() - begin < LIMIT_S
    timer.join()
    engine.close()


@pytest.mark.slow
def test_a_rank_that_dies_while_idle_is_noticed_before_the_next_step() -> None:
    executor = executor_of(DEMO, 2)
    engine = engine_over(executor, DEMO)
    assert engine.is_watchable
    engine.check_alive()
    os.kill(executor.facts().process_ids[1], signal.SIGKILL)
    with pytest.raises(ExecutorError, match=r"rank 1 .*SIGKILL"):
        wait_for(lambda: engine.check_alive())
    assert engine.has_failed
    assert not any(is_running(pid) for pid in executor.facts().process_ids)
    with pytest.raises(ExecutorError, match="failed before"):
        engine.step()
    engine.close()


def test_who_asks_an_idle_engine_whose_rank_died_is_told_at_once() -> None:
    async def main() -> None:
        async with AsyncLLM(str(DEMO), device="cpu", tensor_parallel_size=2) as llm:

            def process_ids(session: Any) -> Any:
                return session.engine.executor.facts().process_ids

            pids = await asyncio.wrap_future(llm._thread.call(process_ids))
            os.kill(pids[0], signal.SIGKILL)
            deadline = time.monotonic() + LIMIT_S
            while llm.failure is None and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            assert "SIGKILL" in str(llm.failure)
            with pytest.raises(ExecutorError, match=r"rank 0 .*SIGKILL"):
                async for _ in llm.generate("Hello"):
                    pass

    asyncio.run(main())


def wait_for(deed: Callable[[], None]) -> None:
    """Do it again and again, until it raises."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        deed()
        time.sleep(0.02)


def test_a_rank_that_stalls_ends_the_run_with_where_it_was() -> None:
    executor = faulty(IMPATIENT, rank=1, phase="decode", deed="stall")
    engine = engine_over(executor, DEMO)
    error, seconds, _ = step_until_it_fails(engine)
    assert 2 <= seconds < LIMIT_S
    for part in ("rank 1", "within 2 s", "step_timeout_s", "faults.py", "in _at"):
        assert part in str(error)
    engine.close()


STOPS = """
import os, signal, sys, time
for _ in range(2):
    os.kill(int(sys.argv[1]), signal.SIGSTOP)
    time.sleep(3.5)
    os.kill(int(sys.argv[1]), signal.SIGCONT)
    time.sleep(0.2)
"""


def test_F043_an_engine_that_was_stopped_accuses_nobody() -> None:
    """Stopped for longer than ranks may be silent, while they answer."""
    executor = executor_of(DEMO, 2, options=TorchOptions(step_timeout_s=3))
    engine = engine_over(executor, DEMO, overlap=True)
    sampling = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    stopper = subprocess.Popen([sys.executable, "-c", STOPS, str(os.getpid())])
    added = finished = 0
    while stopper.poll() is None or engine.has_unfinished:
        if not engine.has_unfinished:
            request = Request(id=f"r{added}", prompt_token_ids=[5, 6, 7], sampling=sampling)
            engine.add_request(request)
            added += 1
        finished += sum(output.error is None for output in engine.step().finished)
    assert stopper.returncode == 0
    assert finished == added > 0
    engine.close()


def test_F043_time_in_which_the_process_stood_still_counts_as_one_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    patience = Patience(300.0)
    patience.next_slice()
    now[0] += 10_000.0
    patience.end_slice()
    assert not patience.is_over
    for _ in range(299):
        patience.next_slice()
        now[0] += 1.0
        patience.end_slice()
    assert patience.is_over
    patience.renew()
    assert not patience.is_over


def test_a_model_that_cannot_be_loaded_says_so_as_with_one_rank(tmp_path: Path) -> None:
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / file).write_bytes((DEMO / file).read_bytes())
    with pytest.raises(ModelError, match=r"rank \d: .*neither model.safetensors nor"):
        executor_of(tmp_path, 2)


@pytest.mark.parametrize("phase", [pytest.param("idle", marks=pytest.mark.slow), "decode"])
def test_B077_a_killed_engine_takes_its_ranks_along(phase: str) -> None:
    driver = start_driver(phase)
    pids = kill_when_there(driver)
    wait_until_gone(pids)
    if phase == "idle":
        again = executor_of(DEMO, 2)  # the next start finds nothing in its way
        again.close()


def test_an_interrupt_reaches_the_engine_alone() -> None:
    executor = executor_of(DEMO, 2)
    engine = engine_over(executor, DEMO)
    for pid in executor.facts().process_ids:
        assert os.getsid(pid) == pid  # a session of its own: no terminal's Ctrl-C
        os.kill(pid, signal.SIGINT)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    sampling = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    for number in range(100):
        engine.add_request(Request(id=f"r{number}", prompt_token_ids=[5, 6], sampling=sampling))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        step_on(engine)
    timer.join()
    engine.close()


def step_on(engine: Engine) -> None:
    while engine.has_unfinished:
        engine.step()


def start_driver(phase: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.parallel.driver_process", phase],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip


def kill_when_there(driver: subprocess.Popen[str]) -> list[int]:
    """Kill it in its phase; the pids of its ranks."""
    assert driver.stdout is not None
    pids: list[int] = []
    for line in driver.stdout:
        if line.startswith("pids"):
            pids = [int(word) for word in line.split()[1:]]
        if line.startswith("there"):
            break
    assert len(pids) == 2
    assert all(is_running(pid) for pid in pids)
    driver.kill()
    driver.wait()
    driver.stdout.close()
    return pids


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, "the ranks outlive their engine"
        time.sleep(0.02)


PHASES = ("load", "warm_up", "prefill", "decode", "shutdown")
DEEDS = ("raise", "kill", "stall", "out_of_memory", "leave")


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_faults_of_ranks_and_engines() -> None:
    """Each round: who, where and what at random; how long until the error came; nothing left."""
    generator = random.Random(0)
    slowest: dict[str, float] = {}
    for number in range(100):
        if number % 4 == 3:
            phase = ("load", "idle", "prefill", "decode")[number // 4 % 4]
            pids = kill_when_there(start_driver(phase))
            begin = time.monotonic()
            wait_until_gone(pids)
            seconds, deed = time.monotonic() - begin, "engine killed"
        else:
            phase, deed = PHASES[number % 5], generator.choice(DEEDS)
            seconds = _one_fault(generator.randrange(2), phase, deed)
        assert not children()
        slowest[deed] = max(seconds, slowest.get(deed, 0.0))
    print("slowest", {deed: round(seconds, 2) for deed, seconds in slowest.items()})
    assert max(slowest.values()) < LIMIT_S


def _one_fault(rank: int, phase: str, deed: str) -> float:
    """Seconds to the error (of a stall: beyond the configured timeout)."""
    options = TorchOptions(step_timeout_s=2, start_timeout_s=40 if phase == "load" else 600)
    allowed = options.start_timeout_s if phase == "load" else options.step_timeout_s
    if phase == "load" and deed == "stall":
        options = TorchOptions(start_timeout_s=20)
        allowed = 20.0
    begin = time.monotonic()
    try:
        executor = faulty(options, rank=rank, phase=phase, deed=deed)
    except ExecutorError:
        assert phase == "load"
        return time.monotonic() - begin - (allowed if deed == "stall" else 0.0)
    except ConfigError:  # which says what to lower
        assert (phase, deed) == ("load", "out_of_memory")
        return time.monotonic() - begin
    engine = engine_over(executor, DEMO)
    if phase == "shutdown":
        run(engine, [[1, 2]], greedy(1, 3))
        begin = time.monotonic()
        try:
            run(engine, [[1, 2]], greedy(1, 3))  # the row of the first run leaves
        except ExecutorError:
            engine.close()
            return time.monotonic() - begin - (allowed if deed == "stall" else 0.0)
        raise AssertionError("nothing failed")
    error, seconds, _ = step_until_it_fails(engine)
    assert f"rank {rank}" in str(error), error
    engine.close()
    return seconds - (allowed if deed == "stall" else 0.0)
