"""Cost of structured output per step: 0, 1 and 64 constrained rows of 64.

    python benchmarks/structured/bench.py [--model embedded:demo] [--executor sim] [--device auto]
        [--rows 64] [--constrained 0,1,64] [--steps 200] [--threads N] [--overlap true|false]
        [--kinds json_schema,regex,choice] [--json FILE]

With `--executor sim` no model computes, and tokens are drawn evenly among the allowed ones, which
is harder on a grammar than what a model writes. The model's folder gives the tokenizer, whose
vocabulary decides the cost of a mask. `step_ms` is the median of a whole step, the others are
means: `executor_ms` of what the executor does, `mask_ms` of making all masks of a step,
`advance_ms` of the grammars' taking the tokens.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from nanofw.assembly.build import DowngradeWarning, assemble
from nanofw.config.load import load_config
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.engine.engine import Engine
from nanofw.samplers.logits_processors.structured import Structured

PROMPT_TOKENS = 32
WARMUP = 20
NEVER = -100.0
"""Bias of the end tokens: every grammar may go on for longer than a run, and does."""

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
        "kind": {"enum": ["person", "group", "place"]},
    },
    "required": ["name", "age", "tags", "kind"],
    "additionalProperties": False,
}
WORDS = ["north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west"]
GRAMMARS: dict[str, dict[str, Any]] = {
    "json_schema": {"json_schema": {"type": "array", "items": PERSON, "minItems": 100}},
    "regex": {"regex": r"([A-Z][a-z]{1,12}( [a-z]{1,12}){3,9}\. )+"},
    "choice": {"regex": rf"(({'|'.join(WORDS)})\n)+"},
}


class Timed:
    """Adds up the seconds spent in methods of a class or an object."""

    def __init__(self, owner: Any, *names: str) -> None:
        self.seconds = 0.0
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            answer = method(*arguments)
            self.seconds += time.perf_counter() - start
            return answer

        return timed


def make_engine(arguments: argparse.Namespace) -> Engine:
    options = {"name": "structured", "num_threads": arguments.threads}
    values: dict[str, Any] = {
        "model": {"path": arguments.model},
        "engine": {
            "device": arguments.device,
            "max_num_seqs": arguments.rows,
            "max_model_len": PROMPT_TOKENS + WARMUP + arguments.steps + 8,
            "overlap": {"true": True, "false": False}.get(arguments.overlap, "auto"),
        },
        "executor": {"name": arguments.executor},
        "logits_processors": [options],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DowngradeWarning)
        return assemble(load_config(values=values))


def add_requests(
    engine: Engine, kind: str, constrained: int, arguments: argparse.Namespace
) -> None:
    generator = np.random.default_rng(0)
    for index in range(arguments.rows):
        prompt = generator.integers(1, engine.spec.vocab_size, PROMPT_TOKENS).tolist()
        params = SamplingParams(
            max_tokens=WARMUP + arguments.steps + 4,
            seed=index,
            logit_bias=dict.fromkeys(engine.spec.eos_token_ids, NEVER),
        )
        asked = {"structured": GRAMMARS[kind]} if index < constrained else {}
        request = Request(id=str(index), prompt_token_ids=prompt, sampling=params, arguments=asked)
        engine.add_request(request)


def measure(
    engine: Engine, kind: str, constrained: int, timers: list[Timed], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Milliseconds per decode step of `arguments.rows` rows, the first of them constrained."""
    add_requests(engine, kind, constrained, arguments)
    rows: list[tuple[float, ...]] = []
    while len(rows) < WARMUP + arguments.steps:
        for timer in timers:
            timer.seconds = 0.0
        start = time.perf_counter()
        output = engine.step()
        seconds = time.perf_counter() - start
        if output.finished:
            raise SystemExit(f"a request ended before the measurement did: {output.finished[0]}")
        report = output.report
        if report is not None and report.num_decode_tokens == arguments.rows:
            rows.append((seconds, *(timer.seconds for timer in timers)))
    for index in range(arguments.rows):
        engine.abort_request(str(index))
    while engine.has_unfinished:
        engine.step()
    milliseconds = np.array(rows[WARMUP:]) * 1e3
    step, mask, advance, executor = milliseconds.T
    return {
        "kind": kind if constrained else "-",
        "rows": arguments.rows,
        "constrained": constrained,
        "step_ms": round(float(np.median(step)), 3),
        "mean_ms": round(float(step.mean()), 3),
        "p99_ms": round(float(np.percentile(step, 99)), 3),
        "executor_ms": round(float(executor.mean()), 3),
        "mask_ms": round(float(mask.mean()), 3),
        "advance_ms": round(float(advance.mean()), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="embedded:demo")
    parser.add_argument("--executor", default="sim")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--constrained", default="0,1,64")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--overlap", choices=["auto", "true", "false"], default="auto")
    parser.add_argument("--kinds", default=",".join(GRAMMARS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    timers = [Timed(Structured, "mask_rows"), Timed(Structured, "advance")]
    results: list[dict[str, Any]] = []
    with make_engine(arguments) as engine:
        timers.append(Timed(engine.executor, "submit", "provide", "collect"))
        title = f"{arguments.model}, vocabulary {engine.spec.vocab_size}, {arguments.executor}"
        for constrained in map(int, arguments.constrained.split(",")):
            for kind in arguments.kinds.split(",")[: None if constrained else 1]:
                results.append(measure(engine, kind, constrained, timers, arguments))
    table = Table(*results[0], title=f"Milliseconds per step: {title}")
    for result in results:
        table.add_row(*(str(value) for value in result.values()))
    Console(width=120).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
