"""One engine in a process of its own: it reads the number of a pass, and says what the pass took.

    python engines.py ENGINE MODEL WORKLOAD THREADS

Lines on standard input: a number, which shifts all token ids of the workload, so that no cache
helps. Lines on standard output: `READY {json}`, then `PASS {json}` for each number.
"""

from __future__ import annotations

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
    """`one`: one request; `small`: 8 of 64 tokens; `mixedN`: N of 16 to 256 tokens, in and out."""
    rng = np.random.default_rng(0)
    if name == "one":
        lengths, outputs = np.array([128]), np.array([64])
    elif name == "small":
        lengths, outputs = np.array([16, 40, 48, 64, 96, 120, 160, 256]), np.full(8, 64)
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
    """Requests one after the other; `model` has a file `model.gguf` beside its safetensors."""
    from llama_cpp import Llama  # pyright: ignore[reportMissingImports]

    llm = Llama(
        str(model / "model.gguf"), n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads,
        verbose=False,
    )  # fmt: skip

    def generate(prompts: Prompts, counts: list[int]) -> Prompts:
        results: Prompts = []
        for prompt, count in zip(prompts, counts, strict=True):
            tokens = llm.generate(prompt, temp=0.0, top_k=1, reset=True)
            results.append([token for _, token in zip(range(count), tokens, strict=False)])
        return results

    return generate


ENGINES = {"nanofw": nanofw, "transformers": transformers, "vllm": vllm, "llama_cpp": llama_cpp}


def main() -> None:
    name, folder, load, threads = sys.argv[1:]
    os.environ |= {
        "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads,
        "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # fmt: skip
    model = Path(folder)
    vocab_size = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    prompts, counts = workload(load, vocab_size)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print is not an answer
    begin = time.perf_counter()
    generate = ENGINES[name](model, int(threads))
    ready = {"cpu": time.process_time(), "wall": time.perf_counter() - begin}
    generate([prompt[:16] for prompt in prompts[:8]], [4] * len(prompts[:8]))
    print("READY", json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        moved = [[(token + int(line)) % vocab_size for token in prompt] for prompt in prompts]
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
