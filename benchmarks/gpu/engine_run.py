"""One engine and one model in this process; the last line is `RESULT {json}`.

    python benchmarks/gpu/engine_run.py ENGINE MODEL_FOLDER PASSES [PART | KEY=VALUE ...]

ENGINE is `nanofw`, `nanofw_async` (through `AsyncLLM`, a reader for each request), either with
`+BACKEND` (an attention backend), or `nano_vllm` (`engines.py` says how it finds it). Measured:
imports; construct to ready; PASSES passes over nano-vllm's bench.py workload, the first one cold;
then the named parts, which `engine_parts.py` describes; none means `all_steps first`. KEY=VALUE,
VALUE in JSON or a word, are options of the engine.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from engine_parts import LENGTHS, PARTS, Result, fixed_prompts, timed
from engines import ENGINES, Options, Prompts

NUM_REQUESTS = int(os.environ.get("NUM_REQUESTS", "256"))


def bench_workload(shift: int) -> tuple[Prompts, list[int]]:
    """256 prompts and outputs of 100 to 1024 tokens, seed 0; `shift` changes the tokens alone."""
    generator = random.Random(0)
    prompts = [
        [generator.randint(0, 10000) for _ in range(generator.randint(100, 1024))]
        for _ in range(NUM_REQUESTS)
    ]
    outputs = [generator.randint(100, 1024) for _ in range(NUM_REQUESTS)]
    return [[(token + shift) % 10001 for token in prompt] for prompt in prompts], outputs


def note_compilations(into: list[str]) -> None:
    """From now on, add the name of each Triton kernel that is compiled: a run should wait for
    none."""
    try:
        from triton import knobs
    except ImportError:
        return

    def listener(**facts: Any) -> None:
        kind = "loaded" if facts.get("cache_hit") else "compiled"
        into.append(f"{getattr(facts.get('src'), 'name', '?')} {kind}")

    knobs.compilation.listener = listener


def tell(result: Result) -> None:
    """Tell what is known so far, for whoever ends this process."""
    print("PARTIAL", json.dumps(result), flush=True)


def passes(engine: Any, count: int, result: Result) -> None:
    """Output tokens per second of each pass over the workload."""
    rates: list[float] = []
    result["tokens_per_s"] = rates
    for number in range(count):
        prompts, outputs = bench_workload(1234 * number)
        lengths: list[int] = []
        seconds = timed(lambda p=prompts, o=outputs, out=lengths: out.extend(engine.generate(p, o)))
        if lengths != outputs:
            sys.exit("outputs have other lengths than were asked for")
        rates.append(sum(outputs) / seconds)
        tell(result)


def arguments(words: list[str]) -> tuple[list[str], Options]:
    """The parts, and the options of the engine."""
    parts = [word for word in words if "=" not in word]
    if unknown := set(parts) - set(PARTS):
        sys.exit(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    options: Options = {}
    longest = max((LENGTHS.get(part, 0) for part in parts), default=0)
    if longest:
        options["max_model_len"] = longest
    for key, _, value in (word.partition("=") for word in words if "=" in word):
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return parts or ["all_steps", "first"], options


def main() -> None:
    name, folder, count, *words = sys.argv[1:]
    parts, options = arguments(words)
    kind, _, backend = name.partition("+")
    engine = ENGINES[kind](backend)
    result: Result = {"engine": name, "model": Path(folder).name, "options": options}
    result["import_s"] = timed(engine.imports)
    result["construct_s"] = timed(lambda: engine.construct(folder, options))
    result["first_s"] = timed(lambda: engine.generate(fixed_prompts(1, 8, 1), [64]))
    print("ready", json.dumps(result), flush=True)
    compilations: list[str] = []
    result["compilations_in_passes"] = compilations
    note_compilations(compilations)
    passes(engine, int(count), result)
    for part in parts:
        if kind == "nanofw_async" and part not in ("all_steps", "steps", "first"):
            sys.exit(f"{part} is measured without readers")
        PARTS[part](engine, result)
        tell(result)
    result |= engine.facts()
    print("RESULT", json.dumps(result), flush=True)
    engine.close()


if __name__ == "__main__":
    main()
