"""Goodput with deadlines at 110% of what the machine can serve. Takes three minutes.

Three of four requests must be finished 4 s after they came, the others after 20 s. Goodput is what
was finished in time, a second, as the clients see it.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

import httpx
from serving import ask, connected, served

POLICIES = ("fcfs", "earliest_deadline_first")
SECONDS = 40.0
NUM_PROMPT, NUM_OUTPUT = 400, 100
DEADLINES_S = (4.0, 4.0, 4.0, 20.0)


async def capacity(client: httpx.AsyncClient) -> float:
    """Requests a second of a closed loop that keeps all rows busy."""
    begin, ends = time.monotonic(), list[float]()

    async def loop() -> None:
        while time.monotonic() < begin + 12:
            await ask(client, NUM_PROMPT, NUM_OUTPUT)
            ends.append(time.monotonic())

    await asyncio.gather(*(loop() for _ in range(12)))
    ends.sort()
    inside = [end for end in ends if begin + 3 < end < begin + 12]
    return len(inside) / 9


async def goodput(client: httpx.AsyncClient, rate: float) -> float:
    """Requests finished in time, a second."""
    dice, good = random.Random(1), 0

    async def one(deadline_s: float) -> None:
        nonlocal good
        answer = await ask(client, NUM_PROMPT, NUM_OUTPUT, deadline_s=deadline_s)
        good += answer.ttft_s is not None and answer.e2e_s <= deadline_s

    begin = due = time.monotonic()
    async with asyncio.TaskGroup() as group:
        while due < begin + SECONDS:
            due += dice.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(one(dice.choice(DEADLINES_S)))
    return good / SECONDS


async def measure(url: str, rate: float | None) -> tuple[float, float]:
    """The rate of arrivals, and the goodput."""
    async with connected(url) as client:
        if rate is None:
            rate = 1.1 * await capacity(client)
        return rate, await goodput(client, rate)


def main() -> None:
    rate: float | None = float(sys.argv[1]) if len(sys.argv) > 1 else None
    found: list[float] = []
    for policy in POLICIES:
        with served(f"scheduler={{name: {policy}}}") as url:
            rate, good = asyncio.run(measure(url, rate))
        found.append(good)
        print(
            f"{policy:25} {rate:.1f} requests/s come, {good:.2f} are finished in time", flush=True
        )
    print(f"ratio {found[1] / found[0]:.2f}")


if __name__ == "__main__":
    main()
