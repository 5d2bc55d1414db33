"""One engine and one model in this process; the last line is `RESULT {json}`.

    python benchmarks/gpu/engine_run.py ENGINE MODEL_FOLDER PASSES [profile]

ENGINE is `nanofw`, `nanofw+BACKEND` (an attention backend), or `nano_vllm` (a checkout named by
NANO_VLLM; its flash_attn is served by FlashAttention-3). Measured, in this order: construct to
ready; PASSES passes over nano-vllm's bench.py workload, the first one cold; milliseconds of a
decode step at several batch sizes, as (t(n tokens) - t(1 token)) / (n - 1) with fresh prompts of
128 tokens; the time to the first token of such a prompt.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

TEMPERATURE = 0.6
NUM_REQUESTS = int(os.environ.get("NUM_REQUESTS", "256"))
STEPS = ((1, 385, 3), (32, 129, 2), (128, 129, 2), (256, 129, 2))
Prompts = list[list[int]]


def bench_workload(shift: int) -> tuple[Prompts, list[int]]:
    """256 prompts and outputs of 100 to 1024 tokens, seed 0; `shift` changes the tokens alone."""
    generator = random.Random(0)
    prompts = [
        [generator.randint(0, 10000) for _ in range(generator.randint(100, 1024))]
        for _ in range(NUM_REQUESTS)
    ]
    outputs = [generator.randint(100, 1024) for _ in range(NUM_REQUESTS)]
    return [[(token + shift) % 10001 for token in prompt] for prompt in prompts], outputs


def fixed_prompts(count: int, length: int, seed: int) -> Prompts:
    generator = random.Random(seed)
    return [[generator.randint(0, 10000) for _ in range(length)] for _ in range(count)]


class Nanofw:
    """This package."""

    def __init__(self, backend: str) -> None:
        self.backend = backend or "auto"
        self.num_added = 0

    def construct(self, folder: str) -> None:
        from nanofw import LLM, SamplingParams

        self.params = SamplingParams
        extra = json.loads(os.environ.get("NANOFW_OPTIONS", "{}"))
        values = {
            "max_model_len": 4096,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 16384,
            "memory_utilization": 0.9,
            "attention_backend": self.backend,
            **extra,
        }
        self.llm = LLM(folder, **values)

    def sampling(self, max_tokens: int) -> Any:
        return self.params(temperature=TEMPERATURE, ignore_eos=True, max_tokens=max_tokens)

    def generate(self, prompts: Prompts, outputs: list[int]) -> list[int]:
        results = self.llm.generate(prompts, [self.sampling(n) for n in outputs])
        return [len(result.outputs[0].token_ids) for result in results]

    def add(self, prompt: list[int], max_tokens: int) -> None:
        from nanofw.plugins import Request

        self.num_added += 1
        request_id, sampling = f"profiled-{self.num_added}", self.sampling(max_tokens)
        self.llm.engine.add(Request(id=request_id, prompt_token_ids=prompt, sampling=sampling))

    def step(self) -> None:
        self.llm.engine.step()

    def facts(self) -> dict[str, Any]:
        executor = getattr(self.llm.engine, "executor", None) or self.llm.engine._executor
        return {"graph_steps": executor.graph_steps}


class NanoVllm:
    """The peer, unmodified."""

    def __init__(self, backend: str) -> None:
        sys.path[:0] = [os.environ["NANO_VLLM"], str(Path(__file__).parent / "shims")]

    def construct(self, folder: str) -> None:
        from nanovllm import LLM, SamplingParams

        self.params = SamplingParams
        extra = json.loads(os.environ.get("NANO_VLLM_OPTIONS", "{}"))
        self.llm = LLM(folder, enforce_eager=False, max_model_len=4096, **extra)

    def sampling(self, max_tokens: int) -> Any:
        return self.params(temperature=TEMPERATURE, ignore_eos=True, max_tokens=max_tokens)

    def generate(self, prompts: Prompts, outputs: list[int]) -> list[int]:
        params = [self.sampling(n) for n in outputs]
        return [len(r["token_ids"]) for r in self.llm.generate(prompts, params, use_tqdm=False)]

    def add(self, prompt: list[int], max_tokens: int) -> None:
        self.llm.add_request(prompt, self.sampling(max_tokens))

    def step(self) -> None:
        self.llm.step()

    def facts(self) -> dict[str, Any]:
        return {}


ENGINES: dict[str, Callable[[str], Any]] = {"nanofw": Nanofw, "nano_vllm": NanoVllm}


def timed(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def partial(result: dict[str, Any]) -> None:
    """Tell what is known so far, for whoever ends this process."""
    print("PARTIAL", json.dumps(result), flush=True)


def decode_steps(engine: Any, result: dict[str, Any]) -> None:
    """Add milliseconds a step by batch size, and to the first token of one prompt."""
    steps: dict[int, float] = {}
    first, seed = [], 1000
    result["step_ms"] = steps
    for batch_size, num_tokens, repeats in STEPS:
        if batch_size > NUM_REQUESTS:
            break
        times = []
        for _ in range(repeats):
            prompts = [fixed_prompts(batch_size, 128, seed + i) for i in (0, 1)]
            seed += 2
            short = timed(lambda p=prompts[0]: engine.generate(p, [1] * len(p)))
            long = timed(lambda p=prompts[1], n=num_tokens: engine.generate(p, [n] * len(p)))
            times.append((long - short) / (num_tokens - 1) * 1e3)
            if batch_size == 1:
                first.append(short * 1e3)
        steps[batch_size] = median(times)
        result["first_token_ms"] = median(first)
        partial(result)


def profile(engine: Any, num_steps: int = 20) -> dict[str, Any]:
    """Steady decode at 256 rows: milliseconds a step, and what of it kernels take."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    prompts, _ = bench_workload(31)
    for prompt in prompts:
        engine.add(prompt, 1024)
    for _ in range(80):
        engine.step()
    torch.cuda.synchronize()

    def run() -> None:
        for _ in range(num_steps):
            engine.step()
        torch.cuda.synchronize()

    wall = timed(run) / num_steps * 1e3
    with torch_profile(activities=[ProfilerActivity.CUDA]) as recorded:
        run()
    kernels = [
        (event.self_device_time_total / num_steps / 1e3, event.count / num_steps, event.key)
        for event in recorded.key_averages()
    ]
    kernels.sort(reverse=True)
    busy = sum(ms for ms, _, _ in kernels)
    return {
        "step_ms": wall,
        "kernel_ms": busy,
        "idle": 1 - busy / wall,
        "kernels": sum(count for _, count, _ in kernels),
        "top": [(round(ms, 4), round(count, 1), key[:70]) for ms, count, key in kernels[:16]],
    }


def main() -> None:
    name, folder, passes, *rest = sys.argv[1:]
    kind, _, backend = name.partition("+")
    engine = ENGINES[kind](backend)
    result: dict[str, Any] = {"engine": name, "model": Path(folder).name}
    result["construct_s"] = timed(lambda: engine.construct(folder))
    result["first_s"] = timed(lambda: engine.generate(fixed_prompts(1, 8, 1), [64]))
    print("ready", json.dumps(result), flush=True)
    rates: list[float] = []
    result["tokens_per_s"] = rates
    for number in range(int(passes)):
        prompts, outputs = bench_workload(1234 * number)
        lengths: list[int] = []
        seconds = timed(lambda p=prompts, o=outputs, out=lengths: out.extend(engine.generate(p, o)))
        if lengths != outputs:
            sys.exit("outputs have other lengths than were asked for")
        rates.append(sum(outputs) / seconds)
        print("pass", number, round(rates[-1]), "tok/s", flush=True)
        partial(result)
    decode_steps(engine, result)
    result |= engine.facts()
    if "profile" in rest:
        result["profile"] = profile(engine)
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
