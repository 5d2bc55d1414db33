"""Whole runs on a GPU held against transformers: logits, greedy tokens, seeded draws.

    MODELS=folder python benchmarks/gpu/numerics.py [SECONDS] [short | long]

Every backend runs in every type that it declares, over eight combinations of {batching x prefix
cache x room x chunks x overlap x graphs} in which every pair of settings of two factors occurs.
With prompts of 4,000 to 16,000 tokens, some of which share a prefix of 3,000, it runs over two of
them.

- float32 (TF32 off), a model of four layers: the largest difference of logits is at most 1e-4 of
  their deviation, and greedy tokens are the reference's except where its best two tie.
- bfloat16, the shape of Qwen3-0.6B: the root mean square error against float32 is at most 1.2
  times that of transformers in bfloat16 on the same texts.
- Seeded draws at temperature 1 in float32: the same tokens in each combination.

Runs for which SECONDS (default 300) leave no time are skipped, and said so. Exit code 1: something
was outside its bound. `OUT=folder` keeps the table as JSON.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_model import make
from timing import table

from nanofw import LLM, SamplingParams
from nanofw.assembly import select
from nanofw.bench.verify import Text, run_engine
from nanofw.llm.llm import load

FLOAT32_BOUND = 1e-4
BFLOAT16_RATIO = 1.2
TIE = 10 * FLOAT32_BOUND
LONGEST_PROMPT, NUM_PROMPTS, NUM_TOKENS, PAGE = 160, 24, 24, 16
SCARCE_BLOCKS = 26  # for one request of the longest prompt that occurs, or three of the mean
FACTORS: dict[str, tuple[Any, Any]] = {
    "batching": ("mixed", "prefill_first"),
    "kv_allocator": ("paged_prefix", "paged"),
    "room": ("ample", "scarce"),
    "chunk_tokens": (None, 32),
    "overlap": (True, False),
    "cuda_graphs": (True, False),
}
LONG_PROMPTS, LONG_PREFIX = (15_900, 4_100, 9_001, 16_000), 3000
LONG_SIZES: dict[str, Any] = {
    "max_model_len": 16_384, "max_num_seqs": 4, "max_num_batched_tokens": 4096,
}  # fmt: skip
BACKENDS = {"float32": ("triton", "sdpa"), "bfloat16": ("triton", "flash_attn", "sdpa")}
SHAPES = {"float32": "small", "bfloat16": "0.6b"}


def combinations() -> list[dict[str, Any]]:
    """Eight runs: three factors in full, the others as parities of two or three of them."""
    runs = []
    for a, b, c in itertools.product((0, 1), repeat=3):
        levels = (a, b, c, a ^ b, a ^ c, b ^ c)
        runs.append({name: FACTORS[name][i] for name, i in zip(FACTORS, levels, strict=True)})
    return runs


def make_prompts(vocab_size: int) -> list[list[int]]:
    """Mixed lengths; from the seventh on, each starts as the sixth before it."""
    generator = np.random.default_rng(7)
    prompts: list[list[int]] = []
    for i in range(NUM_PROMPTS):
        length = int(generator.integers(1, LONGEST_PROMPT))
        prompt = generator.integers(1, vocab_size, length).tolist()
        if i >= 6:
            prompt = prompts[i - 6][: 3 * len(prompts[i - 6]) // 4 + 1] + prompt[:8]
        prompts.append(prompt)
    return prompts


def make_long_prompts(vocab_size: int) -> list[list[int]]:
    """Every second prompt starts as the first."""
    generator = np.random.default_rng(8)
    prompts = [generator.integers(1, vocab_size, length).tolist() for length in LONG_PROMPTS]
    prefix = prompts[0][:LONG_PREFIX]
    return [prefix + p[LONG_PREFIX:] if i % 2 == 0 else p for i, p in enumerate(prompts)]


def long_keywords(backend: str, dtype: str, levels: dict[str, Any]) -> dict[str, Any]:
    """Of `LLM`, for one run of long prompts."""
    blocks = len(LONG_PROMPTS) * LONG_SIZES["max_model_len"] // PAGE
    allocator = {"name": levels["kv_allocator"], "block_size": PAGE, "num_blocks": blocks}
    return keywords(backend, dtype, levels) | LONG_SIZES | {"kv_allocator": allocator}


def keywords(backend: str, dtype: str, levels: dict[str, Any]) -> dict[str, Any]:
    """Of `LLM`, for one run of few rows."""
    blocks_per_row = -(-(2 * LONGEST_PROMPT + NUM_TOKENS) // PAGE)
    return {
        "dtype": dtype,
        "device": "cuda",
        "max_model_len": SCARCE_BLOCKS * PAGE,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "attention_backend": backend,
        "kv_allocator": {
            "name": levels["kv_allocator"],
            "block_size": PAGE,
            "num_blocks": blocks_per_row * NUM_PROMPTS
            if levels["room"] == "ample"
            else SCARCE_BLOCKS,
        },
        **{key: levels[key] for key in ("batching", "chunk_tokens", "overlap", "cuda_graphs")},
    }


class Reference:
    """The checkpoint in transformers."""

    def __init__(self, folder: Path, dtype: str) -> None:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype)
        )
        self._model = model.to("cuda").eval()

    @torch.inference_mode()
    def logits(self, text: Text) -> torch.Tensor:
        """float32[outputs, vocab] that the outputs of a text are drawn from."""
        tokens = torch.tensor([text.token_ids[:-1]], device="cuda")
        num_outputs = len(text.token_ids) - text.num_prompt_tokens
        return self._model(tokens, logits_to_keep=num_outputs).logits[0].float()


def compare(
    texts: Sequence[Text], exact: Reference, rounded: Reference | None
) -> dict[str, float | int]:
    """Errors as shares of the deviation of each position's logits, and tokens that differ."""
    largest, squares, peer_squares, num_tokens, num_ties, num_different = 0.0, 0.0, 0.0, 0, 0, 0
    for text in texts:
        expected = exact.logits(text)
        deviation = expected.std(dim=1, keepdim=True)
        errors = (torch.from_numpy(text.logits).cuda() - expected) / deviation
        largest = max(largest, errors.abs().max().item())
        squares += errors.square().mean(dim=1).sum().item()
        if rounded is not None:
            theirs = (rounded.logits(text) - expected) / deviation
            peer_squares += theirs.square().mean(dim=1).sum().item()
        drawn = torch.tensor(text.token_ids[text.num_prompt_tokens :], device="cuda")
        best = expected.topk(2, dim=1)
        ties = (best.values[:, 0] - best.values[:, 1]) / deviation[:, 0] < TIE
        num_tokens += len(drawn)
        num_ties += int(ties.sum())
        num_different += int((~ties & (best.indices[:, 0] != drawn)).sum())
    found: dict[str, float | int] = {"largest": largest, "rms": (squares / num_tokens) ** 0.5}
    if rounded is None:
        return found | {"tokens": num_tokens, "tied": num_ties, "different": num_different}
    peer = (peer_squares / num_tokens) ** 0.5
    return found | {"transformers rms": peer, "ratio": found["rms"] / peer, "tokens": num_tokens}


def is_within(row: dict[str, Any]) -> bool:
    if "ratio" in row:
        return row["ratio"] <= BFLOAT16_RATIO
    return row["largest"] <= FLOAT32_BOUND and not row["different"]


def logits_runs(
    models: Path, dtype: str, deadline: float, *, is_long: bool = False
) -> list[dict[str, Any]]:
    """One row per backend and combination."""
    folder = make(models, SHAPES[dtype])
    exact = Reference(folder, "float32")
    rounded = None if dtype == "float32" else Reference(folder, dtype)
    rows: list[dict[str, Any]] = []
    levels_of = [combinations()[number] for number in (0, -2)] if is_long else combinations()
    cases: Any = itertools.product(levels_of, BACKENDS[dtype])
    for levels, backend in cases:
        if time.monotonic() > deadline:
            print("no time left for", dtype, backend, levels, flush=True)
            continue
        levels = levels | {"cuda_graphs": levels["cuda_graphs"] and backend != "sdpa"}
        row: dict[str, Any] = {"dtype": dtype, "backend": backend, **named(levels)}
        given = (long_keywords if is_long else keywords)(backend, dtype, levels)
        selection = select(load(folder, given))
        make_texts = make_long_prompts if is_long else make_prompts
        prompts = make_texts(selection.spec.vocab_size)
        row |= compare(run_engine(selection, prompts, NUM_TOKENS), exact, rounded)
        rows.append(row | {"": "" if is_within(row) else "OUTSIDE"})
        print(json.dumps(rows[-1]), flush=True)
        gc.collect()
    return rows


def named(levels: dict[str, Any]) -> dict[str, str]:
    """Levels as words for a table."""
    words: dict[Any, str] = {True: "on", False: "off", None: "whole"}
    return {key: words.get(value, str(value)) for key, value in levels.items()}


def seeded_runs(models: Path, deadline: float) -> list[dict[str, Any]]:
    """Draws at temperature 1: requests whose tokens differ from those of the first run."""
    folder = make(models, SHAPES["float32"])
    rows: list[dict[str, Any]] = []
    first: list[list[int]] = []
    for levels in combinations():
        if time.monotonic() > deadline:
            print("no time left for seeded draws", levels, flush=True)
            continue
        with LLM(folder, **keywords("triton", "float32", levels)) as llm:
            prompts = make_prompts(int(llm.engine.spec.vocab_size))
            params = [
                SamplingParams(seed=i, max_tokens=NUM_TOKENS, ignore_eos=True, top_p=top_p)
                for i, top_p in zip(range(NUM_PROMPTS), itertools.cycle((1.0, 0.9)))
            ]
            results = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
            stats = dict(llm.engine.stats())
        outputs = [list(result.outputs[0].token_ids) for result in results]
        first = first or outputs
        different = sum(a != b for a, b in zip(outputs, first, strict=True))
        row = {"dtype": "float32", "backend": "triton", **named(levels), "requests": len(outputs)}
        row |= {"preemptions": stats["num_preemptions"], "different": different}
        rows.append(row | {"": "OUTSIDE" if different else ""})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    words = sys.argv[1:]
    seconds = float(words.pop(0)) if words and words[0].isdigit() else 300.0
    if unknown := set(words) - {"short", "long"}:
        sys.exit(f"what is {', '.join(unknown)}? short or long")
    deadline = time.monotonic() + seconds
    torch.backends.cuda.matmul.allow_tf32 = False
    models = Path(os.environ.get("MODELS") or tempfile.mkdtemp())
    parts: dict[str, list[dict[str, Any]]] = {}
    if "long" in words or not words:
        for dtype in ("float32", "bfloat16"):
            runs = logits_runs(models, dtype, deadline, is_long=True)
            parts[f"{dtype}, long prompts"] = runs
    if "short" in words or not words:
        parts["seeded draws"] = seeded_runs(models, deadline)
        parts["float32"] = logits_runs(models, "float32", deadline)
        parts["bfloat16"] = logits_runs(models, "bfloat16", deadline)
    for name, rows in parts.items():
        print(f"\n{name}: {sum(not row[''] for row in rows)} of {len(rows)} within")
        print(table([{k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()}
                     for row in rows]))  # fmt: skip
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], "numerics.json").write_text(
            json.dumps(parts, indent=1), encoding="utf-8"
        )
    sys.exit(any(row[""] for rows in parts.values() for row in rows))


if __name__ == "__main__":
    main()
