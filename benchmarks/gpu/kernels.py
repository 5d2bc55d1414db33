"""Our kernels on this GPU: right, and how fast, beside the FlashAttention that is installed.

    python benchmarks/gpu/kernels.py [check] [decode] [prefill] [layers] [one_row] [few_rows]
    python benchmarks/gpu/kernels.py [contexts] [sampling]
    python benchmarks/gpu/kernels.py sweep_decode sweep_prefill sweep_one_row sweep_few_rows
    python benchmarks/gpu/kernels.py sweep_contexts

Attention of 8 KV heads of 128, bfloat16, pages in random order, without the KV store. Each
section prints a table; several sections may be named, none means all but the sweeps.
`OUT=folder` keeps the rows as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attention_times import HEAD_DIM, KV_HEADS, check, decode, prefill, sweep_decode, sweep_prefill
from few_rows_attention import contexts, sweep_contexts
from products import VOCABULARY, few_rows, one_row, sweep_few_rows, sweep_one_row
from timing import mean_us, table

from nanofw.contracts.attention_backend import FusedInputs
from nanofw.kernels.sampling import RowSampling
from nanofw.kernels.triton import tuning as triton_tuning
from nanofw.kernels.triton.activation import silu_and_mul
from nanofw.kernels.triton.cutoff import cutoffs_of
from nanofw.kernels.triton.kv_store import qkv_rope_store, store_kv
from nanofw.kernels.triton.norm import add_rms_norm
from nanofw.kernels.triton.sampling import sample_tokens


def layers() -> list[dict[str, object]]:
    """The small kernels of a layer, by their bytes."""
    sizes = ((1024, 3072, 16), (4096, 12288, 32))
    return [_layer_row(*size, tokens) for size in sizes for tokens in (1, 32, 256, 8192)]


def _layer_row(hidden: int, inner: int, num_heads: int, tokens: int) -> dict[str, object]:
    count = 8 if tokens > 256 else 32
    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(count, tokens, hidden, **kind)
    residual = torch.randn(tokens, hidden, **kind)
    gates = torch.randn(count, tokens, 2 * inner, **kind)
    qkv = torch.randn(count, tokens, (num_heads + 2 * KV_HEADS) * HEAD_DIM, **kind)
    weight, norm = torch.rand(hidden, **kind), torch.rand(HEAD_DIM, **kind)
    angles = torch.randn(8192, HEAD_DIM, device="cuda")
    positions = torch.arange(tokens, device="cuda")
    kv = torch.zeros(2, tokens // 64 + 1, KV_HEADS, 64, HEAD_DIM, **kind).transpose(2, 3)
    heads = qkv.view(count, tokens, -1, HEAD_DIM)
    keys, values = heads[:, :, num_heads : num_heads + KV_HEADS], heads[:, :, -KV_HEADS:]

    def add_norm(i: int) -> None:
        add_rms_norm(x[i], residual, weight, 1e-6)

    def silu_mul(i: int) -> None:
        silu_and_mul(gates[i])

    def fused(i: int) -> None:
        inputs = FusedInputs(
            qkv=qkv[i], query_norm=norm, key_norm=norm, norm_eps=1e-6, cos_sin=angles
        )
        qkv_rope_store(inputs, num_heads, kv, positions, positions)

    def store(i: int) -> None:
        store_kv(keys[i], values[i], kv, positions)

    moved = {
        add_norm: 4 * hidden,
        silu_mul: 3 * inner,
        fused: 2 * (num_heads + 2 * KV_HEADS) * HEAD_DIM,
        store: 4 * KV_HEADS * HEAD_DIM,
    }
    row: dict[str, object] = {"hidden": hidden, "tokens": tokens}
    for run, elements in moved.items():
        us = mean_us(run, count)
        row[f"{run.__name__} us"] = round(us, 2)
        row[f"{run.__name__} TB/s"] = round(elements * 2 * tokens / us / 1e6, 2)
    return row


def sampling() -> list[dict[str, object]]:
    """Sampling from 151936 tokens, us, by what rows ask for; torch's softmax and sort beside it."""
    return [
        _sampling_row(dtype, lines)
        for dtype in (torch.bfloat16, torch.float32)
        for lines in (1, 32, 256)
    ]


def _sampling_row(dtype: torch.dtype, lines: int) -> dict[str, object]:
    logits = (torch.randn(2, lines, VOCABULARY, device="cuda") * 3).to(dtype)
    index = torch.arange(lines, device="cuda")
    inverse = torch.full((lines,), 1 / 0.7, device="cuda")
    keys = torch.randint(0, 2**31 - 1, (lines, 2), dtype=torch.int32, device="cuda")
    top_k = torch.full((lines,), 50, dtype=torch.int32, device="cuda")
    top_p = torch.full((lines,), 0.95, device="cuda")
    no_min_p = torch.zeros_like(top_p)
    everything = (torch.zeros_like(top_k), torch.ones_like(top_p))

    def sample(i: int, rules: tuple[torch.Tensor, torch.Tensor] | None = None) -> None:
        sampling = RowSampling(inverse, keys, *(rules or everything), no_min_p)
        cutoffs = None if rules is None else cutoffs_of(logits[i], index, sampling)
        sample_tokens(logits[i], index, sampling, index, cutoffs=cutoffs)

    runs: dict[str, Callable[[int], object]] = {
        "sample": sample,
        "top-p": lambda i: sample(i, (everything[0], top_p)),
        "top-k": lambda i: sample(i, (top_k, everything[1])),
        "both": lambda i: sample(i, (top_k, top_p)),
        "torch softmax": lambda i: logits[i].float().softmax(-1),
        "torch sort": lambda i: logits[i].float().sort(descending=True),
    }
    times = {name: round(mean_us(run, 2), 1) for name, run in runs.items()}
    return {"dtype": str(dtype)[6:], "lines": lines, **times}


SECTIONS = {
    f.__name__: f
    for f in (
        check, decode, contexts, prefill, layers, one_row, few_rows, sampling,
        sweep_decode, sweep_prefill, sweep_one_row, sweep_few_rows, sweep_contexts,
    )
}  # fmt: skip


def main() -> None:
    names = sys.argv[1:] or [n for n in SECTIONS if not n.startswith("sweep")]
    unknown = set(names) - set(SECTIONS)
    if unknown:
        sys.exit(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    if not torch.cuda.is_available():
        sys.exit("this needs an NVIDIA GPU")
    import triton

    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    print("decode", triton_tuning.decode_config(HEAD_DIM, 2))
    print("prefill", triton_tuning.prefill_config(HEAD_DIM, 2))
    for name in names:
        begin = time.monotonic()
        rows = SECTIONS[name]()
        print(f"\n{name}: {SECTIONS[name].__doc__} ({time.monotonic() - begin:.0f} s)", flush=True)
        print(table(rows), flush=True)
        if folder := os.environ.get("OUT"):
            Path(folder, f"{name}.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
