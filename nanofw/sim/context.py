"""The KV pool as numbers: proves that every token is computed from its request's own context.

Each slot keeps what a layer's KV keeps: a number that depends on the token there and on all
tokens before it. A prefix hit with other tokens before it, a block that was reused too early,
a position that was never computed: all of them show up as a wrong number when the context is
read through the block table.
"""

from __future__ import annotations

import numpy as np

from nanofw.contracts.arrays import BoolArray, IntArray, LongArray
from nanofw.contracts.executor import ExecutorConfig
from nanofw.contracts.plan import Capacity, NewRow, StepPlan
from nanofw.contracts.splitmix64 import HashArray, mix_array
from nanofw.errors import ExecutorError
from nanofw.sim.tokens import STEP

_FAILED = np.uint64(0x7FF8DEAD7FF8DEAD)


def chain(token_ids: IntArray) -> HashArray:
    """uint64[t], a number for each position that depends on all tokens up to it."""
    positions = np.arange(len(token_ids), dtype=np.uint64) * STEP
    hashes = mix_array(positions + token_ids.astype(np.uint64) + np.uint64(1))
    return np.cumsum(hashes, dtype=np.uint64)


class ContextPool:
    """Token ids, block tables and the pool, updated by the plans and checked against them."""

    def __init__(self, config: ExecutorConfig, capacity: Capacity) -> None:
        self._block_size, self._num_blocks = capacity.block_size, capacity.num_blocks
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._max_model_len = config.max_model_len
        self._kv: HashArray = np.zeros((self._num_blocks, self._block_size), np.uint64)
        self._rows: dict[int, _ContextRow] = {}
        self._last: tuple[IntArray, IntArray, BoolArray] | None = None

    def compute(self, plan: StepPlan, sampled: IntArray, failed: BoolArray | None) -> HashArray:
        """Carry out the plan. Returns uint64[s], a number of the context of each sampled row.

        Raises ExecutorError, naming row and position, when the plan breaks the protocol or a
        context is not the request's own.
        """
        try:
            self._change_rows(plan)
            self._check_shape(plan)
            slots = [self._slots(plan, i) for i in range(len(plan.rows))]
            self._check_writes(plan, slots)
            broken: set[int] = set() if failed is None else set(sampled[failed].tolist())
            for i, row in enumerate(plan.rows.tolist()):
                self._write(plan, i, slots[i], row in broken)
            return np.array([self._read(row, row in broken) for row in sampled.tolist()], np.uint64)
        except _Broken as error:
            raise ExecutorError(f"plan {plan.step}: {error}") from None

    def append(self, rows: IntArray, token_ids: IntArray) -> None:
        """The rows sampled these tokens."""
        for row, token in zip(rows.tolist(), token_ids.tolist(), strict=True):
            self._rows[row].tokens.append(token)

    def _change_rows(self, plan: StepPlan) -> None:
        for row in plan.removed.tolist():
            _need(row in self._rows, f"removes row {row}, which is empty")
            del self._rows[row]
        before = set(self._rows)
        for new in plan.new:
            _need(new.row not in self._rows, f"new row {new.row} is taken")
            _need(len(new.token_ids) > 0, f"new row {new.row} has no tokens")
            self._check_blocks(new.block_ids)
            self._rows[new.row] = _ContextRow(new)
        self._check_blocks(plan.block_ids)
        appended = zip(plan.block_rows.tolist(), plan.block_positions.tolist(),
                       plan.block_ids.tolist(), strict=True)  # fmt: skip
        for row, position, block in appended:
            _need(row in before, f"appends a block to row {row}, which was not there before")
            table = self._rows[row].table
            _need(position == len(table), f"row {row}: block at {position}, table has {len(table)}")
            table.append(block)
        for source, target in plan.copies.tolist():
            self._check_blocks(np.array([source, target]))
            self._kv[target] = self._kv[source]

    def _check_blocks(self, blocks: IntArray) -> None:
        wrong = blocks[(blocks < 0) | (blocks >= self._num_blocks)]
        _need(not len(wrong), f"block {wrong[:1]} is not in the pool of {self._num_blocks}")

    def _check_shape(self, plan: StepPlan) -> None:
        rows = plan.rows.tolist()
        _need(len(set(rows)) == len(rows), f"a row runs twice: {rows}")
        for row in rows:
            _need(row in self._rows, f"runs row {row}, which is empty")
        total, budget = plan.total_tokens, self._max_num_batched_tokens
        _need(total <= budget, f"{total} tokens, max_num_batched_tokens is {budget}")
        _need(bool((plan.num_tokens >= 1).all()), "a row computes no token")
        _need(bool((plan.num_tokens[: plan.num_decodes] == 1).all()), "a decode of many tokens")
        _need(set(plan.host_rows.tolist()) <= set(plan.sampled_rows.tolist()),
              "a host row does not sample")  # fmt: skip
        now = (plan.rows, plan.num_tokens, plan.samples)
        if plan.same_rows:
            same = self._last is not None and all(map(np.array_equal, now, self._last))
            _need(same, "says same_rows, but the rows, tokens or samples differ")
        self._last = now

    def _slots(self, plan: StepPlan, i: int) -> LongArray:
        """The slots that entry i of the plan writes, after checking where it starts."""
        index, start, num = int(plan.rows[i]), int(plan.starts[i]), int(plan.num_tokens[i])
        row, end = self._rows[index], start + num
        expected = start if row.computed is None else row.computed
        _need(start == expected, f"row {index} starts at {start}, {expected} are computed")
        _need(end <= len(row.tokens), f"row {index} computes to {end}, knows {len(row.tokens)}")
        _need(end <= self._max_model_len, f"row {index} is longer than max_model_len")
        if plan.samples[i]:
            _need(end == len(row.tokens), f"row {index} samples before its last token")
        if i < plan.num_decodes:
            _need(start >= row.num_prompt_tokens, f"row {index} decodes within its prompt")
        room = len(row.table) * self._block_size
        _need(end + plan.lookahead <= room, f"row {index} has {room} slots for {end} tokens")
        positions = np.arange(start, end)
        table = np.array(row.table)
        return table[positions // self._block_size] * self._block_size + (
            positions % self._block_size
        )

    def _check_writes(self, plan: StepPlan, slots: list[LongArray]) -> None:
        owners: dict[int, list[int]] = {}
        for index, row in self._rows.items():
            for block in row.table:
                owners.setdefault(block, []).append(index)
        for index, written in zip(plan.rows.tolist(), slots, strict=True):
            for block in sorted(set((written // self._block_size).tolist())):
                own = owners[block]
                _need(own == [index], f"row {index} writes block {block}, in tables of rows {own}")

    def _write(self, plan: StepPlan, i: int, slots: LongArray, broken: bool) -> None:
        row, start = self._rows[int(plan.rows[i])], int(plan.starts[i])
        row.computed = start + len(slots)
        values = chain(np.array(row.tokens[: row.computed], np.int32))[start:]
        self._kv.reshape(-1)[slots] = _FAILED if broken else values

    def _read(self, index: int, broken: bool) -> int:
        """The context of a row through its block table; complains when it is not its own."""
        row = self._rows[index]
        assert row.computed is not None
        seen = self._kv[row.table].reshape(-1)[: row.computed]
        if not broken:
            wrong = np.flatnonzero(seen != chain(np.array(row.tokens[: row.computed], np.int32)))
            if len(wrong):
                at = int(wrong[0])
                what = "a failed pass" if seen[at] == _FAILED else "another context"
                block = row.table[at // self._block_size]
                raise _Broken(f"row {index}: block {block} has KV of {what} at position {at}")
        return int(np.bitwise_xor.reduce(mix_array(seen)))


class _ContextRow:
    """What the device knows of a request; `computed` None until its first pass."""

    __slots__ = ("computed", "num_prompt_tokens", "table", "tokens")

    def __init__(self, new: NewRow) -> None:
        self.tokens: list[int] = new.token_ids.tolist()
        self.num_prompt_tokens = new.num_prompt_tokens
        self.table: list[int] = new.block_ids.tolist()
        self.computed: int | None = None


class _Broken(Exception):
    """The plan broke a rule; becomes an ExecutorError that names the plan."""


def _need(condition: bool, complaint: str) -> None:
    if not condition:
        raise _Broken(complaint)
