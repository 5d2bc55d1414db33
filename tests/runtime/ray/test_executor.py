"""The ranks of a run as actors on two nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanofw import LLM
from nanofw.contracts.clock import RealClock
from nanofw.contracts.executor import ExecutorConfig
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.errors import ConfigError, ExecutorError
from tests.runtime.driver import component, components_of
from tests.runtime.parallel.faults import FaultOptions
from tests.runtime.parallel.ranks import (
    BLOCK_SIZE,
    COMPONENTS,
    MAX_LEN,
    MAX_SEQS,
    MAX_TOKENS,
    engine_over,
    is_running,
    run,
    spec_of,
)
from tests.runtime.parallel.test_faults import LIMIT_S, step_until_it_fails
from tests.runtime.parallel.test_parity import DEMO, KINDS

ray = pytest.importorskip("ray")


def ray_executor_of(size: int, components: dict[str, Any] | None = None, **options: Any) -> Any:
    from nanofw.runtime.ray.executor import ray_executor
    from nanofw.runtime.ray.options import RayOptions

    config = ExecutorConfig(
        spec=spec_of(DEMO),
        block_size=BLOCK_SIZE,
        num_blocks=128,
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=MAX_TOKENS,
        max_model_len=MAX_LEN,
        clock=RealClock(),
        tensor_parallel_size=size,
        components=components_of(COMPONENTS | (components or {})),
    )
    return ray_executor(RayOptions(**options), config)


def faulty(rank: int, phase: Any, deed: Any, **options: Any) -> Any:
    sampler = component("sampler", "faulty", "tests.runtime.parallel.faults:FaultySampler")
    plugin = replace(sampler.plugin, options="tests.runtime.parallel.faults:FaultOptions")
    fault = FaultOptions(rank=rank, phase=phase, deed=deed)
    chosen = replace(sampler, plugin=plugin, options=fault)
    return ray_executor_of(2, {"sampler": chosen}, **options)


@pytest.fixture(autouse=True)
def nothing_left_behind(cluster: Any) -> Iterator[None]:
    """Neither an actor nor reserved room: all CPUs are free again."""
    yield
    wait_until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])


def wait_until(is_so: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_until_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(is_running(pid) for pid in pids))


def test_ranks_on_two_nodes_draw_the_tokens_of_one() -> None:
    sampling = [SamplingParams(max_tokens=12, ignore_eos=True, **kind) for kind in KINDS]
    prompts = [[3, 5 + number, 8] * (number + 1) for number in range(len(sampling))]
    tokens: list[Any] = []
    for values in (
        {},
        {
            "tensor_parallel_size": 2,
            "overlap": True,
            "executor": {"name": "ray", "placement": "strict_spread"},
        },
    ):
        with LLM(str(DEMO), device="cpu", max_num_seqs=4, **values) as llm:
            results = llm.generate(prompts, sampling)
            tokens.append([[o.token_ids for o in result.outputs] for result in results])
            engine: Any = llm.engine
            executor = engine.executor
    assert tokens[0] == tokens[1]
    # The nodes of a test share a host; they are two for Ray, and gloo does not use the loopback.
    assert {place.host for place in executor._places} == {ray.util.get_node_ip_address()}
    wait_until_gone(executor.facts().process_ids)


@pytest.mark.slow
def test_a_rank_that_raises_ends_the_run_with_its_traceback() -> None:
    executor = faulty(1, "decode", "raise")
    engine = engine_over(executor, DEMO)
    error, seconds, finished = step_until_it_fails(engine)
    assert isinstance(error, ExecutorError)
    assert seconds < LIMIT_S
    for part in ("rank 1", "RuntimeError: the sampler has had enough", "faults.py", "in _at"):
        assert part in str(error)
    assert [output.id for output in finished] == ["r0"]
    wait_until_gone(executor.facts().process_ids)
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["decode", "idle"])
def test_a_killed_rank_is_named(phase: str) -> None:
    executor = ray_executor_of(2)
    engine = engine_over(executor, DEMO)
    for number in range(50):
        sampling = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
        engine.add_request(Request(id=f"r{number}", prompt_token_ids=[5, 6, 7], sampling=sampling))
    if phase == "decode":
        engine.step()
    os.kill(executor.facts().process_ids[1], signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(ExecutorError, match=r"rank 1 \(process \d+ on [\d.]+\) is gone: The actor"):
        go_on(engine.check_alive if phase == "idle" else engine.step)
    assert time.monotonic() - begin < LIMIT_S
    wait_until_gone(executor.facts().process_ids)
    engine.close()


def go_on(deed: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        deed()


@pytest.mark.slow
def test_a_rank_that_stalls_ends_the_run_with_where_it_was() -> None:
    executor = faulty(1, "decode", "stall", step_timeout_s=2)
    engine = engine_over(executor, DEMO)
    error, seconds, _ = step_until_it_fails(engine)
    assert 2 <= seconds < LIMIT_S
    for part in ("rank 1", "within 2 s", "step_timeout_s", "faults.py", "in _at"):
        assert part in str(error)
    wait_until_gone(executor.facts().process_ids)
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("phase", ["load", "warm_up", "prefill", "shutdown"])
@pytest.mark.parametrize("deed", ["raise", "kill", "out_of_memory", "leave"])
def test_every_fault_ends_the_run(rank: int, phase: str, deed: str) -> None:
    if phase == "load":
        with pytest.raises(ExecutorError, match=f"rank {rank}"):
            faulty(rank, phase, deed)
        return
    executor = faulty(rank, phase, deed)
    engine = engine_over(executor, DEMO)
    if phase == "shutdown":
        run(engine, [[1, 2]], [SamplingParams(temperature=0, max_tokens=3)])
    error, seconds, _ = step_until_it_fails(engine)
    assert f"rank {rank}" in str(error)
    assert seconds < LIMIT_S
    wait_until_gone(executor.facts().process_ids)
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["decode", "idle"])
def test_a_killed_driver_takes_its_ranks_along(cluster: Any, phase: str) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.ray.driver_process", cluster.address, phase],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert driver.stdout is not None
    line = next(line for line in driver.stdout if line.startswith("pids"))
    pids = [int(word) for word in line.split()[1:]]
    assert all(is_running(pid) for pid in pids)
    driver.kill()
    driver.wait()
    driver.stdout.close()
    wait_until_gone(pids)


def test_no_room_says_what_was_asked_and_what_there_is() -> None:
    begin = time.monotonic()
    with pytest.raises(ConfigError, match=r"no room for 3 ranks with 1 CPU each \(strict_spread\)"):
        ray_executor_of(3, placement="strict_spread", placement_timeout_s=0.5)
    assert time.monotonic() - begin < LIMIT_S


def test_each_rank_sees_the_gpus_of_all_on_its_node() -> None:
    from nanofw.runtime.ray.actor import RankLocation
    from nanofw.runtime.ray.transport import places

    found = [
        RankLocation(1, "a", "10.0.0.1", ["3"]),
        RankLocation(2, "b", "10.0.0.2", ["0"]),
        RankLocation(3, "a", "10.0.0.1", ["1"]),
    ]
    where, visible = places("cuda", found)
    assert [place.device for place in where] == ["cuda:0", "cuda:0", "cuda:1"]
    assert [place.host for place in where] == ["10.0.0.1", "10.0.0.2", "10.0.0.1"]
    assert visible == [["3", "1"], ["0"], ["3", "1"]]
    where, _ = places("cuda", [found[0], found[2]])
    assert {place.host for place in where} == {"127.0.0.1"}


def test_a_cluster_that_is_not_there_is_refused_at_once() -> None:
    code = (
        "from nanofw import LLM; LLM('embedded:demo', device='cpu', "
        "executor={'name': 'ray', 'address': '127.0.0.1:1'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "ConfigError: executor.address: no Ray cluster can be reached" in done.stderr


def test_sums_in_one_kernel_are_for_ranks_on_one_node() -> None:
    from nanofw.runtime.parallel.transport import Place
    from nanofw.runtime.ray.executor import for_places
    from nanofw.runtime.ray.options import RayOptions

    near, far = [Place(device="cuda:0")] * 2, [Place(device="cuda:0", host="10.0.0.1")] * 2
    assert for_places(RayOptions(), near).all_reduce == "auto"
    assert for_places(RayOptions(), far).all_reduce == "collective"
    with pytest.raises(ConfigError, match="one_shot needs all ranks on one node"):
        for_places(RayOptions(all_reduce="one_shot"), far)


def test_a_numbered_device_is_refused() -> None:
    from nanofw.runtime.ray.options import RayOptions
    from nanofw.runtime.ray.transport import RayTransport

    with pytest.raises(ConfigError, match="Ray chooses the GPUs: say cuda"):
        RayTransport(2, RayOptions(), "cuda:1", [])


def test_messages_are_handed_on_in_the_order_of_their_numbers() -> None:
    from nanofw.runtime.ray.mailbox import Mailbox

    mailbox: Mailbox[bytes, bytes] = Mailbox()
    for number in (1, 0, 3, 2):
        mailbox.deliver(number, bytes([number]))
    assert [mailbox.receive() for _ in range(4)] == [b"\0", b"\1", b"\2", b"\3"]
    mailbox.send(b"a")
    mailbox.send(b"b")
    mailbox.close()
    assert mailbox.take() == [b"a", b"b"]
    assert mailbox.take() is None
