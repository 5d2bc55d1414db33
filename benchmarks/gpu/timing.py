"""Timing on a GPU, and batches over paged pools as a run has them."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from nanofw.contracts.attention_backend import AttentionConfig, ForwardBatch


def graph_ms(run: Callable[[], object], repeats: int = 15) -> float:
    """Median milliseconds of `run`, captured in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return eager_ms(graph.replay, repeats)


def mean_us(run: Callable[[int], object], count: int) -> float:
    """Mean microseconds of `run(0)` to `run(count - 1)`, captured in one CUDA graph."""

    def run_all() -> None:
        for i in range(count):
            run(i)

    return graph_ms(run_all, 9) / count * 1e3


def eager_ms(run: Callable[[], object], repeats: int = 15, warm_up: int = 3) -> float:
    """Median milliseconds of `run`, by events around each call."""
    for _ in range(warm_up):
        run()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return median(times)


def attention_config(
    num_heads: int, page: int, head_dim: int = 128, num_kv_heads: int = 8, dtype=torch.bfloat16
) -> AttentionConfig:
    return AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        num_layers=1,
        block_size=page,
        max_num_seqs=256,
        max_num_batched_tokens=16384,
        max_model_len=4096,
        dtype=dtype,
        device=torch.device("cuda"),
    )


def make_batch(
    query_lens: list[int], context_lens: list[int], page: int, table_width: int | None = None
) -> tuple[ForwardBatch, int]:
    """A batch whose rows lie on pages in random order, and the number of pages."""
    pages = [-(-c // page) for c in context_lens]
    order = np.random.default_rng(0).permutation(sum(pages)).astype(np.int32)
    width = table_width or max(pages)
    tables = np.zeros((len(pages), width), np.int32)
    at = 0
    for row, count in enumerate(pages):
        tables[row, :count] = order[at : at + count]
        at += count
    query = np.array(query_lens, np.int32)
    context = np.array(context_lens, np.int32)
    positions = np.concatenate(
        [np.arange(c - q, c) for q, c in zip(query_lens, context_lens, strict=True)]
    )
    owner = np.repeat(np.arange(len(query)), query)
    slots = tables[owner, positions // page].astype(np.int64) * page + positions % page

    def on_device(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to("cuda", dtype)

    decodes = next((i for i, n in enumerate(query_lens) if n > 1), len(query_lens))
    return (
        ForwardBatch(
            token_ids=on_device(positions * 0, torch.int64),
            positions=on_device(positions, torch.int64),
            slots=on_device(slots, torch.int64),
            block_tables=on_device(tables, torch.int32),
            query_starts=on_device(np.concatenate([[0], np.cumsum(query)]), torch.int32),
            context_lens=on_device(context, torch.int32),
            host_query_lens=query,
            host_context_lens=context,
            num_decodes=decodes,
            logits_indices=on_device(np.cumsum(query) - 1, torch.int64),
        ),
        sum(pages),
    )


def table(rows: list[dict[str, object]]) -> str:
    """The rows as a text table, columns in order of first appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_text(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = [columns, ["-" * w for w in widths], *cells]
    return "\n".join(
        "  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines
    )


def _text(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
