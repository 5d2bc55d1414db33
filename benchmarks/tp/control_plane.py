"""What a decode step of many rows costs between the engine's process and its ranks.

    python benchmarks/tp/control_plane.py [ROWS] [RANKS]

Ours: a plan encoded once, sent to each rank over its socket, read and decoded there. Beside it:
each running request's state (length, block table, last token) pickled, copied into shared
memory, read out and unpickled by the ranks other than the first, as nano-vllm does in decode.
Both over the same contexts; everything in this process, so that no waiting for a process to
wake is in the figures. Bytes and microseconds are per step; medians over all steps.
"""

from __future__ import annotations

import pickle
import platform
import socket
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from statistics import median
from typing import Any

import msgspec
import numpy as np

from nanofw.contracts.plan import StepPlan
from nanofw.runtime.parallel.channel import Channel
from nanofw.runtime.parallel.messages import decode_command
from nanofw.runtime.parallel.wire import PlanDecoder, PlanEncoder

NUM_STEPS = 400
SHORTEST, LONGEST = 300, 1500
THEIR_BLOCK_SIZE = 256
BUFFER_BYTES = 1 << 22


class State:
    """What a worker is told of one running request."""

    def __init__(self, num_tokens: int, block_table: list[int], last_token: int) -> None:
        self.num_tokens, self.num_prompt_tokens, self.num_cached_tokens = num_tokens, 100, 0
        self.block_table, self.last_token = block_table, last_token

    def __getstate__(self) -> tuple[object, ...]:
        return (
            self.num_tokens, self.num_prompt_tokens, self.num_cached_tokens, self.block_table,
            self.last_token,
        )  # fmt: skip

    def __setstate__(self, state: tuple[object, ...]) -> None:
        (
            self.num_tokens, self.num_prompt_tokens, self.num_cached_tokens, self.block_table,
            self.last_token,
        ) = state  # fmt: skip


def plans(lengths: np.ndarray, block_size: int) -> list[StepPlan]:
    """Steady decode steps: blocks appended where a row enters a new one."""
    rows = np.arange(len(lengths), dtype=np.int32)
    ones, samples = np.ones(len(rows), np.int32), np.ones(len(rows), np.bool_)
    result = []
    for step in range(NUM_STEPS):
        starts = (lengths + step).astype(np.int32)
        entering = np.flatnonzero(starts % block_size == 0).astype(np.int32)
        result.append(
            StepPlan(
                step=step, rows=rows, num_tokens=ones, starts=starts, samples=samples,
                num_decodes=len(rows), same_rows=step > 0, block_rows=entering,
                block_positions=starts[entering] // block_size, block_ids=entering + 1,
            )
        )  # fmt: skip
    return result


def measure_ours(lengths: np.ndarray, block_size: int, num_ranks: int) -> dict[str, float]:
    pairs = [tuple(map(Channel, socket.socketpair())) for _ in range(num_ranks)]
    encoder, decoders = PlanEncoder(), [PlanDecoder() for _ in range(num_ranks)]
    arrived: Any = None
    sizes, engine, rank = [], [], []
    for plan in plans(lengths, block_size):
        begin = time.perf_counter()
        content = encoder.encode(plan)
        for ours, _ in pairs:
            ours.send(content)
        sent = time.perf_counter()
        for (_, theirs), decoder in zip(pairs, decoders, strict=True):
            message: Any = decode_command(theirs.receive())
            arrived = decoder.decode(message)
        end = time.perf_counter()
        assert np.array_equal(arrived.starts, plan.starts)
        sizes.append(len(content))
        engine.append(sent - begin)
        rank.append((end - sent) / num_ranks)
    return as_row(sizes[1:], engine[1:], rank[1:])


def measure_pickle(lengths: np.ndarray) -> dict[str, float]:
    tables = [
        list(range(i, i + (int(n) + NUM_STEPS) // THEIR_BLOCK_SIZE + 1))
        for i, n in enumerate(lengths)
    ]
    memory = SharedMemory(create=True, size=BUFFER_BYTES)
    sizes, engine, rank = [], [], []
    try:
        for step in range(NUM_STEPS):
            states = [
                State(int(n) + step, table[: (int(n) + step) // THEIR_BLOCK_SIZE + 1], 12345)
                for n, table in zip(lengths, tables, strict=True)
            ]
            begin = time.perf_counter()
            content = pickle.dumps(["run", states, False])
            memory.buf[: len(content)] = content
            sent = time.perf_counter()
            arrived = pickle.loads(memory.buf[: len(content)])
            end = time.perf_counter()
            assert arrived[1][0].num_tokens == states[0].num_tokens
            sizes.append(len(content))
            engine.append(sent - begin)
            rank.append(end - sent)
    finally:
        memory.close()
        memory.unlink()
    return as_row(sizes[1:], engine[1:], rank[1:])


def as_row(sizes: list[int], engine: list[float], rank: list[float]) -> dict[str, float]:
    return {
        "bytes": median(sizes),
        "most bytes": max(sizes),
        "engine us": median(engine) * 1e6,
        "rank us": median(rank) * 1e6,
        "both us": (median(engine) + median(rank)) * 1e6,
    }


def main() -> None:
    num_rows, num_ranks = (
        int(text) for text in [*sys.argv[1:], *("256", "2")[len(sys.argv) - 1 :]]
    )
    lengths = np.random.default_rng(0).integers(SHORTEST, LONGEST, num_rows)
    rows = {
        f"plan, blocks of {size}": measure_ours(lengths, size, num_ranks) for size in (16, 64, 256)
    }
    rows["pickled states"] = theirs = measure_pickle(lengths)
    print(f"{num_rows} rows, {num_ranks} ranks, {NUM_STEPS} steps;", platform.processor() or "CPU")
    print(
        f"Python {platform.python_version()}, numpy {np.__version__}, msgspec {msgspec.__version__}"
    )
    print(f"{'':22}" + "".join(f"{name:>12}" for name in theirs))
    for name, row in rows.items():
        print(f"{name:22}" + "".join(f"{value:12.1f}" for value in row.values()))
    ours = rows["plan, blocks of 16"]
    for key in ("bytes", "both us"):
        print(f"{key}: {ours[key] / theirs[key]:.3f} of what pickled states take")


if __name__ == "__main__":
    main()
