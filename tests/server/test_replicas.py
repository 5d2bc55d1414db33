"""A server with replicas: one door, metrics by replica, the death of one."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.runtime.parallel.ranks import is_running
from tests.server.running import END_S, Running, metric, parsed_events, post, running

SIM = (
    "qwen3-demo", "engine.device=cpu", "engine.replicas=2", "engine.max_num_seqs=1",
    "router.name=round_robin", "executor.name=sim", "executor.seconds_per_step=0.005",
    "engine.replica_restarts=0",
)  # fmt: skip
BODY = {"prompt": "a", "max_tokens": 100, "ignore_eos": True, "seed": 3}


def pids_of(server: Running) -> list[int]:
    """The children of a server, in the order in which they were started."""
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
    children = [(task / "children").read_text(encoding="ascii").split() for task in tasks]
    return sorted(int(pid) for pids in children for pid in pids)


def ask(server: Running) -> httpx.Response:
    return post(server, "/v1/completions", BODY)


def ready(server: Running) -> dict[str, Any]:
    answer = httpx.get(f"{server.url}/ready", timeout=END_S)
    assert answer.status_code == 200
    return answer.json()


def test_a_replica_dies_and_the_server_goes_on() -> None:
    with running(*SIM) as server, ThreadPoolExecutor(6) as pool:
        assert ready(server) == {
            "status": "ready", "replicas": {"all": 2, "ready": 2}, "gone": {},
        }  # fmt: skip
        pids = pids_of(server)
        assert len(pids) == 2
        texts = {answer.json()["choices"][0]["text"] for answer in pool.map(ask, [server] * 4)}
        assert len(texts) == 1
        for number in range(2):
            assert metric(server, f'nanofw_replica_ready{{replica="{number}"}}') == 1
            made = metric(server, f'nanofw_replica_generation_tokens_total{{replica="{number}"}}')
            assert made == 200
        assert metric(server, 'nanofw_router_info{router="round_robin"}') == 1
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json=BODY | {"stream": True}, timeout=END_S
        ) as stream:  # the next turn is that of replica 0
            parts = stream.iter_text()
            text = next(parts)
            waiting = [pool.submit(ask, server) for _ in range(3)]
            os.kill(pids[0], signal.SIGKILL)
            text += "".join(parts)
        *pieces, last = parsed_events(text)
        assert pieces
        assert last["error"]["message"].startswith("replica 0 is gone, and the request could not")
        for answer in waiting:
            assert answer.result().json()["choices"][0]["text"] in texts
        state = ready(server)
        assert state["replicas"] == {"all": 2, "ready": 1}
        why = rf"replica 0 \(process {pids[0]}\) was ended by SIGKILL.*"
        assert re.fullmatch(why, state["gone"]["0"])
        assert metric(server, 'nanofw_replica_ready{replica="0"}') == 0
        assert ask(server).json()["choices"][0]["text"] in texts
        assert server.end() == 0
        assert not any(map(is_running, pids))
