"""What `engine_run.py` measures of an engine that is ready, one function for each part."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from engines import Prompts

STEPS = (
    (1, 385, 3), (2, 257, 2), (4, 257, 2), (8, 257, 2), (16, 257, 2),
    (32, 129, 2), (128, 129, 2), (256, 129, 2),
)  # fmt: skip
SOME_STEPS = (1, 32, 128, 256)
NUM_WARM_STEPS = 80
LONG = 30_000
VOCABULARY = 10_000
Result = dict[str, Any]


def fixed_prompts(count: int, length: int, seed: int) -> Prompts:
    generator = random.Random(seed)
    return [[generator.randint(0, VOCABULARY) for _ in range(length)] for _ in range(count)]


def timed(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


class Fresh:
    """Prompts that are not in a prefix cache."""

    def __init__(self) -> None:
        from nanofw.bench.batches import FreshPrompts

        self._prompts = FreshPrompts(VOCABULARY, time.time_ns() % 2**31)

    def make(self, count: int, length: int) -> Prompts:
        return [prompt.tolist() for prompt in self._prompts.make(count, length)]


def all_steps(engine: Any, result: Result) -> None:
    """As `steps`, of more batch sizes."""
    _decode_steps(engine, result, tuple(size for size, *_ in STEPS))


def steps(engine: Any, result: Result) -> None:
    """Milliseconds a step by batch size, and to the first token of one prompt."""
    _decode_steps(engine, result, SOME_STEPS)


def _decode_steps(engine: Any, result: Result, sizes: tuple[int, ...]) -> None:
    from nanofw.bench.batches import FreshPrompts, step_seconds

    times: dict[int, list[float]] = {}
    fresh = FreshPrompts(VOCABULARY, 1000)
    result["step_ms"] = times

    def generate(prompts: list[Any], num_tokens: int) -> None:
        engine.generate([prompt.tolist() for prompt in prompts], [num_tokens] * len(prompts))

    for batch_size, num_tokens, repeats in STEPS:
        if batch_size in sizes:
            times[batch_size] = [
                step_seconds(generate, fresh, batch_size, 128, num_tokens) * 1e3
                for _ in range(repeats)
            ]


def first(engine: Any, result: Result) -> None:
    """Milliseconds to the first tokens of one prompt of 128 tokens, and of 256 such prompts."""
    fresh = Fresh()
    for name, count, repeats in (("first_token_ms", 1, 5), ("first_of_256_ms", 256, 4)):
        batches = [fresh.make(count, 128) for _ in range(repeats)]
        result[name] = [
            timed(lambda p=prompts: engine.generate(p, [1] * len(p))) * 1e3 for prompts in batches
        ]


def long(engine: Any, result: Result, num_steps: int = 60) -> None:
    """Prompts of 30,000 tokens: seconds to the first token, of one that is cached too, then
    milliseconds of decode steps of one row and of eight rows of other prompts."""
    fresh = Fresh()
    prompts = fresh.make(2, LONG)
    engine.generate(fresh.make(1, LONG), [1])
    result["long_first_s"] = [timed(lambda p=p: engine.generate([p], [1])) for p in prompts]
    result["long_cached_s"] = [timed(lambda p=p: engine.generate([p], [1])) for p in prompts]
    for count in (1, 8):
        for prompt in fresh.make(count, LONG):
            engine.add(prompt, 3 * num_steps)
        for _ in range(4 * count + 20):  # of at most 16,384 tokens, and with a step in flight
            engine.step()
        rounds = [
            timed(lambda: [engine.step() for _ in range(num_steps)]) / num_steps for _ in range(2)
        ]
        result[f"long_step_ms_{count}"] = [1e3 * seconds for seconds in rounds]
        while not engine.is_idle():
            engine.step()


def gaps(engine: Any, result: Result) -> None:
    """How long 32 requests that decode wait for a token while prompts of 4,000 tokens arrive: one
    every 20 steps, then four at once every 60; and how long the prompts wait for their first."""
    fresh = Fresh()
    for name, together, every, arrivals in (("gaps", 1, 20, 8), ("gaps_of_4", 4, 60, 3)):
        for prompt in fresh.make(32, 128):
            engine.add(prompt, 400)
        for _ in range(40):
            engine.step()
        waiting = [fresh.make(together, 4000) for _ in range(arrivals)]
        begun: dict[str, float] = {}
        times, firsts, number = [], [], 0
        last = time.perf_counter()
        while not engine.is_idle():
            if number % every == 0 and waiting:
                begun |= {engine.add(prompt, 1): last for prompt in waiting.pop()}
            finished = [output.id for output in engine.step().finished]
            now = time.perf_counter()
            firsts += [1e3 * (now - begun.pop(one)) for one in finished if one in begun]
            times.append(1e3 * (now - last))
            last, number = now, number + 1
        times.sort()
        result[name] = {
            "median_ms": median(times), "longest_ms": times[-4:], "first_token_ms": firsts
        }  # fmt: skip


def profile(engine: Any, result: Result, num_steps: int = 20) -> None:
    """Where the GPU's time goes: steady decode at 256 rows, then first tokens of short prompts."""
    for prompt in Fresh().make(256, 500):
        engine.add(prompt, NUM_WARM_STEPS + 4 * num_steps)
    for _ in range(NUM_WARM_STEPS):
        engine.step()
    decode = _profiled(engine.step, num_steps, engine.num_layers())
    while not engine.is_idle():  # first tokens are of prompts alone
        engine.step()
    alone = iter(fixed_prompts(4 * num_steps, 128, 77))

    def first_token() -> None:
        engine.generate([next(alone)], [1])

    first_token()
    of_first = _profiled(first_token, num_steps, engine.num_layers())
    result["profile"] = {"decode": decode, "first_token": of_first}


def _profiled(run: Callable[[], Any], count: int, num_layers: int) -> Result:
    """Milliseconds of one `run`, what of it the device works, and all that it does there."""
    import torch

    from nanofw.measure.step_traces import KERNEL, Work, device_work, record

    def all_runs() -> None:
        for _ in range(count):
            run()
        torch.cuda.synchronize()

    def lines(work: list[Work]) -> list[tuple[float, float, str]]:
        """Milliseconds and number per run, and the name."""
        return [(round(w.seconds * 1e3, 4), round(w.count, 1), w.name[:90]) for w in work]

    wall = timed(all_runs) / count * 1e3
    found = device_work(record(all_runs, "cuda"), count)
    busy = sum(work.seconds for work in found) * 1e3
    kernels = [work for work in found if work.category == KERNEL]
    of_layers = [work for work in kernels if work.count >= num_layers / 2]
    return {
        "step_ms": wall,
        "kernel_ms": busy,
        "idle": 1 - busy / wall,
        "kernels": sum(work.count for work in kernels),
        "kernels_of_layers": sum(work.count for work in of_layers) / num_layers,
        "of_layers": lines(of_layers),
        "once": lines([work for work in kernels if work not in of_layers]),
        "copies": lines([work for work in found if work not in kernels]),
    }


PARTS: dict[str, Callable[[Any, Result], None]] = {
    part.__name__: part for part in (steps, all_steps, first, long, gaps, profile)
}
LENGTHS = {"long": 32_768, "gaps": 8_192}
"""Tokens of a request that parts need, where these are more than 4,096."""
