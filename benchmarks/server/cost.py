"""What a request and a token cost the server, and whether its memory stays flat.

    python -m benchmarks.server.cost [--open 64] [--requests 2000] [--tokens 25] [--rounds 3]
    python -m benchmarks.server.cost --requests 10000 --tokens 2 --only-long --rounds 10

Each round has two loads of the same number of requests: of one token, and of `--tokens` tokens. The
difference is the cost of the tokens, and the rest is the cost of a request with its first token.
`--only-long` leaves the load of one token out. The engine alone, in virtual time and without a
server, serves the same loads first. Memory is that of the server's process after each round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.server.clients import draw
from benchmarks.server.load import engine_alone, words_of
from benchmarks.server.serving import Served, serving
from nanofw.assembly.provenance import commit, machine

WARM_UP = 200
"""Requests before the first round."""


def split(short_s: float, long_s: float, options: argparse.Namespace) -> dict[str, float]:
    """Microseconds for a request with its first token, and for each further token."""
    tokens = (long_s - short_s) / (options.requests * (options.tokens - 1))
    return {"us_per_request": 1e6 * short_s / options.requests, "us_per_token": 1e6 * tokens}


def alone(options: argparse.Namespace) -> dict[str, float]:
    """The cost of the engine and the text."""
    long_s = engine_alone(options)["cpu_s"]
    one = argparse.Namespace(**{**vars(options), "tokens": 1})
    return split(engine_alone(one)["cpu_s"], long_s, options)


def loaded(server: Served, options: argparse.Namespace, num_tokens: int) -> float:
    """Processor time of the server for one load, in seconds."""
    before = server.cpu_s()
    load = asyncio.run(draw(server.url, options.open, options.requests, num_tokens))
    lost = options.requests * num_tokens - sum(load.counts)
    if lost:
        raise SystemExit(f"{lost} tokens did not come")
    return server.cpu_s() - before


def one_round(server: Served, options: argparse.Namespace) -> dict[str, float]:
    """Both loads, or the long one alone."""
    found: dict[str, float] = {}
    if not options.only_long:
        short_s = loaded(server, options, 1)
        found = split(short_s, loaded(server, options, options.tokens), options)
    else:
        cpu_s = loaded(server, options, options.tokens)
        found["us_per_request_with_tokens"] = 1e6 * cpu_s / options.requests
    return {**found, "rss_mib": server.rss_mib()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--open", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2000, help="of each load")
    parser.add_argument("--tokens", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-s", type=float, default=0.05, help="of the modelled machine")
    parser.add_argument("--only-long", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.rate = options.open / options.step_s
    engine = alone(options)
    rounds: list[dict[str, Any]] = []
    record = {
        "benchmark": "server/cost", "command": " ".join(sys.argv[1:]), "commit": commit(),
        "machine": machine(), "engine_alone": engine, "rounds": rounds,
    }  # fmt: skip
    print(f"engine alone: {shown(engine)}", flush=True)
    with serving(words_of(options)) as server:
        asyncio.run(draw(server.url, options.open, WARM_UP, options.tokens))
        print(f"after {WARM_UP} requests: {server.rss_mib():.1f} MiB", flush=True)
        for number in range(options.rounds):
            rounds.append(one_round(server, options))
            print(f"round {number + 1}: {shown(rounds[-1])}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def shown(figures: dict[str, float]) -> str:
    """A line of figures."""
    return ", ".join(f"{name} {value:.1f}" for name, value in figures.items())


if __name__ == "__main__":
    main()
