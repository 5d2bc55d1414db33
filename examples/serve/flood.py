"""What a client feels of another one that floods, under two policies. Takes a minute or two.

Starts `nanofw serve` on this machine, on a port of its own, and talks to 127.0.0.1 alone.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

CONFIG = Path(__file__).parent / "fair_share.yaml"
POLICIES = ("fcfs", "fair_share")
NUM_FLOODING = 24
"""Requests that the flooding client keeps open."""
NUM_ASKED = 8
"""Requests of the other one, one after the other."""
PROMPT = "And it came to pass in those days"


@contextmanager
def served(policy: str) -> Iterator[str]:
    """The address of a server."""
    words = ["serve", str(CONFIG), f"scheduler.name={policy}", "server.port=0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nanofw", *words, "server.log_requests=false"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    address = ""
    try:
        for line in process.stderr:
            if match := re.search(r"listening at (\S+),", line):
                address = match[1]
            if "nanofw: ready" in line:
                yield address
                return
        raise SystemExit("the server did not start; `nanofw serve` says why")
    finally:
        process.terminate()
        process.wait()


async def ttft_s(client: httpx.AsyncClient, name: str, max_tokens: int) -> float:
    """Seconds to the first token of a request, which is read to its end."""
    body = {"prompt": PROMPT, "max_tokens": max_tokens, "stream": True, "client": name}
    begin, first = time.monotonic(), None
    async with client.stream("POST", "/v1/completions", json=body | {"ignore_eos": True}) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if first is None and line.startswith("data: {") and "choices" in json.loads(line[6:]):
                first = time.monotonic() - begin
    assert first is not None
    return first


async def asked(client: httpx.AsyncClient) -> list[float]:
    """The client that asks now and then."""
    found: list[float] = []
    for _ in range(NUM_ASKED):
        found.append(await ttft_s(client, "ann", 8))
        await asyncio.sleep(0.05)
    return found


async def measure(url: str) -> tuple[float, float]:
    """The 90th percentile of the time to the first token, alone and beside a flood."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        await ttft_s(client, "ann", 8)
        alone = await asked(client)

        async def flood() -> None:
            while True:
                await ttft_s(client, "bob", 32)

        tasks = [asyncio.create_task(flood()) for _ in range(NUM_FLOODING)]
        await asyncio.sleep(1.0)
        beside = await asked(client)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return p90(alone), p90(beside)


def p90(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=10)[-1]


def main() -> None:
    print("time to the first token of a client that asks now and then, p90")
    for policy in POLICIES:
        with served(policy) as url:
            alone, beside = asyncio.run(measure(url))
        print(f"{policy:12} alone {alone * 1e3:7.1f} ms   beside a flood {beside * 1e3:7.1f} ms")


if __name__ == "__main__":
    main()
