"""Decode attention of few rows at any context: beside FlashAttention, and swept.

The number of programs is fixed when a step is captured, and the context is not known then: a
configuration goes by the number of rows, and has to serve all contexts.
"""

from __future__ import annotations

import itertools
import os
from math import prod
from typing import Any

import torch
from attention_times import (
    HEAD_DIM,
    KV_HEADS,
    SCALE,
    SHARED_MEMORY,
    backends,
    pools,
    time_attention,
)
from timing import attention_config, graph_ms, make_batch

from nanofw.attention_backends.triton import TritonAttention
from nanofw.contracts.attention_backend import ForwardBatch
from nanofw.kernels.aot.compiler import AheadCompiler
from nanofw.kernels.triton import attention_decode as triton_attention_decode
from nanofw.kernels.triton.paging import PagedAttention
from nanofw.kernels.triton.tuning import DecodeConfig, few_rows_decode_config

PAGE = 64
ROWS = (1, 2, 4, 8, 16)
CONTEXTS = (400, 4000, 30_000)
THREADS = int(os.environ.get("COMPILE_THREADS", "8"))


def contexts() -> list[dict[str, object]]:
    """Microseconds a layer and KV bandwidth, by rows and context."""
    rows: list[dict[str, object]] = []
    for num_heads, count, context in itertools.product((16, 32), ROWS, CONTEXTS):
        batch, num_pages = make_batch([1] * count, [context] * count, PAGE)
        row: dict[str, object] = {"heads": num_heads, "B": count, "context": context}
        for name, backend in backends(num_heads, PAGE).items():
            ms = time_attention(backend, batch, num_pages, num_heads)
            row[f"{name} us"] = round(ms * 1e3, 2)
            row[f"{name} TB/s"] = count * context * KV_HEADS * HEAD_DIM * 4 / ms / 1e9
        rows.append(row)
        torch.cuda.empty_cache()
    return rows


def _configs(num_heads: int) -> list[DecodeConfig]:
    """What is in use first."""
    found = [few_rows_decode_config(HEAD_DIM, 2, num_heads // KV_HEADS)]
    for (tile, warps), stages, programs, tma in itertools.product(
        ((64, 4), (128, 4), (128, 8)), (3, 4, 5), (1, 2), (False, True)
    ):
        in_flight = 2 * (stages - 1) * tile * HEAD_DIM * 2 + 8192
        if (tma and tile > PAGE) or in_flight * programs > SHARED_MEMORY:
            continue
        registers = min(248, 65536 // (programs * warps * 32) // 8 * 8)
        config = DecodeConfig(tile, warps, stages, programs, tma, registers, 8192, 16)
        found += [config] if config not in found else []
    return found


def _call(
    query: torch.Tensor, kv: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor
) -> PagedAttention:
    out = torch.empty_like(query)
    return PagedAttention(query, kv[0], kv[1], tables, lengths, SCALE, None, out)


def _compile(num_heads: int, configs: list[DecodeConfig]) -> None:
    """All configurations at once, in threads."""
    meta: dict[str, Any] = {"device": "meta"}
    kv = torch.empty(2, 8, KV_HEADS, PAGE, HEAD_DIM, dtype=torch.bfloat16, **meta).transpose(2, 3)
    query = torch.empty(1, num_heads, HEAD_DIM, dtype=torch.bfloat16, **meta)
    tables = torch.empty(1, 8, dtype=torch.int32, **meta)
    starts = torch.empty(2, dtype=torch.int32, **meta)

    def launch_all() -> None:
        for config in configs:
            workspace = triton_attention_decode.decode_workspace(
                num_heads, KV_HEADS, HEAD_DIM, 256, config, query.device
            )
            call = _call(query, kv, tables, starts[:1])
            triton_attention_decode.decode_attention(call, starts, workspace, config)

    compiler = AheadCompiler(launch_all, torch.cuda.current_device(), THREADS)
    seconds = compiler.close()
    print(f"compiled {compiler.num_variants} in {seconds:.0f} s", compiler.problem or "")


def sweep_contexts() -> list[dict[str, object]]:
    """Microseconds a layer, by rows and context, of the configurations that are best in the mean of
    some row count; the first line of each number of heads is what is in use."""
    rows: list[dict[str, object]] = []
    for num_heads in (16, 32):
        configs = _configs(num_heads)
        _compile(num_heads, configs)
        times: dict[tuple[int, int], list[float]] = {}
        for count, context in itertools.product(ROWS, CONTEXTS):
            times[count, context] = _times(num_heads, count, context, configs)
            torch.cuda.empty_cache()
        means = {
            count: [prod(times[count, c][i] for c in CONTEXTS) for i in range(len(configs))]
            for count in ROWS
        }
        best = {
            i for mean in means.values() for i in sorted(range(len(mean)), key=mean.__getitem__)[:3]
        }
        rows += [
            {
                "heads": num_heads, "tile": config.tile, "warps": config.num_warps,
                "stages": config.num_stages, "programs": config.programs_per_multiprocessor,
                "tma": config.tma,
                **{f"{b}x{c}": round(us[i], 1) for (b, c), us in times.items()},
            }
            for i, config in enumerate(configs) if i == 0 or i in best
        ]  # fmt: skip
    return rows


def _times(num_heads: int, count: int, context: int, configs: list[DecodeConfig]) -> list[float]:
    batch, num_pages = make_batch([1] * count, [context] * count, PAGE)
    backend = TritonAttention(None, attention_config(num_heads, PAGE))
    layers = pools(backend, num_pages, 150e6)
    query = torch.randn(count, num_heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    return [_time(config, num_heads, batch, layers, query) for config in configs]


def _time(
    config: DecodeConfig,
    num_heads: int,
    batch: ForwardBatch,
    layers: list[torch.Tensor],
    query: torch.Tensor,
) -> float:
    """Microseconds of a layer; without end where the configuration cannot run."""
    workspace = triton_attention_decode.decode_workspace(
        num_heads, KV_HEADS, HEAD_DIM, 256, config, query.device
    )
    starts = triton_attention_decode.decode_tile_starts(
        batch.context_lens, config.tile, workspace.batch_pad
    )

    def run() -> None:
        for kv in layers:
            call = _call(query, kv, batch.block_tables, batch.context_lens)
            triton_attention_decode.decode_attention(call, starts, workspace, config)

    try:
        return graph_ms(run, 5) / len(layers) * 1e3
    except Exception as error:
        print(config, type(error).__name__, str(error)[:80])
        return float("inf")
