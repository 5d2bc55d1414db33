"""A server of these examples, and requests to it. Talks to 127.0.0.1 alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

CONFIG = Path(__file__).parent / "modelled.yaml"


@contextmanager
def served(*settings: str) -> Iterator[str]:
    """The address of a server of `modelled.yaml` with these settings."""
    words = ["serve", str(CONFIG), *settings, "server.port=0", "server.log_requests=false"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nanofw", *words], stderr=subprocess.PIPE, text=True
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
        process.communicate()


def connected(url: str) -> httpx.AsyncClient:
    """A client with as many connections as it needs."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=url, timeout=600, limits=limits, trust_env=False)


@dataclass(frozen=True)
class Answer:
    """Seconds to the first token and to the end; None: it was refused."""

    ttft_s: float | None
    e2e_s: float


async def ask(
    connection: httpx.AsyncClient, num_prompt: int, num_output: int, **more: Any
) -> Answer:
    """Send a prompt of this many tokens, and read the answer to its end.

    Args:
        more: further keys of the body.
    """
    start = time.time_ns() % 50_000
    body = {
        "prompt": [(start + i) % 50_000 + 1 for i in range(num_prompt)],
        "max_tokens": num_output,
        "stream": True,
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }
    begin, first = time.monotonic(), None
    async with connection.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code == 429:
            return Answer(None, time.monotonic() - begin)
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if first is None and line.startswith("data: {") and "choices" in json.loads(line[6:]):
                first = time.monotonic() - begin
    return Answer(first, time.monotonic() - begin)
