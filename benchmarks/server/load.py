"""Many open streams on the simulated executor in real time: how late tokens are, what they cost.

    python -m benchmarks.server.load [--open 2000] [--rate 5000] [--tokens 25] [--rounds 3]
        [--requests N] [--clients 1] [--server-cores 0,1] [--json FILE]

The server is a process of its own, and so are the clients. All streams run at once, in steps of
`open / rate` seconds: the modelled machine sends all tokens of a step at the same moment, which is
the hardest case. A token is late by what has passed since then when its client has read it. CPU
times are those of the server's process, beside those of a process that only has the engine and the
text, and those of `benchmarks.server.plain`, which writes the same events and does nothing else;
beside them stands how late a plain `asyncio.sleep` was meanwhile. `steady` is the part of a round
in which all streams were open.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.server.serving import Served, serving
from nanofw.assembly.provenance import commit, machine
from nanofw.config.load import load_config
from nanofw.contracts.requests import SamplingParams
from nanofw.llm.opening import open_session
from nanofw.llm.prompts import Prompt

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8)


def words_of(options: argparse.Namespace) -> list[str]:
    """The configuration of server and engine."""
    seconds = options.open / options.rate
    return [
        "sim",
        f"engine.max_num_seqs={options.open}",
        "engine.max_num_batched_tokens=65536",
        "engine.max_model_len=256",
        f"executor.seconds_per_step={seconds}",
        "server.log_requests=false",
        f"server.limits.max_requests={2 * options.open}",
    ]


def engine_alone(options: argparse.Namespace) -> dict[str, float]:
    """CPU time of the same requests in a session without a server, in virtual time."""
    words = words_of(options)
    session = open_session(load_config(words[0], words[1:]))
    sampling = SamplingParams(max_tokens=options.tokens, ignore_eos=True)
    begin, num_tokens, num_left = time.process_time(), 0, options.requests

    def add() -> None:
        session.add_prompt(
            Prompt(token_ids=np.array(PROMPT, np.int32), sampling=sampling), stream=True
        )

    for _ in range(min(options.open, num_left)):
        add()
    num_left -= options.open
    while session.has_unfinished:
        for _, event in session.step().events:
            num_tokens += len(event.token_ids)
            if event.result is not None and num_left > 0:
                num_left -= 1
                add()
    seconds = time.process_time() - begin
    session.engine.close()
    return {"cpu_s": seconds, "tokens": num_tokens, "cpu_us_per_token": 1e6 * seconds / num_tokens}


@contextmanager
def sleeping() -> Generator[list[float]]:
    """How late sleeps of 20 ms were in a process of its own, in seconds; filled at the end."""
    found: list[float] = []
    code = (
        "import asyncio, sys, time, json\n"
        "async def main():\n"
        "    late, end = [], asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)\n"
        "    while not end.done():\n"
        "        due = time.monotonic() + 0.02\n"
        "        await asyncio.sleep(0.02)\n"
        "        late.append(time.monotonic() - due)\n"
        "    print(json.dumps(late))\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield found
    finally:
        found += json.loads(process.communicate("")[0] or "[]")


def lateness(times: np.ndarray, step_s: float) -> np.ndarray:
    """Seconds after the end of a step; steps end at equal distances while the engine is busy.

    The end is put behind the longest time of a step in which nothing came.
    """
    phases = np.sort(times % step_s)
    gaps = np.diff(phases, append=phases[0] + step_s)
    first = phases[(int(np.argmax(gaps)) + 1) % len(phases)]
    return (times - first) % step_s


def drawn(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What the processes of the clients saw, which share streams and requests."""
    each = [str(number // options.clients) for number in (options.open, options.requests)]
    command = [
        sys.executable, "-m", "benchmarks.server.clients", url, "--open", each[0], "--requests",
        each[1], "--tokens", str(options.tokens),
    ]  # fmt: skip
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(options.clients)
    ]
    try:
        with ThreadPoolExecutor(options.clients) as pool:
            ends = list(pool.map(lambda p: p.communicate(timeout=options.timeout_s)[0], processes))
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise SystemExit("a process of the clients failed")
    return [json.loads(end) for end in ends]


def one_round(server: Served, options: argparse.Namespace) -> dict[str, Any]:
    """All requests once."""
    before, rss_before = server.cpu_s(), server.rss_mib()
    with sleeping() as slept:
        parts = drawn(server.url, options)
    cpu_s = server.cpu_s() - before
    times = np.concatenate([part["times"] for part in parts])
    counts = np.concatenate([part["counts"] for part in parts]).astype(int)
    late = lateness(times, options.open / options.rate)
    begin, end = (max(part["last_begin"] for part in parts),
                  min(part["first_end"] for part in parts))  # fmt: skip
    is_steady = (times > begin) & (times < end)
    steady = np.repeat(late[is_steady], counts[is_steady])
    late = np.repeat(late, counts)
    num_tokens = int(counts.sum())
    return {
        "seconds": max(part["seconds"] for part in parts),
        "steady": {
            "seconds": end - begin,
            "tokens_per_s": len(steady) / max(1e-9, end - begin),
            "late_ms": {f"p{p}": 1e3 * float(np.percentile(steady, p)) for p in (50, 90, 99)}
            if len(steady)
            else None,
        },
        "tokens": num_tokens,
        "lost": options.requests * options.tokens - num_tokens,
        "tokens_per_s": num_tokens / (times.max() - times.min()),
        "tokens_per_read": num_tokens / len(counts),
        "late_ms": {f"p{p}": 1e3 * float(np.percentile(late, p)) for p in (50, 90, 99)},
        "sleep_late_ms": {f"p{p}": 1e3 * float(np.percentile(slept, p)) for p in (50, 90, 99)},
        "server_cpu_s": cpu_s,
        "server_cpu_us_per_token": 1e6 * cpu_s / num_tokens,
        "server_cpu_us_per_request": 1e6 * cpu_s / options.requests,
        "client_cpu_s": [part["cpu"] for part in parts],
        "rss_mib": [rss_before, server.rss_mib()],
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--open", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=5000.0, help="tokens per second of them all")
    parser.add_argument("--tokens", type=int, default=25)
    parser.add_argument("--requests", type=int, help="in all; by default one of each stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=1, help="processes that draw the streams")
    parser.add_argument("--server-cores", default="", help="0,1: all others are for the clients")
    parser.add_argument("--timeout-s", type=float, default=600)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.requests = options.requests or options.open
    cores = [int(core) for core in options.server_cores.split(",") if core]
    if cores and (others := os.sched_getaffinity(0) - set(cores)):
        os.sched_setaffinity(0, others)
    alone = engine_alone(options)
    print(f"engine alone: {alone['cpu_us_per_token']:.1f} us of CPU per token", flush=True)
    rounds: list[dict[str, Any]] = []
    plain: list[dict[str, Any]] = []
    record = {
        "benchmark": "server/load", "command": " ".join(sys.argv[1:]), "commit": commit(),
        "machine": machine(), "engine_alone": alone, "rounds": rounds,
        "plain_rounds": plain,
    }  # fmt: skip
    writes = ["--step", str(options.open / options.rate), "--tokens", str(options.tokens)]
    with (
        serving(words_of(options), cores=cores) as server,
        serving(writes, ("-m", "benchmarks.server.plain"), cores) as writer,
    ):
        for _ in range(options.rounds):
            for one, found, name in ((server, rounds, "nanofw"), (writer, plain, "plain")):
                found.append(one_round(one, options))
                show(name, found[-1])
            if options.json:
                options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def show(name: str, last: dict[str, Any]) -> None:
    """A line about a round."""
    steady = last["steady"]["late_ms"] or {"p50": 0.0, "p99": 0.0}
    print(
        f"{name:6}: {last['tokens_per_s']:.0f} tokens/s, late p50 "
        f"{last['late_ms']['p50']:.1f} p99 {last['late_ms']['p99']:.1f} ms, steady p50 "
        f"{steady['p50']:.1f} p99 {steady['p99']:.1f} ms (a sleep "
        f"p99 {last['sleep_late_ms']['p99']:.1f}), server "
        f"{last['server_cpu_us_per_token']:.0f} us/token "
        f"{last['server_cpu_us_per_request']:.0f} us/request, "
        f"{last['rss_mib'][1]:.0f} MiB, lost {last['lost']}", flush=True,
    )  # fmt: skip


if __name__ == "__main__":
    main()
