"""Random workloads by steps, for schedulers that are compared step by step.

A workload is plain JSON: sizes of the machine and requests. Each request has the step before which
it comes, its prompt, and the tokens that the mocked model answers with, so that prompts can
continue what was generated.
"""

from __future__ import annotations

from typing import Any

import numpy as np

VOCAB = 30000
LONGEST = 2000
"""Tokens that a request may have."""


def make(seed: int) -> dict[str, Any]:
    """A workload. Of small shares of the blocks that all rows would need, requests give way."""
    rng = np.random.default_rng(seed)
    block_size, rows = int(rng.choice([4, 16])), int(rng.choice([2, 4, 8, 16]))
    longest = int(rng.choice([60, 200, 400]))
    share_of_need = float(rng.choice([0.3, 0.5, 0.8, 1.5]))
    budget = int(rng.choice([max(rows, 24), 64, 128, 512]))
    requests = _requests(rng, rows, longest, budget)
    needed = [len(r["prompt"]) + len(r["outputs"]) for r in requests]
    least = -(-max(needed) // block_size) + 1
    num_blocks = max(least, int(share_of_need * rows * np.mean(needed) / block_size))
    watermark = float(rng.choice([0.0, 0.0, 0.05]))
    return {
        "seed": seed, "block_size": block_size, "rows": rows, "budget": max(budget, rows),
        "num_blocks": num_blocks, "watermark_blocks": int(watermark * num_blocks),
        "requests": requests,
    }  # fmt: skip


def _requests(
    rng: np.random.Generator, rows: int, longest: int, budget: int
) -> list[dict[str, Any]]:
    """Some begin with one of a few prefixes, some go on where an earlier request ended."""
    prefixes = [_tokens(rng, int(rng.integers(8, longest))) for _ in range(3)]
    output = int(rng.choice([8, 40, 100]))
    per_request = 0.5 * output + 0.5 * longest / budget
    gap = float(rng.choice([0.7, 1.0, 1.5])) * per_request / rows
    shared, continued = rng.choice([(0.0, 0.0), (0.5, 0.0), (0.4, 0.3)])
    requests: list[dict[str, Any]] = []
    step = 0.0
    for _ in range(60):
        step += rng.exponential(gap)
        draw, prompt = rng.random(), _tokens(rng, int(rng.integers(1, longest)))
        if draw < shared:
            prompt = prefixes[int(rng.integers(3))] + prompt[: 1 + len(prompt) // 3]
        elif draw < shared + continued and requests:
            before = requests[int(rng.integers(len(requests)))]
            prompt = before["prompt"] + before["outputs"] + prompt[: 1 + len(prompt) // 3]
        outputs = _tokens(rng, int(rng.integers(1, output + 1)))
        prompt = prompt[: LONGEST - len(outputs) - 1]
        requests.append({"step": int(step), "prompt": prompt, "outputs": outputs})
    return requests


def _tokens(rng: np.random.Generator, count: int) -> list[int]:
    return rng.integers(3, VOCAB, count).tolist()
