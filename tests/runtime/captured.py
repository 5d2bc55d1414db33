"""Executors whose steps are captured and replayed; where there is no GPU, by running them again.

In the interpreter nothing is captured: what a graph would replay is run again, on the same
persistent buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nanofw.contracts.requests import SamplingParams
from nanofw.runtime.graphs.capture import CudaCapturer, EagerCapturer
from tests.kernels.paged import device
from tests.runtime.driver import Driver, component, make_executor

COMPONENTS = {
    "attention_backend": component(
        "attention_backend", "triton", "nanofw.attention_backends.triton:TritonAttention"
    ),
    "sampler": component("sampler", "standard", "nanofw.samplers.standard_cuda:CudaSampler"),
}


def capturer():
    return CudaCapturer() if device().type == "cuda" else EagerCapturer()


def make_driver(
    folder: Path, graphs: bool, *, prefill_tokens: int = 0, seed: int = 0, **components: Any
) -> Driver:
    """A driver of an executor with four rows; with `graphs`, its steps are captured."""
    executor = make_executor(
        folder,
        components={**COMPONENTS, **components},
        max_num_seqs=4,
        num_blocks=24,
        device=device().type,
    )
    if graphs:
        with torch.inference_mode():
            executor._runner.capture(capturer(), prefill_tokens)
    return Driver(executor, seed=seed)


def prompt(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 128, count)]


def carry_out(
    driver: Driver, todo: Any, samplings: Sequence[SamplingParams], *, overlap: bool = False
) -> list[list[int]]:
    """Enter, leave and compute as told; a number of tokens is cut to what the row knows."""
    rows, everyone, in_flight = {}, [], 0
    for what, row, counts in todo:
        if what == "enter" and row not in rows:
            tokens = prompt(1 + counts[row], row + counts[0])
            rows[row] = driver.add(row, tokens, sampling=samplings[row], seed=counts[1])
            everyone.append(rows[row])
        elif what == "leave" and row in rows and rows[row].computed:
            driver.remove(rows.pop(row))
        work = [
            (one, min(counts[i] if one.computed < len(one.tokens) else 1, one.known - one.computed))
            for i, one in rows.items()
        ]
        work = [(one, count) for one, count in work if count > 0]
        if work:
            driver.submit(work)
            in_flight += 1
        while in_flight > (1 if overlap and work else 0):
            driver.collect()
            in_flight -= 1
    for row in rows.values():
        driver.remove(row)
    while in_flight:
        driver.collect()
        in_flight -= 1
    return [one.outputs for one in everyone]
