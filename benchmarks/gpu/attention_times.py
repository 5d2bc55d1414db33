"""Attention of our kernels on this GPU: checked, timed, and swept, beside FlashAttention."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import numpy as np
import torch
from timing import attention_config, graph_ms, make_batch

from nanofw.attention_backends import flash_attn
from nanofw.attention_backends.triton import TritonAttention
from nanofw.contracts.attention_backend import ForwardBatch
from nanofw.kernels.triton import attention_decode as triton_attention_decode
from nanofw.kernels.triton.paging import PagedAttention
from nanofw.kernels.triton.tuning import DecodeConfig, PrefillConfig

KV_HEADS, HEAD_DIM = 8, 128
SCALE = HEAD_DIM**-0.5
SECOND_LEVEL_CACHE = 60e6
SHARED_MEMORY = 227 * 1024
SECONDS = float(os.environ.get("SECONDS_PER_SWEEP", "150"))


def backends(num_heads: int, page: int) -> dict[str, Any]:
    """Backends that run here, by name."""
    config = attention_config(num_heads, page)
    found: dict[str, Any] = {"triton": TritonAttention(None, config)}
    answer: Any = flash_attn.probe("cuda", None)
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
    """Filled layers: enough of them that going through all does not hit the cache."""
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
            call = PagedAttention(
                query, kv[0], kv[1], batch.block_tables, batch.context_lens, SCALE, None, out
            )
            triton_attention_decode.decode_attention(call, starts, workspace, config)

    return graph_ms(run, 7) / len(layers) * 1e3


def sweep_prefill() -> list[dict[str, object]]:
    """All configurations on 16 x 1024, the ten best on the others."""
    rows: list[dict[str, object]] = []
    for num_heads, page in ((16, 64), (32, 64), (16, 16)):
        begin = time.monotonic()
        backend = TritonAttention(None, attention_config(num_heads, page))
        setup = {
            name: (*make_batch(new, context, page), prefill_flops(new, context, num_heads))
            for name, (new, context) in PREFILLS.items()
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
