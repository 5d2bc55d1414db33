"""Engines whose model says what a test wants, through the executor's seam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nanofw.contracts.clock import VirtualClock
from nanofw.contracts.executor import Executor
from nanofw.contracts.kv_allocator import AllocatorConfig
from nanofw.contracts.limits import Limits
from nanofw.contracts.outputs import TokenLogprobs
from nanofw.contracts.plan import Capacity, HostMasks, StepPlan, StepResult
from nanofw.contracts.requests import Request
from nanofw.engine.engine import Engine
from nanofw.engine.request_state import SAMPLE_SEPARATOR
from nanofw.engine.scheduler import Scheduler
from nanofw.errors import ExecutorError
from nanofw.kv_allocators.paged import PagedAllocator
from nanofw.schedulers.fcfs import Fcfs, FcfsOptions
from nanofw.testing.sim_engine import SPEC as SIMULATED_SPEC

BLOCK_SIZE = 4
SPEC = replace(
    SIMULATED_SPEC,
    architecture="ScriptedForCausalLM",
    path="script",
    vocab_size=300,
    max_model_len=512,
    eos_token_ids=(299,),
)
SECONDS_PER_STEP = 0.01


class ScriptedExecutor(Executor):
    """Says what the scripts of the requests say, then `default` for ever; fails at a step.

    The script of a request's sample k > 0 is under `ID#k`. The log probability of a token t is
    -t / 100 where it is asked for, and the most likely tokens are 0, 1, 2, ...
    """

    def __init__(
        self,
        scripts: Mapping[str, Sequence[int]],
        clock: VirtualClock,
        *,
        default: int = ord("."),
        max_in_flight: int = 2,
        fail_at: int | None = None,
    ) -> None:
        self._scripts, self._clock, self._default = scripts, clock, default
        self._max_in_flight, self._fail_at = max_in_flight, fail_at
        self._rows: dict[int, tuple[str, int]] = {}
        self._num_tops: dict[int, int | None] = {}
        self._pending: list[StepResult] = []
        self.closed = False

    def capacity(self) -> Capacity:
        return Capacity(num_blocks=256, block_size=BLOCK_SIZE, max_in_flight=self._max_in_flight)

    def check(self, request: Request) -> None:
        """Everything can be said."""

    def submit(self, plan: StepPlan) -> None:
        for new in plan.new:
            request_id = new.request_id.partition(SAMPLE_SEPARATOR)[0]
            name = f"{request_id}#{new.sample_index}" if new.sample_index else request_id
            self._rows[new.row] = (name, new.num_prompt_tokens)
            self._num_tops[new.row] = new.sampling.logprobs
        ends = (plan.starts + plan.num_tokens)[plan.samples]
        token_ids = [
            self._token(row, end) for row, end in zip(plan.sampled_rows, ends, strict=True)
        ]
        result = StepResult(
            step=plan.step,
            token_ids=np.asarray(token_ids, np.int32),
            logprobs={
                row: logprobs_of(token_id, num_tops)
                for row, token_id in zip(plan.sampled_rows.tolist(), token_ids, strict=True)
                if (num_tops := self._num_tops[row]) is not None
            },
        )
        self._pending.append(result)

    def _token(self, row: int, end: int) -> int:
        request_id, num_prompt = self._rows[int(row)]
        script, place = self._scripts.get(request_id, ()), int(end) - num_prompt
        return script[place] if place < len(script) else self._default

    def provide(self, masks: HostMasks) -> None:
        raise AssertionError("no host rows here")

    def collect(self) -> StepResult:
        result = self._pending.pop(0)
        if result.step == self._fail_at:
            raise ExecutorError("the device fell off the bus")
        self._clock.wait_until(self._clock.now() + SECONDS_PER_STEP)
        return result

    def close(self) -> None:
        self.closed = True


def logprobs_of(token_id: int, num_tops: int) -> TokenLogprobs:
    """One position with the token and the `num_tops` most likely ones."""
    tops = np.arange(num_tops, dtype=np.int32)[None]
    return TokenLogprobs(
        np.array([-token_id / 100], np.float32),
        np.array([token_id + 1], np.int32),
        tops,
        (-tops / 100).astype(np.float32),
    )


def scripted_engine(
    scripts: Mapping[str, Sequence[int]],
    *,
    overlap: bool = False,
    fail_at: int | None = None,
    default: int = ord("."),
    eos: tuple[int, ...] = SPEC.eos_token_ids,
) -> Engine:
    """An engine over `ScriptedExecutor`, with a virtual clock."""
    clock = VirtualClock()
    executor = ScriptedExecutor(scripts, clock, default=default, fail_at=fail_at)
    limits = Limits(
        max_num_seqs=8,
        max_num_batched_tokens=256,
        max_model_len=SPEC.max_model_len,
        num_blocks=256,
        block_size=BLOCK_SIZE,
    )
    allocator = PagedAllocator(
        None,
        AllocatorConfig(
            num_blocks=limits.num_blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=limits.max_rows,
            max_blocks_per_row=SPEC.max_model_len // BLOCK_SIZE + 1,
        ),
    )
    spec = replace(SPEC, eos_token_ids=eos)
    scheduler = Scheduler(limits, Fcfs(FcfsOptions()), allocator, eos)
    return Engine(spec=spec, scheduler=scheduler, executor=executor, clock=clock, overlap=overlap)
