"""Block shapes, warps and pipeline depths of the attention kernels, by head size and dtype.

The tables hold what won the sweep of `benchmarks/gpu/kernels.py` on an H200; other cards take
the same entries. Sizes not listed fall back to the next larger head size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How the decode kernel is built.

    Attributes:
        tile: keys in a tile.
        programs_per_multiprocessor: how many programs share one; they are all resident.
        tma: load tiles by the copy engine where pages are at least a tile long.
        max_registers: bound per thread, so that all programs fit; None: the compiler's choice.
        combined, most_parts: how many elements, and parts of a split row, are read at once to be
            combined.
    """

    tile: int
    num_warps: int
    num_stages: int
    programs_per_multiprocessor: int
    tma: bool = False
    max_registers: int | None = None
    combined: int = 2048
    most_parts: int = 128


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """How the prefill kernel is built.

    Attributes:
        rows: lines of a query tile: tokens times the query heads of one KV head.
        tile: keys in a tile.
        tma: as in `DecodeConfig`.
    """

    rows: int
    tile: int
    num_warps: int
    num_stages: int
    tma: bool = False


# (head size up to, bytes per element): configuration
DECODE_CONFIGS: dict[tuple[int, int], DecodeConfig] = {
    (64, 2): DecodeConfig(128, 4, 3, 3, max_registers=168),
    (128, 2): DecodeConfig(64, 4, 3, 3, max_registers=168),
    (256, 2): DecodeConfig(32, 4, 3, 3, max_registers=168),
    (64, 4): DecodeConfig(32, 4, 2, 2),
    (128, 4): DecodeConfig(32, 4, 2, 2),
    (256, 4): DecodeConfig(16, 4, 2, 2),
}

# A few rows are each split over many programs: fewer of them, and wide reads of their parts, took
# up to half the time off one to eight rows of 400 to 30,000 keys. The tiles are those of above.
FEW_ROWS = 16
FEW_ROWS_DECODE_CONFIGS: dict[tuple[int, int], DecodeConfig] = {
    (128, 2): DecodeConfig(64, 4, 3, 2, max_registers=248, combined=8192, most_parts=16),
}

PREFILL_CONFIGS: dict[tuple[int, int], PrefillConfig] = {
    (64, 2): PrefillConfig(128, 64, 4, 3),
    (128, 2): PrefillConfig(128, 64, 8, 3),
    (256, 2): PrefillConfig(64, 32, 4, 2),
    (64, 4): PrefillConfig(32, 32, 4, 2),
    (128, 4): PrefillConfig(16, 32, 4, 2),
    (256, 4): PrefillConfig(16, 16, 4, 1),
}


def _size_class(head_dim: int) -> int:
    return next((size for size in (64, 128, 256) if head_dim <= size), 256)


def decode_config(head_dim: int, bytes_per_element: int, group: int = 1) -> DecodeConfig:
    """The decode kernel's configuration; `group`: query heads of one KV head."""
    return _of_group(DECODE_CONFIGS[_key(head_dim, bytes_per_element)], group)


def few_rows_decode_config(head_dim: int, bytes_per_element: int, group: int = 1) -> DecodeConfig:
    """The same for up to `FEW_ROWS` rows: never more programs, and tiles of the same size."""
    key = _key(head_dim, bytes_per_element)
    return _of_group(FEW_ROWS_DECODE_CONFIGS.get(key, DECODE_CONFIGS[key]), group)


def _key(head_dim: int, bytes_per_element: int) -> tuple[int, int]:
    return _size_class(head_dim), min(bytes_per_element, 4)


def _of_group(config: DecodeConfig, group: int) -> DecodeConfig:
    return replace(config, num_stages=min(config.num_stages, 2)) if group > 16 else config


def prefill_config(head_dim: int, bytes_per_element: int, group: int = 1) -> PrefillConfig:
    """The prefill kernel's configuration; a query tile holds at least one token of a group."""
    config = PREFILL_CONFIGS[_key(head_dim, bytes_per_element)]
    return replace(config, rows=max(config.rows, 1 << (group - 1).bit_length()))
