"""Executor `sim`: takes the plans of a real run and answers after a modelled time.

The device works on one step after the other. `submit` computes when it will be done, given
that it is busy until then; `collect` moves the clock there. Nothing is known earlier than on
hardware: with two steps in flight, tokens are seen one step late.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from nanofw.contracts.arrays import BoolArray, IntArray
from nanofw.contracts.cost_model import CostModel, CostModelConfig
from nanofw.contracts.executor import Executor, ExecutorConfig
from nanofw.contracts.plan import Capacity, HostMasks, StepPlan, StepResult
from nanofw.contracts.requests import Request
from nanofw.contracts.splitmix64 import HashArray, mix_array
from nanofw.contracts.stride import Stride
from nanofw.errors import ConfigError, ExecutorError
from nanofw.sim.checked import CheckedCostModel
from nanofw.sim.constant import ConstantCost, ConstantOptions
from nanofw.sim.context import ContextPool
from nanofw.sim.options import SimOptions
from nanofw.sim.stride_times import StrideTimes, is_moved_only
from nanofw.sim.tokens import (
    STEP,
    TokenRule,
    chance,
    position_hash,
    position_number,
    row_key,
)

_MAX_POOL_TOKENS = (1 << 31) - 1
"""Slots are numbered by int32."""
_NO_HASHES: HashArray = np.empty(0, np.uint64)


@dataclass(slots=True)
class _SubmittedStep:
    """A step in flight. `hashes` are kept only for rows that wait for masks."""

    step: int
    rows: IntArray
    token_ids: IntArray
    failed: BoolArray | None
    hashes: HashArray
    host_rows: IntArray
    seconds: float
    done: float
    waits_for_masks: bool


class SimExecutor(Executor):
    """A device in numbers. Constructed as `SimExecutor(options, config)`."""

    def __init__(self, options: SimOptions, config: ExecutorConfig) -> None:
        self._options, self._clock = options, config.clock
        self._cost_model = model = _cost_model(options, config)
        self._host = model.occupies_host
        self._capacity = _capacity(options, config, self._cost_model)
        self._rule = TokenRule(
            config.spec.num_sampled_ids, config.spec.eos_token_ids, options.eos_probability
        )
        # Whether a token is an end token has to be chance; which of the others it is, need not.
        self._number_of = position_hash if options.eos_probability else position_number
        self._keys: HashArray = np.zeros(config.max_num_seqs, np.uint64)
        self._broken: BoolArray = np.zeros(config.max_num_seqs, np.bool_)
        self._pending: deque[_SubmittedStep] = deque()
        self._busy_until = config.clock.now()
        self._next_step = 0
        self._closed = False
        self._pool = ContextPool(config, self._capacity) if options.check_context else None
        self._takes_strides = (
            self._cost_model.knows_steady_steps
            and is_moved_only(config.clock)
            and not options.check_context
            and not options.failure_probability
        )

    def capacity(self) -> Capacity:
        """What it holds: the pool asked for, or what the cost model's device has room for, or
        room for every row at its full length."""
        return self._capacity

    def check(self, request: Request) -> None:
        """Every valid request can be simulated, except those for hidden states."""
        if request.pooling is not None:
            raise ValueError("a simulated machine computes no hidden states: it has no embeddings")

    def submit(self, plan: StepPlan) -> None:
        """Sample the tokens and book the device; the clock moves on by what the host takes."""
        self._check_order(plan)
        for new in plan.new:
            if not 0 <= new.row < len(self._keys):
                raise ExecutorError(f"plan {plan.step}: new row {new.row} is out of range")
            self._keys[new.row] = row_key(new.seed, new.sample_index)
            self._broken[new.row] = False
        rows, ends = plan.sampled_rows, plan.starts + plan.num_tokens
        if len(rows) < len(ends):
            ends = ends[plan.samples]
        failed = self._failures(rows, ends)
        hashes = self._number_of(self._keys[rows], ends)
        if self._pool is not None:
            hashes = mix_array(hashes ^ self._pool.compute(plan, rows, failed))
        started = self._clock.now()
        if self._host:
            self._clock.wait_until(started + self._cost_model.host_seconds(plan))
        seconds = self._cost_model.seconds(plan)
        self._busy_until = max(max(self._busy_until, started) + seconds, self._clock.now())
        pending = _SubmittedStep(
            plan.step, rows, self._rule.tokens(hashes), failed, hashes, plan.host_rows,
            seconds, self._busy_until, bool(len(plan.host_rows)),
        )  # fmt: skip
        self._pending.append(pending)
        self._next_step += 1
        if not pending.waits_for_masks:
            self._store(pending)

    def provide(self, masks: HostMasks) -> None:
        """Sample the host rows of the last submitted step again, among the allowed tokens."""
        pending = self._pending[-1] if self._pending else None
        if pending is None or not pending.waits_for_masks or pending.step != masks.step:
            raise ExecutorError(
                f"masks of step {masks.step} came, but the last submitted step does not wait for "
                "them: provide once, after submit, and only for plans with host rows"
            )
        if len(masks.bits) != len(pending.host_rows):
            raise ExecutorError(
                f"step {masks.step}: {len(masks.bits)} masks for {len(pending.host_rows)} host rows"
            )
        for row, bits in zip(pending.host_rows, masks.bits, strict=True):
            self._resample(pending, int(row), bits)
        pending.waits_for_masks = False
        self._busy_until = pending.done = max(pending.done, self._clock.now())
        self._store(pending)

    def collect(self) -> StepResult:
        """Move the clock to the end of the oldest pending step and hand out its tokens."""
        if not self._pending:
            raise ExecutorError("collect without a submitted step")
        if self._pending[0].waits_for_masks:
            raise ExecutorError(f"step {self._pending[0].step} waits for masks: call provide first")
        done = self._pending.popleft()
        self._clock.wait_until(done.done)
        return StepResult(
            step=done.step, token_ids=done.token_ids, failed=done.failed, seconds=done.seconds
        )

    def stride(self, plan: StepPlan, num_steps: int, until: float) -> Stride | None:
        """See the contract; the times are counted in the order in which the clock would move.

        Not where failures are drawn or contexts checked, which go from step to step, nor where
        times pass otherwise than by being moved.
        """
        if not self._takes_strides or len(self._pending) >= self._options.max_in_flight:
            return None
        self._check_order(plan)
        host, seconds = self._cost_model.steady_seconds(plan, num_steps)
        times = StrideTimes(self._clock.now(), self._busy_until, [p.done for p in self._pending])
        times.pass_steps(host, seconds, until)
        num_taken, num_before = len(times.planned), len(self._pending)
        if num_taken <= num_before:
            return None
        token_ids = collected = self._steady_tokens(plan, num_taken)
        if num_before:
            before = [self._pending.popleft().token_ids[None] for _ in range(num_before)]
            collected = np.concatenate((*before, token_ids[:-num_before]))
        for i in range(num_taken - num_before, num_taken):  # those stay in flight
            self._pending.append(
                _SubmittedStep(
                    plan.step + i, plan.rows, token_ids[i], None, _NO_HASHES, plan.host_rows,
                    seconds[i], times.done[i - num_taken], waits_for_masks=False,
                )
            )  # fmt: skip
        self._next_step += num_taken
        self._busy_until = times.busy_until
        self._clock.wait_until(times.collected[-1])
        return Stride(
            step=plan.step,
            rows=plan.rows,
            starts=plan.starts,
            planned=times.planned,
            submitted=times.submitted,
            collected=times.collected,
            token_ids=collected,
            num_in_flight=num_before,
        )

    def _steady_tokens(self, plan: StepPlan, num_steps: int) -> IntArray:
        """int32[num_steps, n] of the plan and of those after it, each one token further."""
        further = np.arange(1, num_steps + 1, dtype=np.int32)
        return self._rule.tokens(
            self._number_of(self._keys[plan.rows], plan.starts + further[:, None])
        )

    def close(self) -> None:
        """Nothing to give back; later steps are refused. Idempotent."""
        self._closed = True
        self._pending.clear()

    def _check_order(self, plan: StepPlan) -> None:
        if self._closed:
            raise ExecutorError("the simulated executor is closed")
        if plan.step != self._next_step:
            raise ExecutorError(f"plan {plan.step} came where plan {self._next_step} was due")
        if len(self._pending) >= self._options.max_in_flight:
            raise ExecutorError(
                f"plan {plan.step} is one more than the {self._options.max_in_flight} in flight "
                "that are allowed: collect first, or raise executor.max_in_flight"
            )
        if self._pending and self._pending[-1].waits_for_masks:
            raise ExecutorError(
                f"plan {plan.step} came while step {self._pending[-1].step} waits for masks"
            )

    def _failures(self, rows: IntArray, ends: IntArray) -> BoolArray | None:
        """Rows that fail by rule: a function of (seed, sample index, position) too.

        A row whose KV a failed pass wrote goes on failing, as NaN would.
        """
        if not self._options.failure_probability:
            return None
        numbers = position_hash(self._keys[rows] ^ STEP, ends)
        failed = chance(numbers, self._options.failure_probability) | self._broken[rows]
        self._broken[rows] = failed
        return failed if failed.any() else None

    def _resample(self, pending: _SubmittedStep, row: int, bits: IntArray) -> None:
        (where,) = np.nonzero(pending.rows == row)
        if len(where) != 1:
            raise ExecutorError(f"step {pending.step}: host row {row} does not sample")
        token = self._rule.allowed_token(pending.hashes[where], bits)
        if token is not None:
            pending.token_ids[where] = token
            return
        if pending.failed is None:
            pending.failed = np.zeros(len(pending.rows), np.bool_)
        pending.failed[where] = True

    def _store(self, pending: _SubmittedStep) -> None:
        """Keep the sampled tokens where the next step reads them."""
        if self._pool is not None:
            self._pool.append(pending.rows, pending.token_ids)


def estimate(options: SimOptions, config: ExecutorConfig) -> dict[str, int]:
    """The pool that a run would have, for `nanofw explain`."""
    num_blocks = _capacity(options, config, _cost_model(options, config)).num_blocks
    per_block = config.block_size * config.spec.kv_bytes_per_token
    return {
        "kv_bytes_per_block": per_block,
        "num_blocks": num_blocks,
        "num_kv_tokens": num_blocks * config.block_size,
        "kv_bytes": num_blocks * per_block,
    }


def _cost_model(options: SimOptions, config: ExecutorConfig) -> CheckedCostModel:
    component = config.components.cost_model
    facts = CostModelConfig(
        spec=config.spec,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        memory_utilization=config.memory_utilization,
    )
    if component is None:
        constant = ConstantOptions(seconds_per_step=options.seconds_per_step)
        return CheckedCostModel(ConstantCost(constant, facts), "cost model 'constant'")
    return CheckedCostModel(component.make(CostModel, facts), component.label)


def _capacity(
    options: SimOptions, config: ExecutorConfig, cost_model: CheckedCostModel
) -> Capacity:
    num_blocks = config.num_blocks
    if num_blocks is None:
        num_blocks = config.max_num_seqs * -(-config.max_model_len // config.block_size)
        kv_bytes = cost_model.kv_bytes()
        if kv_bytes is not None:
            num_blocks = kv_bytes // (config.block_size * config.spec.kv_bytes_per_token)
    if num_blocks < 1:
        raise ExecutorError(f"kv_allocator.num_blocks must be at least 1, not {num_blocks}")
    if num_blocks * config.block_size > _MAX_POOL_TOKENS:
        raise ConfigError(
            f"{num_blocks:,} blocks of {config.block_size:,} tokens are more than the "
            f"{_MAX_POOL_TOKENS:,} tokens that a simulated pool holds; lower it, "
            f"kv_allocator.block_size or the cost model's memory",
            key="kv_allocator.num_blocks",
        )
    return Capacity(
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_in_flight=options.max_in_flight,
    )
