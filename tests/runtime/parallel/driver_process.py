"""An engine over two ranks in a process of its own, for tests that kill it.

    python driver_process.py PHASE

Prints the ranks' pids, then a line when it is in the phase, and stays there.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from nanofw.contracts.requests import SamplingParams
from nanofw.runtime.parallel import process
from tests.runtime.parallel.ranks import engine_over, executor_of
from tests.runtime.parallel.test_parity import DEMO


def main(phase: str) -> None:
    if phase == "load":
        _print_pids_of_starting_ranks()
    executor = executor_of(DEMO, 2)
    print("pids", *executor.facts().process_ids, flush=True)
    if phase == "idle":
        _wait()
    engine = engine_over(executor, DEMO)
    from nanofw.contracts.requests import Request

    sampling = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    for number in range(1000):
        engine.add_request(Request(id=f"r{number}", prompt_token_ids=[1, 2, 3], sampling=sampling))
    for number in range(10_000):
        engine.step()
        if number == (0 if phase == "prefill" else 5):
            print("there", flush=True)


def _print_pids_of_starting_ranks() -> None:
    pids: list[int] = []
    original = process.RankProcess.__init__
    ranks: Any = process.RankProcess

    def noting(self: process.RankProcess, *arguments: Any) -> None:
        original(self, *arguments)
        pids.append(self.pid)
        if len(pids) == 2:
            print("pids", *pids, flush=True)
            threading.Timer(0.8, print, ("there",), {"flush": True}).start()

    ranks.__init__ = noting


def _wait() -> None:
    print("there", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1])
