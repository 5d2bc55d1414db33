"""Microseconds per call of the built-in allocators at 256 decoding rows.

python benchmarks/allocators/bench.py [--rows 256] [--block-size 16]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time

import numpy as np

from nanofw.kv_allocators.paged import PagedAllocator
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.plugins import AllocatorConfig

PROMPT, OUTPUT = 512, 512


def decode(allocator, rows: np.ndarray, tokens: np.ndarray, lengths: np.ndarray) -> dict:
    """Run OUTPUT decode steps; the time of each extend and each commit, in seconds."""
    times = {"extend": [], "commit": []}
    for _ in range(OUTPUT):
        lengths = lengths + 1
        start = time.perf_counter()
        extension = allocator.extend(rows, lengths)
        middle = time.perf_counter()
        allocator.commit(rows, lengths, tokens)
        times["commit"].append(time.perf_counter() - middle)
        times["extend"].append(middle - start)
        assert extension is not None
    return times


def measure(factory, num_rows: int, block_size: int, *, full_cache: bool, spread: bool) -> dict:
    """Admit, decode and release `num_rows` requests; a full cache makes every take evict."""
    longest = PROMPT + OUTPUT + block_size
    width = -(-longest // block_size)
    config = AllocatorConfig(
        num_blocks=num_rows * width,
        block_size=block_size,
        max_num_seqs=num_rows,
        max_blocks_per_row=width,
    )
    allocator = factory(None, config)
    generator = np.random.default_rng(0)
    rows = np.arange(num_rows, dtype=np.int32)
    offsets = rows % block_size if spread else np.zeros(num_rows, np.int32)
    result: dict[str, float] = {}
    for _ in range(1 + full_cache):
        tokens = generator.integers(0, 2**31, (num_rows, longest), dtype=np.int32)
        lengths = (PROMPT + offsets).astype(np.int32)
        start = time.perf_counter()
        for row in rows.tolist():
            prompt = tokens[row, : lengths[row]]
            allocator.acquire(row, prompt, allocator.match(prompt))
        admitted = time.perf_counter()
        allocator.commit(rows, lengths, tokens)
        committed = time.perf_counter()
        times = decode(allocator, rows, tokens, lengths)
        finished = time.perf_counter()
        for row in rows.tolist():
            allocator.release(row)
        released = time.perf_counter()
        result = {
            "admit per request": (admitted - start) / num_rows,
            "commit per prompt": (committed - admitted) / num_rows,
            "release per request": (released - finished) / num_rows,
        }
        for name, values in times.items():
            result |= statistics(name, values)
    return {name: round(value * 1e6, 2) for name, value in result.items()}


def statistics(name: str, values: list[float]) -> dict[str, float]:
    ordered = np.sort(values)
    return {
        f"{name} median": float(ordered[len(ordered) // 2]),
        f"{name} mean": float(ordered.mean()),
        f"{name} p99": float(ordered[int(len(ordered) * 0.99)]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--block-size", type=int, default=16)
    arguments = parser.parse_args()
    cases = [
        ("paged", PagedAllocator, False),
        ("paged_prefix", PagedPrefixAllocator, False),
        ("paged_prefix, full cache", PagedPrefixAllocator, True),
    ]
    report = {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load": round(os.getloadavg()[0], 2),
        "rows": arguments.rows,
        "block_size": arguments.block_size,
        "microseconds": {},
    }
    for name, factory, full_cache in cases:
        for spread in (True, False):
            label = f"{name}, {'borders spread' if spread else 'all cross together'}"
            report["microseconds"][label] = measure(
                factory,
                arguments.rows,
                arguments.block_size,
                full_cache=full_cache,
                spread=spread,
            )
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
