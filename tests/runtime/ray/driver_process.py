"""An engine over two ranks in a cluster, in a process of its own that a test kills.

    python -m tests.runtime.ray.driver_process ADDRESS PHASE

Prints the ranks' pids when it is idle, or in the midst of a step whose collective never ends.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from nanofw import LLM, SamplingParams
from tests.runtime.parallel.test_parity import DEMO


def main(address: str, phase: str) -> None:
    llm = LLM(
        str(DEMO),
        device="cpu",
        tensor_parallel_size=2,
        max_num_seqs=4,
        executor={"name": "ray", "address": address, "placement": "spread"},
    )
    engine: Any = llm.engine
    pids = engine.executor.facts().process_ids
    if phase == "idle":
        print("pids", *pids, flush=True)
        time.sleep(600)
    print("pids", *pids, flush=True)
    while True:
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=100, ignore_eos=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
