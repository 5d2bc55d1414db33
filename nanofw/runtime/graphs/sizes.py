"""Which sizes of steps are captured. Plain arithmetic: also for `nanofw explain`."""

from __future__ import annotations

from typing import Any

from nanofw.contracts.executor import ExecutorConfig

MAX_CHUNKS = 16
"""Prompts, or parts of them, in a captured step; the decoding rows beside them are not counted."""

DEFAULT_PREFILL_TOKENS = 512
"""Up to here a step's kernels are so short that a large GPU waits for their launches."""


def buckets(max_num_seqs: int) -> list[int]:
    """Batch sizes to capture, rising; the last is always `max_num_seqs`.

    Small ones are powers of two, then steps of 8, 16 and 32, and beyond 1024 steps that double
    with the size: what padding costs stays under a few percent, and so does the number of graphs.
    """
    if max_num_seqs < 1:
        raise ValueError(f"max_num_seqs must be at least 1, not {max_num_seqs}")
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 1024, 32)]
    sizes += _doubling(1024, 32, max_num_seqs)
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


def token_buckets(largest: int) -> list[int]:
    """Tokens of the steps with prefill to capture, rising; the last is `largest`; 0: none.

    Few, as each costs start-up time: the products of up to some 200 tokens take about as long
    as those of one, so coarse steps cost little there; beyond, steps of 128 and 256, and from
    4096 on steps that double with the size.
    """
    if largest < 1:
        return []
    sizes = [64, *range(128, 512, 128), *range(512, 4096, 256), *_doubling(4096, 16, largest)]
    return [size for size in sizes if size < largest] + [largest]


def _doubling(start: int, count: int, end: int) -> list[int]:
    """From `start` to before `end`, `count` sizes in each doubling: few, however large `end` is."""
    sizes: list[int] = []
    while start < end:
        sizes += range(start, 2 * start, start // count)
        start *= 2
    return sizes


def num_padded_rows(num_tokens: int, row_sizes: list[int]) -> int:
    """Rows of a captured step of `num_tokens`: one of the batch sizes."""
    return next((size for size in row_sizes if size >= num_tokens), row_sizes[-1])


def largest_prefill(options: Any, config: ExecutorConfig) -> int:
    """Tokens of the largest step with prefill that is captured; 0: none is."""
    if not (config.cuda_graphs and config.prefill_graphs):
        return 0
    asked = getattr(options, "prefill_graph_tokens", DEFAULT_PREFILL_TOKENS)
    return min(asked, config.max_num_batched_tokens)


def describe(options: Any, config: ExecutorConfig) -> list[dict[str, Any]]:
    """What a run captures, for `nanofw explain`; see docs/plugins/capabilities.md."""
    if not config.cuda_graphs:
        return []
    rows = buckets(config.max_num_seqs)
    captured = [
        {"graphs": "decode, the model", "count": len(rows), "sizes": f"{_some(rows)} rows"},
        {
            "graphs": "sampling, per variant of the sampler",
            "count": len(rows),
            "sizes": f"{_some(rows)} rows",
        },
    ]
    tokens = token_buckets(largest_prefill(options, config))
    what = "prefill and mixed steps, the model"
    captured.append({"graphs": what, "count": len(tokens), "sizes": _tokens(tokens, config)})
    return captured


def _tokens(sizes: list[int], config: ExecutorConfig) -> str:
    if sizes:
        return f"{_some(sizes)} tokens, up to {MAX_CHUNKS} prompts"
    if config.prefill_graphs:
        return "executor.prefill_graph_tokens is 0"
    return "prefill_graphs is off"


def _some(sizes: list[int]) -> str:
    shown = [str(size) for size in sizes]
    if len(shown) > 6:
        shown = [*shown[:4], "...", shown[-1]]
    return ", ".join(shown)
