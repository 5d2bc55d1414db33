"""Our kernels on this GPU: right, and how fast, beside the FlashAttention that is installed.

    python benchmarks/gpu/kernels.py [check] [decode] [prefill] [layers] [one_row] [sampling]
    python benchmarks/gpu/kernels.py sweep_decode sweep_prefill sweep_one_row

Attention of 8 KV heads of 128, bfloat16, pages in random order, without the KV store. Each
section prints a table; several sections may be named, none means all but the sweeps.
`OUT=folder` keeps the rows as JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import attention_config, graph_ms, make_batch, table
from torch.nn import functional

from nanofw.attention_backends import flash_attn
from nanofw.attention_backends.triton import TritonAttention
from nanofw.contracts.attention_backend import ForwardBatch
from nanofw.kernels.triton import attention_decode as triton_attention_decode
from nanofw.kernels.triton import tuning as triton_tuning
from nanofw.kernels.triton.activation import silu_and_mul_triton
from nanofw.kernels.triton.cutoff import cutoffs_triton
from nanofw.kernels.triton.kv_store import qkv_rope_store_triton, store_kv_triton
from nanofw.kernels.triton.linear import (
    OneRowConfig,
    one_row_linear_triton,
)
from nanofw.kernels.triton.norm import add_rms_norm_triton
from nanofw.kernels.triton.sampling import draw_triton
from nanofw.kernels.triton.tuning import DecodeConfig, PrefillConfig

KV_HEADS, HEAD_DIM = 8, 128
SCALE = HEAD_DIM**-0.5
VOCABULARY = 151936
ONE_ROW_SHAPES = [  # weight, outputs, inputs; "/2": a rank's of two
    ("0.6b qkv", 4096, 1024), ("0.6b o", 1024, 2048), ("0.6b gate_up", 6144, 1024),
    ("0.6b down", 1024, 3072), ("0.6b head", VOCABULARY, 1024),
    ("8b qkv", 6144, 4096), ("8b o", 4096, 4096), ("8b gate_up", 24576, 4096),
    ("8b down", 4096, 12288), ("8b head", VOCABULARY, 4096),
    ("8b/2 qkv", 3072, 4096), ("8b/2 o", 4096, 2048), ("8b/2 gate_up", 12288, 4096),
    ("8b/2 down", 4096, 6144),
    ("32b qkv", 10240, 5120), ("32b o", 5120, 8192), ("32b gate_up", 51200, 5120),
    ("32b down", 5120, 25600),
    ("32b/2 qkv", 5120, 5120), ("32b/2 o", 5120, 4096), ("32b/2 gate_up", 25600, 5120),
    ("32b/2 down", 5120, 12800),
]  # fmt: skip
SECOND_LEVEL_CACHE = 60e6
WARPS = (1, 2, 4, 8)
SHARED_MEMORY = 227 * 1024
SECONDS = float(os.environ.get("SECONDS_PER_SWEEP", "150"))


def backends(num_heads: int, page: int) -> dict[str, Any]:
    """Backends that run here, by name."""
    config = attention_config(num_heads, page)
    found: dict[str, Any] = {"triton": TritonAttention(None, config)}
    answer = flash_attn.probe("cuda", None)
    if isinstance(answer, str):
        print("flash_attn:", answer)
    elif page in answer.get("block_sizes", (page,)):
        backend = flash_attn.FlashAttention(None, config)
        found[f"fa{backend.version.number}"] = backend
    return found


def decode_lengths(batch_size: int) -> list[int]:
    """Context lengths as in the middle of nano-vllm's benchmark; one row: 384."""
    if batch_size == 1:
        return [384]
    return np.random.default_rng(0).integers(300, 1501, batch_size).tolist()


def pools(backend: Any, num_pages: int, bytes_wanted: float) -> list[torch.Tensor]:
    """Filled layers, so many that going through them does not hit the cache."""
    size = num_pages * backend.bytes_per_block()
    count = max(2, min(96, int(bytes_wanted // size) + 1))
    return [layer for _ in range(count) for layer in _filled(backend, num_pages)]


def _filled(backend: Any, num_pages: int) -> list[torch.Tensor]:
    pool = backend.allocate(num_pages)
    for layer in pool:
        layer.normal_()
    return pool


def time_attention(backend: Any, batch: ForwardBatch, num_pages: int, num_heads: int) -> float:
    """Milliseconds of one layer's attention."""
    layers = pools(backend, num_pages, 4 * SECOND_LEVEL_CACHE)
    tokens = batch.positions.shape[0]
    query = torch.randn(tokens, num_heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    batch.attention = backend.prepare(batch)

    def run() -> None:
        for kv in layers:
            backend.attend(query, 0, kv, batch, SCALE)

    return graph_ms(run) / len(layers)


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    n, m, group = query.shape[0], key.shape[0], query.shape[1] // key.shape[1]
    k, v = (x.float().repeat_interleave(group, 1) for x in (key, value))
    scores = torch.einsum("nhd,mhd->hnm", query.float(), k) * SCALE
    at = torch.arange(n, device="cuda")[:, None] + m - n
    scores.masked_fill_(torch.arange(m, device="cuda")[None] > at, -torch.inf)
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v)


def check() -> list[dict[str, object]]:
    """Largest relative error of a row against float32, on batches of the benchmark's sizes."""
    torch.backends.cuda.matmul.allow_tf32 = False
    shapes = {
        "decode": ([1] * 40, decode_lengths(40)),
        "prefill": ([300, 1024, 77, 700], [300, 1024, 77, 700]),
        "mixed": ([1] * 9 + [200, 33], [*decode_lengths(9), 900, 33]),
    }
    rows: list[dict[str, object]] = []
    for num_heads, page in itertools.product((16, 32), (16, 64, 256)):
        for name, backend in backends(num_heads, page).items():
            row: dict[str, object] = {"backend": name, "heads": num_heads, "page": page}
            for shape, (query_lens, context_lens) in shapes.items():
                row[shape] = f"{_worst(backend, query_lens, context_lens, page, num_heads):.1e}"
            rows.append(row)
    return rows


def _worst(
    backend: Any, query_lens: list[int], context_lens: list[int], page: int, num_heads: int
) -> float:
    batch, num_pages = make_batch(query_lens, context_lens, page)
    kv = _filled(backend, num_pages)[0]
    tokens = batch.positions.shape[0]
    query = torch.randn(tokens, num_heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    batch.attention = backend.prepare(batch)
    out = backend.attend(query, 0, kv, batch, SCALE)
    starts = batch.query_starts.tolist()
    worst = 0.0
    for row, length in enumerate(context_lens):
        blocks = batch.block_tables[row, : -(-length // page)].long()
        key, value = (side[blocks].flatten(0, 1)[:length] for side in kv)
        part = slice(starts[row], starts[row + 1])
        expected = plain(query[part], key, value)
        error = ((out[part].float() - expected).norm() / expected.norm()).item()
        worst = max(worst, error) if error == error else float("nan")
    return worst


def decode() -> list[dict[str, object]]:
    """Microseconds a layer and KV bandwidth."""
    rows: list[dict[str, object]] = []
    for num_heads, page, batch_size in itertools.product((16, 32), (16, 64, 256), (1, 32, 256)):
        lengths = decode_lengths(batch_size)
        batch, num_pages = make_batch([1] * batch_size, lengths, page, 4096 // page)
        row: dict[str, object] = {"heads": num_heads, "page": page, "B": batch_size}
        for name, backend in backends(num_heads, page).items():
            ms = time_attention(backend, batch, num_pages, num_heads)
            row[f"{name} us"] = round(ms * 1e3, 2)
            row[f"{name} TB/s"] = sum(lengths) * KV_HEADS * HEAD_DIM * 4 / ms / 1e9
        rows.append(row)
        torch.cuda.empty_cache()
    return rows


PREFILLS = {
    "16 x 1024": ([1024] * 16, [1024] * 16),
    "1 x 8192": ([8192], [8192]),
    "32 x 100..1024": (np.random.default_rng(1).integers(100, 1025, 32).tolist(),) * 2,
    "8 x 512 after 1536": ([512] * 8, [2048] * 8),
    "1 x 128": ([128], [128]),
}


def prefill_flops(query_lens: list[int], context_lens: list[int], num_heads: int) -> float:
    """Of the scores that the causal mask keeps."""
    pairs = sum(
        q * (c - q) + q * (q + 1) / 2 for q, c in zip(query_lens, context_lens, strict=True)
    )
    return 4.0 * pairs * num_heads * HEAD_DIM


def prefill() -> list[dict[str, object]]:
    """Microseconds a layer and TFLOP/s."""
    rows: list[dict[str, object]] = []
    for num_heads, page in itertools.product((16, 32), (16, 64, 256)):
        for name, (query_lens, context_lens) in PREFILLS.items():
            batch, num_pages = make_batch(query_lens, context_lens, page)
            row: dict[str, object] = {"heads": num_heads, "page": page, "rows": name}
            for kind, backend in backends(num_heads, page).items():
                ms = time_attention(backend, batch, num_pages, num_heads)
                row[f"{kind} us"] = round(ms * 1e3, 1)
                flops = prefill_flops(query_lens, context_lens, num_heads)
                row[f"{kind} TFLOP/s"] = round(flops / ms / 1e9, 1)
            rows.append(row)
            torch.cuda.empty_cache()
    return rows


def _shared_memory(tile: int, stages: int) -> int:
    return 2 * (stages - 1) * tile * HEAD_DIM * 2 + 8192


def _decode_configs(page: int) -> list[DecodeConfig]:
    found = []
    for tile, warps, stages, tma in itertools.product(
        (64, 32, 128), (4, 2, 8), (3, 4, 2, 5), (False, True)
    ):
        if (tma and page < tile) or (tile == 32 and warps == 8) or (tile == 128 and warps == 2):
            continue
        most = SHARED_MEMORY // _shared_memory(tile, stages)
        for programs in (1, 2, 3, 4, 6, 8):
            if programs > most or programs * warps > 32:
                continue
            registers = 65536 // (programs * warps * 32)
            limit = None if registers >= 255 else registers // 8 * 8
            if limit is None or limit >= 96:
                found.append(DecodeConfig(tile, warps, stages, programs, tma, limit))
    # Little in flight cannot fill the memory; too much of everything is tried last.
    wanted = 96e3
    return sorted(
        found,
        key=lambda c: abs(
            c.programs_per_multiprocessor * _shared_memory(c.tile, c.num_stages) - wanted
        ),
    )


def sweep_decode() -> list[dict[str, object]]:
    """All configurations at B=256, then the ten best at B=1 and 32."""
    rows: list[dict[str, object]] = []
    for num_heads, page in ((16, 64), (16, 256), (16, 16), (32, 64)):
        begin = time.monotonic()
        results: list[tuple[float, DecodeConfig]] = []
        setup = {b: _decode_setup(num_heads, page, b) for b in (256, 32, 1)}
        for config in _decode_configs(page):
            if time.monotonic() - begin > SECONDS / 4:
                print(f"stopped after {len(results)} configurations")
                break
            try:
                results.append((_time_decode(config, num_heads, page, *setup[256]), config))
            except Exception as error:  # a shape that this card cannot build is a result too
                print(config, type(error).__name__, str(error)[:80])
        for us, config in sorted(results, key=lambda r: r[0])[:10]:
            others = [_time_decode(config, num_heads, page, *setup[b]) for b in (32, 1)]
            rows.append(_decode_row(num_heads, page, config, [us, *others]))
        torch.cuda.empty_cache()
    return rows


def _decode_row(
    num_heads: int, page: int, config: DecodeConfig, us: list[float]
) -> dict[str, object]:
    gigabytes = sum(decode_lengths(256)) * KV_HEADS * HEAD_DIM * 4 / 1e9
    return {
        "heads": num_heads,
        "page": page,
        "tile": config.tile,
        "warps": config.num_warps,
        "stages": config.num_stages,
        "programs": config.programs_per_multiprocessor,
        "tma": config.tma,
        "registers": config.max_registers or 0,
        "B256 us": round(us[0], 1),
        "TB/s": gigabytes / us[0] * 1e3,
        "B32 us": round(us[1], 2),
        "B1 us": round(us[2], 2),
    }


def _decode_setup(
    num_heads: int, page: int, batch_size: int
) -> tuple[ForwardBatch, list[torch.Tensor], torch.Tensor]:
    lengths = decode_lengths(batch_size)
    batch, num_pages = make_batch([1] * batch_size, lengths, page, 4096 // page)
    backend = TritonAttention(None, attention_config(num_heads, page))
    layers = pools(backend, num_pages, 2 * SECOND_LEVEL_CACHE)
    query = torch.randn(batch_size, num_heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    return batch, layers, query


def _time_decode(
    config: DecodeConfig,
    num_heads: int,
    page: int,
    batch: ForwardBatch,
    layers: list[torch.Tensor],
    query: torch.Tensor,
) -> float:
    workspace = triton_attention_decode.decode_workspace(
        num_heads, KV_HEADS, HEAD_DIM, 256, config, query.device
    )
    starts = triton_attention_decode.decode_tile_starts(
        batch.context_lens, config.tile, workspace.batch_pad
    )
    out = torch.empty_like(query)

    def run() -> None:
        for kv in layers:
            triton_attention_decode.decode_attention(
                query, kv[0], kv[1], batch.block_tables, batch.context_lens, starts, workspace,
                config, SCALE, None, out,
            )  # fmt: skip

    return graph_ms(run, 7) / len(layers) * 1e3


def sweep_prefill() -> list[dict[str, object]]:
    """All configurations on 16 x 1024, the ten best on the others."""
    rows: list[dict[str, object]] = []
    for num_heads, page in ((16, 64), (32, 64), (16, 16)):
        begin = time.monotonic()
        backend = TritonAttention(None, attention_config(num_heads, page))
        setup = {
            name: (*make_batch(*lens, page), prefill_flops(*lens, num_heads))
            for name, lens in PREFILLS.items()
        }
        results: list[tuple[float, PrefillConfig]] = []
        for rows_m, tile, warps, stages, tma in itertools.product(
            (128, 64), (64, 128, 32), (8, 4), (3, 2, 4), (True, False)
        ):
            if (tma and page < tile) or (rows_m == 128 and warps == 4 and tile == 128):
                continue
            if time.monotonic() - begin > SECONDS / 3:
                break
            config = PrefillConfig(rows_m, tile, warps, stages, tma)
            try:
                results.append(
                    (_time_prefill(backend, config, num_heads, setup["16 x 1024"]), config)
                )
            except Exception as error:
                print(config, type(error).__name__, str(error)[:80])
        for rate, config in sorted(results, key=lambda r: -r[0])[:8]:
            row: dict[str, object] = {
                "heads": num_heads, "page": page, "rows": config.rows, "tile": config.tile,
                "warps": config.num_warps, "stages": config.num_stages, "tma": config.tma,
                "16 x 1024": round(rate, 1),
            }  # fmt: skip
            for name in list(PREFILLS)[1:]:
                row[name] = round(_time_prefill(backend, config, num_heads, setup[name]), 1)
            rows.append(row)
    return rows


def _time_prefill(
    backend: TritonAttention,
    config: PrefillConfig,
    num_heads: int,
    setup: tuple[ForwardBatch, int, float],
) -> float:
    batch, num_pages, flops = setup
    backend.set_prefill_config(config)
    return flops / time_attention(backend, batch, num_pages, num_heads) / 1e9


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
    k, v = torch.zeros(2, tokens // 64 + 1, KV_HEADS, 64, HEAD_DIM, **kind).transpose(2, 3)
    heads = qkv.view(count, tokens, -1, HEAD_DIM)
    keys, values = heads[:, :, num_heads : num_heads + KV_HEADS], heads[:, :, -KV_HEADS:]

    def add_norm(i: int) -> None:
        add_rms_norm_triton(x[i], residual, weight, 1e-6)

    def silu_mul(i: int) -> None:
        silu_and_mul_triton(gates[i])

    def fused(i: int) -> None:
        qkv_rope_store_triton(
            qkv[i], norm, norm, 1e-6, angles, positions, positions, k, v, num_heads
        )

    def store(i: int) -> None:
        store_kv_triton(keys[i], values[i], k, v, positions)

    moved = {
        add_norm: 4 * hidden,
        silu_mul: 3 * inner,
        fused: 2 * (num_heads + 2 * KV_HEADS) * HEAD_DIM,
        store: 4 * KV_HEADS * HEAD_DIM,
    }
    row: dict[str, object] = {"hidden": hidden, "tokens": tokens}
    for run, elements in moved.items():
        us = _mean_us(run, count)
        row[f"{run.__name__} us"] = round(us, 2)
        row[f"{run.__name__} TB/s"] = round(elements * 2 * tokens / us / 1e6, 2)
    return row


def _mean_us(run: Callable[[int], object], count: int) -> float:
    def run_all() -> None:
        for i in range(count):
            run(i)

    return graph_ms(run_all, 9) / count * 1e3


def sampling() -> list[dict[str, object]]:
    """Drawing from 151936 tokens, us, by what rows ask for; torch's softmax and sort beside it."""
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

    def draw(i: int, rules: tuple[torch.Tensor, torch.Tensor] | None = None) -> None:
        cutoffs = (
            None if rules is None else cutoffs_triton(logits[i], index, inverse, *rules, no_min_p)
        )
        draw_triton(logits[i], index, inverse, keys, index, cutoffs=cutoffs)

    runs: dict[str, Callable[[int], object]] = {
        "draw": draw,
        "top-p": lambda i: draw(i, (everything[0], top_p)),
        "top-k": lambda i: draw(i, (top_k, everything[1])),
        "both": lambda i: draw(i, (top_k, top_p)),
        "torch softmax": lambda i: logits[i].float().softmax(-1),
        "torch sort": lambda i: logits[i].float().sort(descending=True),
    }
    times = {name: round(_mean_us(run, 2), 1) for name, run in runs.items()}
    return {"dtype": str(dtype)[6:], "lines": lines, **times}


def one_row() -> list[dict[str, object]]:
    """The product of one row with the weights of Qwen3's layers and heads, beside torch's, us."""
    return [_one_row_row(*shape) for shape in ONE_ROW_SHAPES]


def _one_row_row(name: str, num_outputs: int, num_inputs: int) -> dict[str, object]:
    x, weights = _one_row_inputs(num_outputs, num_inputs)
    ours = _mean_us(lambda i: one_row_linear_triton(x, weights[i]), len(weights))
    theirs = _mean_us(lambda i: functional.linear(x, weights[i]), len(weights))
    expected = x.float() @ weights[0].float().T
    error = (one_row_linear_triton(x, weights[0]).float() - expected).norm() / expected.norm()
    megabytes = 2e-6 * num_outputs * num_inputs
    return {
        "weight": name, "out": num_outputs, "in": num_inputs,
        "ours us": round(ours, 2), "torch us": round(theirs, 2),
        "ours TB/s": round(megabytes / ours, 2), "torch TB/s": round(megabytes / theirs, 2),
        "error": f"{error.item():.1e}",
    }  # fmt: skip


def _one_row_inputs(num_outputs: int, num_inputs: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A row, and so many weights that going through them does not hit the cache."""
    count = max(2, min(24, int(3e9) // (2 * num_outputs * num_inputs)))
    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    weights = torch.randn(count, num_outputs, num_inputs, **kind)
    return torch.randn(1, num_inputs, **kind), list(weights)


def sweep_one_row() -> list[dict[str, object]]:
    """Tiles of the product of one row, the three fastest of each shape."""
    return [row for shape in ONE_ROW_SHAPES for row in _sweep_one_row(*shape)]


def _sweep_one_row(name: str, num_outputs: int, num_inputs: int) -> list[dict[str, object]]:
    x, weights = _one_row_inputs(num_outputs, num_inputs)
    found: list[tuple[float, str]] = []
    for outputs, width, warps in itertools.product((1, 2, 4, 8), (512, 1024, 2048, 4096), WARPS):
        per_thread = outputs * width // (32 * warps)
        if not 16 <= per_thread <= 128 or width >= 2 * num_inputs:
            continue
        config = OneRowConfig(outputs, width, warps)
        us = _mean_us(
            lambda i, c=config: one_row_linear_triton(x, weights[i], config=c), len(weights)
        )
        found.append((round(us, 2), str(config)))
    return [{"weight": name, "us": us, "config": config} for us, config in sorted(found)[:3]]


SECTIONS = {
    f.__name__: f
    for f in (
        check, decode, prefill, layers, one_row, sampling,
        sweep_decode, sweep_prefill, sweep_one_row,
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
