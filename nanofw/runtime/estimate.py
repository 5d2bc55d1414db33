"""What a run will take of a device's memory, before anything is loaded."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from nanofw.checkpoints.weight_files import HEAD, find_weight_files, read_shapes
from nanofw.contracts.executor import ExecutorConfig
from nanofw.contracts.model_spec import ModelSpec, heads_of_rank
from nanofw.errors import ConfigError, ModelError
from nanofw.runtime import memory
from nanofw.runtime.graphs.sizes import largest_prefill
from nanofw.runtime.runner import MAX_CPU_TOKENS


def estimate(options: object, config: ExecutorConfig) -> dict[str, object]:
    """Bytes of each rank, and the blocks that fit beside them; see docs/plugins/capabilities.md.

    The executor measures the largest step on a GPU; here it is taken from shapes.
    """
    num_ranks = config.tensor_parallel_size
    _, num_kv_heads = heads_of_rank(config.spec.num_heads, config.spec.num_kv_heads, num_ranks)
    per_token = config.spec.kv_bytes_per_token * num_kv_heads // config.spec.num_kv_heads
    per_block = per_token * config.block_size
    weights = weight_bytes(config.spec) // num_ranks
    is_cpu = torch.device(config.device).type == "cpu"
    num_tokens = min(config.max_num_batched_tokens, MAX_CPU_TOKENS if is_cpu else sys.maxsize)
    activations = memory.activation_estimate(config.spec, num_tokens, config.max_num_seqs)
    found: dict[str, object] = {"weight_bytes": weights, "activation_bytes": activations}
    if config.cuda_graphs and not is_cpu:
        graphs = memory.graph_estimate(config, largest_prefill(options, config))
        found["graph_bytes"] = graphs
        activations += graphs
    found["kv_bytes_per_block"] = per_block
    count = _cpu_blocks if is_cpu else _gpu_blocks
    return found | _blocks(
        config, per_block, lambda: count(config, weights, activations, per_block)
    )


def weight_bytes(spec: ModelSpec) -> int:
    """Bytes of all weights: as the model states, in the type of the run from the files' headers,
    else from shapes."""
    if spec.random_weights:
        return spec.weight_bytes
    if spec.layer_bytes is not None:  # in the files they may be packed in any way
        return spec.weight_bytes
    try:
        found = find_weight_files(Path(spec.path))
        counts = [_num_elements(found.folder / file, names, spec)
                  for file, names in found.files.items()]  # fmt: skip
    except (ModelError, ValueError, KeyError, TypeError):
        counts = [spec.num_parameters]
    return sum(counts) * spec.bytes_per_element


def _num_elements(path: Path, names: tuple[str, ...] | None, spec: ModelSpec) -> int:
    """Elements of the tensors that are read from a file of safetensors."""
    shapes = read_shapes(path)
    wanted = set(shapes) if names is None else set(names).intersection(shapes)
    if spec.tie_word_embeddings:
        wanted.discard(HEAD)
    return sum(math.prod(shapes[name]) for name in wanted)


def _blocks(
    config: ExecutorConfig, bytes_per_block: int, count: Callable[[], tuple[int, int]]
) -> dict[str, object]:
    """Memory that is free now, blocks of the pool, and a sentence where they do not fit."""
    try:
        free, fitting = count()
    except ConfigError as error:
        return {"num_blocks": config.num_blocks or 0, "problem": str(error)}
    num_blocks = config.num_blocks or fitting
    found: dict[str, object] = {
        "free_bytes": free,
        "num_blocks": num_blocks,
        "num_kv_tokens": num_blocks * config.block_size,
        "kv_bytes": num_blocks * bytes_per_block,
    }
    if num_blocks > fitting:
        found["problem"] = f"of {num_blocks:,} blocks, as configured, {fitting:,} fit now"
    return found


def _cpu_blocks(
    config: ExecutorConfig, weights: int, activations: int, bytes_per_block: int
) -> tuple[int, int]:
    free = memory.available_main_memory()
    wanted = config.num_blocks or config.max_num_seqs * -(
        -config.max_model_len // config.block_size
    )
    return free, memory.num_cpu_blocks(free - weights, wanted, activations, bytes_per_block)


def _gpu_blocks(
    config: ExecutorConfig, weights: int, activations: int, bytes_per_block: int
) -> tuple[int, int]:
    free, total = torch.cuda.mem_get_info(torch.device(config.device))
    facts = memory.DeviceMemory(
        total=total, free=free - weights, own=weights, weights=weights,
        activation_peak=activations,
    )  # fmt: skip
    share = config.memory_utilization
    return free, memory.num_kv_blocks(facts, share, bytes_per_block)
