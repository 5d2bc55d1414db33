"""Steps that are carried out before a run: to see what memory they take, and what they launch."""

from __future__ import annotations

import numpy as np
import torch

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.communicator import Communicator
from nanofw.contracts.executor import ExecutorConfig
from nanofw.contracts.plan import NewRow, StepPlan
from nanofw.contracts.requests import SamplingParams
from nanofw.runtime.graphs.capture import EagerCapturer
from nanofw.runtime.runner import Runner


def activation_peak(runner: Runner, config: ExecutorConfig) -> int:
    """Bytes of CUDA memory that the largest step takes beyond what is allocated before it.

    The step has as many tokens and rows as the configuration allows, and every row samples with
    top-p. It runs over a pool of just the blocks that it needs, which is given back.
    """
    device = runner.device
    plan = largest_plan(config)
    torch.cuda.synchronize(device)
    runner.allocate(_num_blocks(plan))
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    _carry_out(runner, plan)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    runner.apply(empty_plan(plan.rows))
    runner.pool = []
    torch.cuda.empty_cache()
    return peak


def carry_out_steps(
    config: ExecutorConfig, communicator: Communicator, *, prefill_tokens: int
) -> None:
    """Carry out what the start and the run carry out, each kind of step once.

    Args:
        prefill_tokens: of the largest step with prefill that is captured.
    """
    runner = Runner(config, communicator)
    plan = largest_plan(config)
    runner.allocate(_num_blocks(plan))
    _carry_out(runner, plan)
    if config.cuda_graphs:
        runner.capture(EagerCapturer(is_dry=True), prefill_tokens)
        return
    runner.apply(empty_plan(plan.rows))
    whole = largest_plan(config, SamplingParams())
    _carry_out(runner, whole)
    num_rows = 1
    while num_rows < len(whole.rows):  # products of few rows have kernels of their own
        _carry_out(runner, _decode_plan(whole, num_rows))
        num_rows *= 2
    _carry_out(runner, _decode_plan(whole, len(whole.rows)))


def _carry_out(runner: Runner, plan: StepPlan) -> None:
    runner.apply(plan)
    runner.step_sampler.sample(*runner.forward(plan), None, plan.host_rows)


def _num_blocks(plan: StepPlan) -> int:
    """Blocks of a pool that has those of the plan's new rows."""
    return 1 + max(int(new.block_ids.max()) for new in plan.new)


def largest_plan(config: ExecutorConfig, sampling: SamplingParams | None = None) -> StepPlan:
    """Prompts that fill a step: as many rows as may run, of equal length.

    Args:
        sampling: of every row; None: top-p.
    """
    num_rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    length = min(config.max_model_len, config.max_num_batched_tokens // num_rows)
    blocks = -(-length // config.block_size)
    sampling = sampling or SamplingParams(top_p=0.9)
    rows: IntArray = np.arange(num_rows, dtype=np.int32)
    new = [
        NewRow(
            row=int(row),
            request_id=f"profile-{row}",
            token_ids=np.zeros(length, np.int32),
            num_prompt_tokens=length,
            block_ids=np.arange(row * blocks, (row + 1) * blocks, dtype=np.int32),
            sampling=sampling,
            seed=0,
        )
        for row in rows
    ]
    return StepPlan(
        step=0,
        rows=rows,
        num_tokens=np.full(num_rows, length, np.int32),
        starts=np.zeros(num_rows, np.int32),
        samples=np.ones(num_rows, np.bool_),
        num_decodes=0,
        new=new,
    )


def empty_plan(removed: IntArray) -> StepPlan:
    """A step in which rows are removed and nothing is computed."""
    return StepPlan(step=0, removed=removed)


def _decode_plan(before: StepPlan, n: int) -> StepPlan:
    """A step in which the first n rows of `before`, whole prompts, decode one token each.

    Its blocks are not named: nothing looks at them.
    """
    return StepPlan(
        step=before.step + 1,
        rows=before.rows[:n],
        num_tokens=np.ones(n, np.int32),
        starts=before.num_tokens[:n] - 1,
        samples=np.ones(n, np.bool_),
        num_decodes=n,
    )
