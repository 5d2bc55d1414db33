"""The process that `nanofw bench startup` starts: from nothing to the second token.

Reads `{"begin": ..., "words": [...], "prompt_tokens": ..., "seed": ...}` on standard input, the
wall clock's time of its start among them, and writes seconds by phase as its last line.
"""

from __future__ import annotations

import time

STARTED = time.time()

import importlib  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from typing import TypedDict  # noqa: E402


class StartupTask(TypedDict):
    """What is measured."""

    begin: float
    words: list[str]
    prompt_tokens: int
    seed: int


def main() -> int:
    """Measure; a failure is one message and an exit code."""
    from nanofw.errors import NanofwError

    task: StartupTask = json.loads(sys.stdin.read())
    try:
        phases = measured(task)
    except NanofwError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 3
    print(json.dumps(phases))  # noqa: T201
    return 0


def measured(task: StartupTask) -> dict[str, float]:
    """Seconds by phase, in order."""
    from nanofw.runtime.phases import Phases

    phases = Phases()
    phases.seconds["Python"] = STARTED - task["begin"]
    importlib.import_module("torch")  # the largest import, which others would be charged with

    from nanofw.assembly import build, select
    from nanofw.bench.batches import Batches, FreshPrompts, seconds_of
    from nanofw.config.layers import is_override
    from nanofw.config.load import DEFAULT_PRESET, load_config

    phases.end_phase("imports")
    words = task["words"]
    names = [word for word in words if not is_override(word)]
    overrides = [word for word in words if is_override(word)]
    loaded = load_config(names[0] if names else DEFAULT_PRESET, overrides)
    selection = select(loaded)
    phases.end_phase("configuration")
    with build(selection) as engine:
        phases.end_phase("engine", parts=engine.executor_facts().start_seconds)
        generate = Batches(engine, loaded.config.sampling)
        prompts = FreshPrompts(selection.spec.vocab_size, task["seed"])
        first, second = prompts.make(2, task["prompt_tokens"])
        generate([first], 1)
        phases.end_phase("first token")
        phases.seconds["second request"] = seconds_of(lambda: generate([second], 1))
    return phases.seconds


if __name__ == "__main__":
    sys.exit(main())
