"""Which sizes of steps are captured. Plain arithmetic: also for `nanofw explain`."""

from __future__ import annotations

from nanofw.contracts.executor import ExecutorConfig
from nanofw.contracts.model_spec import ModelSpec

FEWEST_CHUNKS = 16
TOKENS_PER_CHUNK = 64
TELLING_ROWS = 32

FEWEST_PREFILL_TOKENS, MOST_PREFILL_TOKENS = 512, 16_384
LAUNCH_FLOPS = 0.7e12
"""What an H200 computes in the 1.1 ms in which a slow host launches the kernels of a layer."""


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
    2048 on steps that double with the size.
    """
    if largest < 1:
        return []
    sizes = [64, *range(128, 512, 128), *range(512, 2048, 256), *_doubling(2048, 8, largest)]
    return [size for size in sizes if size < largest] + [largest]


def _doubling(start: int, count: int, end: int) -> list[int]:
    """From `start` to before `end`, `count` sizes in each doubling: few, however large `end` is."""
    sizes: list[int] = []
    while start < end:
        sizes += range(start, 2 * start, start // count)
        start *= 2
    return sizes


def max_chunks(num_tokens: int) -> int:
    """Prompts, or parts of them, in a captured step; decoding rows beside them are not counted.

    A kernel has a program for each that may be there, and those of absent ones cost time.
    """
    return max(FEWEST_CHUNKS, num_tokens // TOKENS_PER_CHUNK)


def telling_rows(row_sizes: list[int]) -> list[int]:
    """Of the sizes of decode steps, those that together launch every kernel that all launch.

    Kernels differ by size up to 16 rows; beyond, Triton tells multiples of 16 from other numbers.
    """
    return [size for size in row_sizes if size <= TELLING_ROWS or size == row_sizes[-1]]


def telling_sizes(sizes: list[int], row_sizes: list[int]) -> list[int]:
    """Of the sizes of steps with prefill, those that together launch every kernel that all launch.

    What is launched depends on how many rows a step has, not on how many tokens.
    """
    first_of = {num_padded_rows(size, row_sizes): size for size in reversed(sizes)}
    return sorted({*first_of.values(), sizes[-1]})


def num_padded_rows(num_tokens: int, row_sizes: list[int]) -> int:
    """Rows of a captured step of `num_tokens`: one of the batch sizes."""
    return next((size for size in row_sizes if size >= num_tokens), row_sizes[-1])


def largest_prefill(options: object, config: ExecutorConfig) -> int:
    """Tokens of the largest step with prefill that is captured; 0: none is."""
    if not (config.cuda_graphs and config.prefill_graphs):
        return 0
    asked = getattr(options, "prefill_graph_tokens", None)
    if asked is None:
        asked = launch_bound_tokens(config.spec)
    return min(asked, config.max_num_batched_tokens)


def launch_bound_tokens(spec: ModelSpec) -> int:
    """Tokens of a step up to which the kernels of a layer take less time than their launches.

    The larger the layers, the fewer: with the shape of Qwen3-0.6B 16384, with that of 8B 1536.
    """
    flops_per_token = 2 * spec.num_active_parameters / spec.num_layers
    tokens = int(LAUNCH_FLOPS / max(1.0, flops_per_token))
    tokens = min(max(tokens, FEWEST_PREFILL_TOKENS), MOST_PREFILL_TOKENS)
    return next(size for size in token_buckets(MOST_PREFILL_TOKENS) if size >= tokens)


def describe(options: object, config: ExecutorConfig) -> list[dict[str, object]]:
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
        return f"{_some(sizes)} tokens, up to {max_chunks(sizes[-1])} prompts"
    if config.prefill_graphs:
        return "executor.prefill_graph_tokens is 0"
    return "prefill_graphs is off"


def _some(sizes: list[int]) -> str:
    shown = [str(size) for size in sizes]
    if len(shown) > 6:
        shown = [*shown[:4], "...", shown[-1]]
    return ", ".join(shown)
