"""The keys that random configurations set: values that each takes, and values that it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

PLUGIN = """
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from nanofw.plugins import Options, Plugin, Policy, hookimpl

class OneOptions(Options):
    weight: float = 1.0
    label: str = "x"
    count: Annotated[int, Field(ge=1)] = 1
    tags: list[str] = []
    limits: dict[str, int] = {}
    mode: Literal["fast", "slow"] = "fast"

class TwoOptions(Options):
    weight: int = 1
    flag: bool = False

class Plain(Policy):
    def key(self, request, view):
        return request.arrival

@hookimpl
def scheduler():
    return [Plugin(name, ":Plain", api="scheduler/2", options=options,
                   capabilities={"overlap": True})
            for name, options in [("one", OneOptions), ("two", TwoOptions)]]
"""


@dataclass(frozen=True)
class Key:
    """Values that a key takes, and values that it refuses.

    Attributes:
        texts: refused where they are written as another type in a file; elsewhere they are text.
    """

    valid: tuple[Any, ...] = ()
    wrong: tuple[Any, ...] = ()
    texts: tuple[Any, ...] = ()


KEYS: dict[str, Key] = {
    "engine.seed": Key((0, 7, 123, 65536), (-1, "x", True, 1.5, None, [1], 10**30)),
    "engine.max_num_seqs": Key((1, 8, 64), (0, "many", None, 1 << 50, {"a": 1})),
    "engine.chunk_tokens": Key((None, 16, 64), (0, -3, "a", False)),
    "engine.batching": Key(("mixed", "prefill_first"), ("mixd", 3, None, True, [])),
    "engine.overlap": Key(("auto", True, False), ("on", 1, None)),
    "engine.memory_utilization": Key((0.5, 1, 0.9), (0, 1.5, math.inf, "half", None)),
    "engine.device": Key(("auto", "cpu"), ("cpu:5", "GPU!", "auto:1"), ("", None)),
    "kv_allocator.num_blocks": Key((64, 4096), (0, "all", 1.5, None, 10**30)),
    "kv_allocator.block_size": Key((16, 32, "auto"), (0, "big", None)),
    "sampling.temperature": Key((0, 0.7, 1, 1e-3), (-1, "hot", True, None, math.nan)),
    "sampling.top_p": Key((0.5, 1), (0, 2, "x", None)),
    "sampling.max_tokens": Key((1, 16, 1000, None), (0, "x", 1.5)),
    "sampling.stop": Key((["a"], ["x", "${y}"], ["\\${z}"]), ([""], [1]), (None,)),
    "sampling.logit_bias": Key((None, {"5": 1}, {"7": -2.5}), ({"a": 1}, {"9": "x"}, [1])),
    "output.logprobs": Key((None, 0, 5, 64), (65, -1, "x", True)),
    "output.token_times": Key((True, False), ("yes", 1, None)),
    "logging.level": Key(("info", "error"), ("loud", None, 3)),
    "logging.modules": Key(
        ({"nanofw.engine": "debug"}, {"nanofw": "info"}),
        ({"nanofw.enginx": "debug"}, {"nanofw.llm": "loud"}, ["a"]),
    ),
    "plugins.strict": Key((True, False), ("yes", 1, None)),
    "model.name": Key((None,), ("", "  ")),
    "engine.sed": Key(wrong=(1, "x", None)),
    "enginee.seed": Key(wrong=(1, "x")),
}
NAMES = Key(("fcfs", "one", "two"), ("fcsf", ""), (None, 3))
OPTIONS: dict[str, dict[str, Key]] = {
    "fcfs": {"watermark": Key((0, 0.25), (1, "x", -0.5, None))},
    "one": {
        "weight": Key((1.5, 2), ("heavy", True, None, math.inf)),
        "label": Key(("a b", "off", "1e-3", "007", "x: y"), ([], {"a": 1}), (5, True, 1.5)),
        "count": Key((1, 1_000), (0, 1.5, "x", None)),
        "tags": Key(([], ["a", "b"]), ([1], None, 7)),
        "limits": Key(({"a": 1}, {"b": 2}), ({"c": "x"}, [1])),
        "mode": Key(("fast", "slow"), ("fas", 1, None)),
    },
    "two": {"weight": Key((3, 16), (1.5, "x", None)), "flag": Key((True, False), ("off", 2))},
}
