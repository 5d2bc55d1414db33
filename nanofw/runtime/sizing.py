"""How many blocks the KV pool of a run has."""

from __future__ import annotations

import sys

import torch

from nanofw.contracts.communicator import Communicator
from nanofw.contracts.executor import ExecutorConfig
from nanofw.runtime import memory
from nanofw.runtime.profiling import activation_peak
from nanofw.runtime.runner import Runner


def num_blocks(
    runner: Runner, config: ExecutorConfig, communicator: Communicator, graph_tokens: int
) -> int:
    """As configured, or what memory allows on the rank that has the least."""
    if config.num_blocks is not None:
        return memory.check_num_blocks(
            config.num_blocks,
            config.block_size,
            runner.bytes_per_block,
            memory.free_memory(runner.device),
        )
    _least(0, communicator, runner.device)  # all have loaded their weights
    fitting = _num_fitting_blocks(runner, config, communicator, graph_tokens)
    return _least(fitting, communicator, runner.device)


def _num_fitting_blocks(
    runner: Runner, config: ExecutorConfig, communicator: Communicator, graph_tokens: int
) -> int:
    bytes_per_block = runner.bytes_per_block
    if runner.device.type == "cuda":
        weights = torch.cuda.memory_allocated(runner.device)
        peak = activation_peak(runner, config) + runner.plugins.deferred_bytes
        if config.cuda_graphs:  # they keep what their largest step takes
            peak += memory.graph_estimate(config, graph_tokens)
        facts = memory.cuda_memory(runner.device, weights, peak)
        return memory.num_kv_blocks(facts, config.memory_utilization, bytes_per_block)
    blocks_per_row = -(-config.max_model_len // config.block_size)
    num_tokens = min(config.max_num_batched_tokens, runner.max_micro_batch_tokens or sys.maxsize)
    peak = memory.activation_estimate(config.spec, num_tokens, config.max_num_seqs)
    return memory.num_cpu_blocks(
        memory.available_main_memory() // communicator.size,
        config.max_num_seqs * blocks_per_row,
        peak,
        bytes_per_block,
    )


def _least(number: int, communicator: Communicator, device: torch.device) -> int:
    """The smallest of the ranks' numbers, known once all have theirs."""
    return int(communicator.all_gather(torch.tensor([number], device=device)).min())
