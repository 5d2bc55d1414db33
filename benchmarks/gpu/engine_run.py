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
STEPS = (
    (1, 385, 3), (2, 257, 2), (4, 257, 2), (8, 257, 2), (16, 257, 2),
    (32, 129, 2), (128, 129, 2), (256, 129, 2),
)  # fmt: skip
NUM_WARM_STEPS = 80
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
        self.llm.engine.add_request(
            Request(id=request_id, prompt_token_ids=prompt, sampling=sampling)
        )

    def step(self) -> None:
        self.llm.engine.step()

    def is_idle(self) -> bool:
        return not self.llm.engine.has_unfinished

    def num_layers(self) -> int:
        return self.llm.engine.spec.num_layers

    def facts(self) -> dict[str, Any]:
        executor = getattr(self.llm.engine, "executor", None) or self.llm.engine._executor
        return {"graph_steps": executor.facts().graph_steps}


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

    def is_idle(self) -> bool:
        return self.llm.is_finished()

    def num_layers(self) -> int:
        return self.llm.model_runner.config.hf_config.num_hidden_layers

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


def decode_steps(engine: Any, result: dict[str, Any]) -> None:
    """Add milliseconds a step by batch size, and to the first token of one prompt."""
    from nanofw.bench.batches import FreshPrompts, step_seconds

    steps: dict[int, float] = {}
    fresh = FreshPrompts(10000, 1000)
    result["step_ms"] = steps

    def generate(prompts: list[Any], num_tokens: int) -> None:
        engine.generate([prompt.tolist() for prompt in prompts], [num_tokens] * len(prompts))

    for batch_size, num_tokens, repeats in STEPS:
        if batch_size > NUM_REQUESTS:
            break
        times = [step_seconds(generate, fresh, batch_size, 128, num_tokens) for _ in range(repeats)]
        steps[batch_size] = median(times) * 1e3
        if batch_size == 1:
            alone = [fresh.make(1, 128) for _ in range(repeats)]
            first = [timed(lambda prompts=prompts: generate(prompts, 1)) for prompts in alone]
            result["first_token_ms"] = median(first) * 1e3
        partial(result)


def profile(engine: Any, num_steps: int = 20) -> dict[str, Any]:
    """Where the GPU's time goes: steady decode at 256 rows, then first tokens of short prompts."""
    prompts, _ = bench_workload(31)
    for prompt in prompts:
        engine.add(prompt, NUM_WARM_STEPS + 4 * num_steps)
    for _ in range(NUM_WARM_STEPS):
        engine.step()
    decode = profiled(engine.step, num_steps, engine.num_layers())
    while not engine.is_idle():  # first tokens are of prompts alone
        engine.step()
    alone = iter(fixed_prompts(4 * num_steps, 128, 77))

    def first_token() -> None:
        engine.generate([next(alone)], [1])

    first_token()
    return {"decode": decode, "first_token": profiled(first_token, num_steps, engine.num_layers())}


def profiled(run: Callable[[], Any], count: int, num_layers: int) -> dict[str, Any]:
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


def main() -> None:
    name, folder, passes, *rest = sys.argv[1:]
    kind, _, backend = name.partition("+")
    engine = ENGINES[kind](backend)
    result: dict[str, Any] = {"engine": name, "model": Path(folder).name}
    result["construct_s"] = timed(lambda: engine.construct(folder))
    result["first_s"] = timed(lambda: engine.generate(fixed_prompts(1, 8, 1), [64]))
    print("ready", json.dumps(result), flush=True)
    rates: list[float] = []
    compilations: list[str] = []
    result |= {"tokens_per_s": rates, "compilations_in_passes": compilations}
    note_compilations(compilations)
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
