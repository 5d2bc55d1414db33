"""Many requests with random aborts: memory stays flat, no row and no block is lost.

    pytest tests/soak -m slow

NANOFW_SOAK_REQUESTS scales the simulated run (a million by default).
"""

from __future__ import annotations

import gc
import os
import random
import resource
from pathlib import Path
from typing import Any

import pytest

from nanofw.config.load import load_config
from nanofw.contracts.requests import FinishReason, SamplingParams
from nanofw.llm.opening import open_session
from nanofw.llm.prompts import parse_prompt
from nanofw.llm.session import Session

NUM_SIMULATED = int(os.environ.get("NANOFW_SOAK_REQUESTS", "1000000"))
NUM_EMBEDDED = 20_000
NUM_LIVE = 200
MAX_GROWTH_BYTES = 24 << 20
"""Of the resident memory from a quarter of the run to its end: arenas that settle, no more."""

PREFIXES = [[7] * 40, list(range(100, 164)), [9, 8, 7] * 30]


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * resource.getpagesize()


class Crowd:
    """Keeps a session busy with requests of random shape, and aborts some of them."""

    def __init__(self, session: Session, vocab_size: int, seed: int) -> None:
        self._session, self._vocab_size = session, vocab_size
        self._draw = random.Random(seed)
        self._live: list[int] = []
        self.num_added = 0
        self.by_reason = dict.fromkeys(FinishReason, 0)

    def fill(self, num_left: int) -> None:
        """Add requests until enough are live."""
        while len(self._live) < NUM_LIVE and self.num_added < num_left:
            self.num_added += 1
            draw = self._draw
            prompt = [draw.randrange(1, self._vocab_size) for _ in range(draw.randint(1, 24))]
            if draw.random() < 0.5:
                prompt = draw.choice(PREFIXES) + prompt
            sampling = SamplingParams(
                max_tokens=draw.randint(1, 6),
                ignore_eos=True,
                stop=("the",) if draw.random() < 0.1 else (),
            )
            self._live.append(self._session.add_prompt(parse_prompt(prompt, sampling)))

    def step(self) -> None:
        ended = set[int]()
        for ticket, result in self._session.step().results:
            self.by_reason[result.finish_reason] += 1
            ended.add(ticket)
        if ended:
            self._live = [ticket for ticket in self._live if ticket not in ended]
        if self._live and self._draw.random() < 0.2:
            self._session.abort(self._draw.choice(self._live))


def soak(session: Session, num_requests: int) -> None:
    engine: Any = session.engine
    crowd = Crowd(session, engine.spec.vocab_size, seed=1)
    settled, next_check = 0, num_requests // 4
    while session.has_unfinished or crowd.num_added < num_requests:
        crowd.fill(num_requests)
        crowd.step()
        if crowd.num_added >= next_check:
            next_check += num_requests // 4
            engine.scheduler.allocator.check_integrity()
            gc.collect()
            settled = settled or resident_bytes()
    gc.collect()
    growth = resident_bytes() - settled
    assert sum(crowd.by_reason.values()) == num_requests
    assert crowd.by_reason[FinishReason.ERROR] == crowd.by_reason[FinishReason.REFUSED] == 0
    assert crowd.by_reason[FinishReason.ABORT] > 0
    assert crowd.by_reason[FinishReason.LENGTH] > num_requests / 2
    stats = engine.stats()
    blocks = stats["blocks"]
    assert stats["num_running"] == stats["num_waiting"] == blocks["num_used"] == 0
    assert blocks["num_free"] + blocks["num_cached"] == blocks["num_blocks"]
    engine.scheduler.allocator.check_integrity()
    print(f"{num_requests} requests, {stats['num_steps']} steps, growth {growth / 2**20:.1f} MiB")
    assert growth < MAX_GROWTH_BYTES


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("overlap", ["true", "false"])
def test_a_million_simulated_requests(overlap: str) -> None:
    loaded = load_config(
        "sim",
        [
            "kv_allocator.num_blocks=64",
            "engine.max_model_len=1024",
            "engine.max_num_seqs=32",
            f"engine.overlap={overlap}",
        ],
    )
    session = open_session(loaded)
    with session.engine:
        soak(session, NUM_SIMULATED // 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_thousand_requests_of_the_embedded_model() -> None:
    session = open_session(
        load_config("qwen3-demo", ["kv_allocator.num_blocks=64", "engine.max_model_len=1024"])
    )
    with session.engine:
        soak(session, NUM_EMBEDDED)


def test_a_short_soak() -> None:
    """The same on a small scale, for every run of the tests."""
    session = open_session(
        load_config("sim", ["kv_allocator.num_blocks=64", "engine.max_model_len=1024"])
    )
    with session.engine:
        soak(session, 1_000)
