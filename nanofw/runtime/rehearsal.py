"""What a run launches, found on tensors without content, and compiled while weights are loaded.

The components are built a second time on the device `meta`, and every kind of step that a run
profiles and captures is carried out there (`nanofw.kernels.aot`). Components must claim
the capability `compile_ahead`; where one does not, kernels are compiled when they are launched
first.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from nanofw.contracts.communicator import Communicator, SingleRank
from nanofw.contracts.executor import ExecutorConfig
from nanofw.contracts.plan import StepPlan
from nanofw.contracts.requests import SamplingParams
from nanofw.kernels.dispatch import has_triton
from nanofw.runtime import profiling
from nanofw.runtime.graphs.capture import Run
from nanofw.runtime.meta_communicator import MetaCommunicator
from nanofw.runtime.runner import Runner

if TYPE_CHECKING:
    from nanofw.kernels.aot.compile_ahead import AheadCompiler

CLAIM = "compile_ahead"
_KINDS = ("model", "attention_backend", "sampler")

logger = logging.getLogger(__name__)


def begin(
    config: ExecutorConfig, communicator: Communicator, prefill_tokens: int, threads: int | None
) -> AheadCompiler | None:
    """Start to compile what a run on an NVIDIA GPU will launch; None where nothing can be.

    Args:
        prefill_tokens: of the largest step with prefill that will be captured.
        threads: that compile at once; 0: none, nothing is compiled ahead; None: as many as suit.
    """
    device = torch.device(config.device)
    if device.type != "cuda" or threads == 0 or not has_triton():
        return None
    silent = [kind for kind in _KINDS if not config.components[kind].plugin.capabilities.get(CLAIM)]
    if silent:
        logger.info("kernels are compiled at first launch: no %s by %s", CLAIM, ", ".join(silent))
        return None
    from nanofw.kernels.aot import compile_ahead

    if not compile_ahead.is_possible():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    count = threads or compile_ahead.default_threads(communicator.size)
    compiler = compile_ahead.AheadCompiler(index, count)
    compiler.rehearse(lambda: rehearse(config, communicator, prefill_tokens))
    dtype = getattr(torch, config.spec.dtype)
    compiler.beside(lambda: _first_product(dtype, torch.device("cuda", index)))
    return compiler


def rehearse(config: ExecutorConfig, communicator: Communicator, prefill_tokens: int) -> None:
    """Carry out on `meta` what the start and the run carry out, each kind of step once."""
    components = {**config.components, "logits_processor": ()}
    config = replace(config, device="meta", components=components)
    runner = Runner(config, _on_meta(communicator))
    plan = profiling.largest_plan(config)
    runner.allocate(1 + max(int(new.block_ids.max()) for new in plan.new))
    _carry_out(runner, plan)
    if config.cuda_graphs:
        runner.capture(_Once(), prefill_tokens)
        return
    runner.apply(profiling.empty_plan(plan.rows))
    whole = profiling.largest_plan(config, SamplingParams())
    _carry_out(runner, whole)
    num_rows = 1
    while num_rows < len(whole.rows):  # products of few rows have kernels of their own
        _carry_out(runner, _decode_plan(whole, num_rows))
        num_rows *= 2
    _carry_out(runner, _decode_plan(whole, len(whole.rows)))


@torch.inference_mode()
def _first_product(dtype: torch.dtype, device: torch.device) -> None:
    """A product of matrices, so that cuBLAS is loaded before the first step needs it."""
    ones = torch.ones(16, 16, dtype=dtype, device=device)
    torch.mm(ones, ones)


class _Once:
    """A `Recorder` that runs what it records, for what that launches."""

    def record(self, run: Run) -> Run:
        run()
        return run


def _carry_out(runner: Runner, plan: StepPlan) -> None:
    runner.apply(plan)
    runner.sample(*runner.forward(plan), None, plan.host_rows)


def _decode_plan(before: StepPlan, n: int) -> StepPlan:
    """A step in which the first n rows of `before`, whole prompts, decode one token each.

    Its blocks are not named: nobody looks at them.
    """
    return StepPlan(
        step=before.step + 1,
        rows=before.rows[:n],
        num_tokens=np.ones(n, np.int32),
        starts=before.num_tokens[:n] - 1,
        samples=np.ones(n, np.bool_),
        num_decodes=n,
    )


def _on_meta(communicator: Communicator) -> Communicator:
    on_meta = getattr(communicator, "on_meta", None)
    if on_meta is not None:
        return on_meta()
    if communicator.size == 1:
        return SingleRank()
    return MetaCommunicator(communicator.rank, communicator.size)
