"""What a client feels of another one that floods, under three policies.

python examples/serve/flood.py                       # each of them once, four minutes
python examples/serve/flood.py preempt preempt       # one of them, two rounds
"""

from __future__ import annotations

import asyncio
import statistics
import sys

import httpx
from serving import ask, connected, served

POLICIES = {
    "fcfs": "scheduler={name: fcfs}",
    "fair_share": "scheduler={name: fair_share}",
    "preempt": "scheduler={name: fair_share, preempt: true}",
}
NUM_FLOODING = 24
"""Requests that the flooding client keeps open: three times as many as may run."""
NUM_ASKED = 15
"""Requests of the other one, one after the other, with a pause between them."""
PAUSE_S = 1.0


async def asked(client: httpx.AsyncClient) -> list[float]:
    """Seconds to the first token of the client that asks now and then."""
    found: list[float] = []
    for _ in range(NUM_ASKED):
        answer = await ask(client, 2000, 20, client="ann")
        assert answer.ttft_s is not None
        found.append(answer.ttft_s)
        await asyncio.sleep(PAUSE_S)
    return found


async def measure(url: str) -> tuple[float, float]:
    """The 90th percentile of the time to the first token, alone and beside a flood."""
    async with connected(url) as client:
        await ask(client, 100, 8, client="ann")
        alone = await asked(client)

        async def flood() -> None:
            while True:
                await ask(client, 100, 200, client="bob")

        tasks = [asyncio.create_task(flood()) for _ in range(NUM_FLOODING)]
        await asyncio.sleep(1.0)
        beside = await asked(client)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return p90(alone), p90(beside)


def p90(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=10, method="inclusive")[-1]


def main() -> None:
    print("time to the first token of a client that asks now and then, p90")
    for name in sys.argv[1:] or POLICIES:
        with served(POLICIES[name]) as url:
            alone, beside = asyncio.run(measure(url))
        change = 100 * (beside / alone - 1)
        print(
            f"{POLICIES[name]:45} alone {alone * 1e3:7.1f} ms   beside a flood "
            f"{beside * 1e3:7.1f} ms   {change:+.0f}%",
            flush=True,
        )


if __name__ == "__main__":
    main()
