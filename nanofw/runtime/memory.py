"""How many KV blocks fit: a pure calculation, and where its numbers come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from nanofw.contracts.executor import ExecutorConfig
from nanofw.contracts.model_spec import ModelSpec
from nanofw.errors import ConfigError

GIB = 1 << 30
_CPU_SHARE = 0.5  # of the memory that is free: the machine belongs to others too


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Bytes of a device, after the weights were loaded.

    Attributes:
        total: what it has.
        free: what is not in use now.
        own: what this process uses, weights included.
        weights: what the weights take.
        activation_peak: what the largest step takes beyond `own`.
    """

    total: int
    free: int
    own: int
    weights: int
    activation_peak: int

    @property
    def others(self) -> int:
        """What other processes use."""
        return max(0, self.total - self.free - self.own)


def num_kv_blocks(memory: DeviceMemory, utilization: float, bytes_per_block: int) -> int:
    """Blocks in what weights and activations leave of this process's share.

    The share is `utilization` of the whole device, but no more than others leave: their use
    narrows what there is, it is not taken off the share itself.

    Raises:
        ConfigError: not one block fits.
    """
    share = min(int(memory.total * utilization), memory.total - memory.others)
    left = share - memory.own - memory.activation_peak
    if left < bytes_per_block:
        raise ConfigError(
            "no memory is left for KV: "
            f"of {gib(memory.total)} in all, other processes use {gib(memory.others)}; this "
            f"run's share is {gib(share)} (memory_utilization {utilization:g}): weights "
            f"take {gib(memory.weights)}, other data {gib(memory.own - memory.weights)} and the "
            f"largest step {gib(memory.activation_peak)}; one block takes "
            f"{bytes_per_block:,} bytes. Raise engine.memory_utilization, lower "
            "engine.max_num_batched_tokens or engine.max_num_seqs, or choose a smaller model or "
            "dtype",
            key="engine.memory_utilization",
        )
    return left // bytes_per_block


def num_cpu_blocks(
    available: int, num_wanted: int, activation_peak: int, bytes_per_block: int
) -> int:
    """Blocks in main memory: what the rows can use, within half of what is free.

    Args:
        available: bytes that are free, after the weights were loaded.
        num_wanted: blocks that all rows at their full length take.

    Raises:
        ConfigError: not one block fits.
    """
    left = int(available * _CPU_SHARE) - activation_peak
    if left < bytes_per_block:
        raise ConfigError(
            f"no memory is left for KV: {gib(available)} of main memory are free; "
            f"nanofw takes at most half; the largest step takes {gib(activation_peak)}, and one "
            f"block {bytes_per_block:,} bytes. Lower engine.max_num_batched_tokens or "
            "engine.max_num_seqs, choose a smaller model, or set kv_allocator.num_blocks yourself",
            key="kv_allocator.num_blocks",
        )
    return min(num_wanted, left // bytes_per_block)


def check_num_blocks(num_blocks: int, block_size: int, bytes_per_block: int, free: int) -> int:
    """The configured number. Raises ConfigError: below 1, or more than fit into `free` bytes."""
    if num_blocks < 1:
        raise ConfigError(
            f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing. Set at least 1 "
            "(a request needs its length divided by the block size, rounded up), use a smaller "
            "kv_allocator.block_size, or leave it at auto to take what fits",
            key="kv_allocator.num_blocks",
        )
    if num_blocks * bytes_per_block > free:
        raise ConfigError(
            f"{num_blocks:,} blocks of {block_size:,} tokens take "
            f"{gib(num_blocks * bytes_per_block)}, and {gib(free)} are free: at most "
            f"{free // bytes_per_block:,} fit. Lower it or kv_allocator.block_size, choose a "
            "smaller model or dtype, or leave it at auto to take what fits",
            key="kv_allocator.num_blocks",
        )
    return num_blocks


def activation_estimate(spec: ModelSpec, num_tokens: int, num_rows: int) -> int:
    """Bytes that the largest step takes on a CPU, from shapes: nothing is run.

    Counts what is alive at once in a layer (residual, normed input, fused projections, products)
    and the logits with two copies.
    """
    attention = (2 * spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    layer = 4 * spec.hidden_size + max(2 * attention, 3 * spec.intermediate_size)
    return num_tokens * layer * spec.bytes_per_element + 3 * num_rows * spec.vocab_size * 4


def graph_estimate(config: ExecutorConfig, prefill_tokens: int) -> int:
    """Bytes that captured steps keep: they share what the largest of them takes.

    Args:
        prefill_tokens: of the largest step with prefill that is captured.
    """
    num_tokens = max(config.max_num_seqs, prefill_tokens)
    return activation_estimate(config.spec, num_tokens, config.max_num_seqs)


def available_main_memory() -> int:
    """Bytes that this process may still take, control groups included."""
    candidates = [_meminfo_available(), _cgroup_available()]
    known = [value for value in candidates if value is not None]
    return min(known) if known else 4 * GIB


def free_memory(device: torch.device) -> int:
    """Bytes that a pool on the device could take now."""
    if device.type != "cuda":
        return available_main_memory()
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def cuda_memory(device: torch.device, weights: int, activation_peak: int) -> DeviceMemory:
    """What CUDA and PyTorch's allocator say now."""
    free, total = torch.cuda.mem_get_info(device)
    own = torch.cuda.memory_reserved(device)
    return DeviceMemory(
        total=total, free=free, own=own, weights=weights, activation_peak=activation_peak
    )


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return _sysconf_available()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None


def _sysconf_available() -> int | None:
    """Half of the machine, where the system does not say what is free."""
    import os

    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError, AttributeError):
        return None


def _cgroup_available() -> int | None:
    """What the control group of a container still allows (version 2, then 1)."""
    groups = (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    )
    for limit, used in groups:
        try:
            return max(0, int(Path(limit).read_text("ascii")) - int(Path(used).read_text("ascii")))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return None


def gib(num_bytes: int) -> str:
    """`12.50 GiB`."""
    return f"{num_bytes / GIB:.2f} GiB"
