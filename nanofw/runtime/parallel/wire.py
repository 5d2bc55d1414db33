"""Plans and results as messages and back. A steady decode step is a few dozen bytes."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanofw.contracts.arrays import BoolArray, IntArray
from nanofw.contracts.outputs import TokenLogprobs
from nanofw.contracts.plan import NewRow, StepPlan, StepResult
from nanofw.runtime.parallel.messages import (
    Array,
    Done,
    LogprobsData,
    NewRowData,
    Plan,
    ResultData,
)

_NOTHING: IntArray = np.empty(0, np.int32)


class PlanEncoder:
    """Remembers where the last plan ended, and leaves out what follows from it.

    Args:
        processors: names whose arguments of requests the ranks need; those of processors on the
            host stay there. None: all.
    """

    def __init__(self, processors: Collection[str] | None = None) -> None:
        self._processors = processors
        self._ends: IntArray = _NOTHING

    def encode(self, plan: StepPlan) -> Plan:
        """The message of the next plan."""
        follows = plan.same_rows and np.array_equal(plan.starts, self._ends)
        self._ends = plan.starts + plan.num_tokens
        same = plan.same_rows
        return Plan(
            step=plan.step,
            num_decodes=plan.num_decodes,
            same_rows=same,
            follows=follows,
            rows=b"" if same else _bytes(plan.rows),
            num_tokens=b"" if same else _bytes(plan.num_tokens),
            samples=b"" if same else plan.samples.astype(np.bool_).tobytes(),
            starts=b"" if follows else _bytes(plan.starts),
            block_rows=_bytes(plan.block_rows),
            block_positions=_bytes(plan.block_positions),
            block_ids=_bytes(plan.block_ids),
            new=[_new_row_data(new, needed(new.arguments, self._processors)) for new in plan.new],
            removed=_bytes(plan.removed),
            copies=_bytes(plan.copies),
            host_rows=_bytes(plan.host_rows),
            lookahead=plan.lookahead,
        )


class PlanDecoder:
    """The other side of `PlanEncoder`: sees every message, in order."""

    def __init__(self) -> None:
        self._rows = self._num_tokens = self._ends = _NOTHING
        self._samples: BoolArray = np.empty(0, np.bool_)

    def decode(self, message: Plan) -> StepPlan:
        """The plan of the next message."""
        if not message.same_rows:
            self._rows = _ints(message.rows)
            self._num_tokens = _ints(message.num_tokens)
            self._samples = np.frombuffer(message.samples, np.bool_).copy()
        starts = self._ends if message.follows else _ints(message.starts)
        self._ends = starts + self._num_tokens
        return StepPlan(
            step=message.step,
            rows=self._rows,
            num_tokens=self._num_tokens,
            starts=starts,
            samples=self._samples,
            num_decodes=message.num_decodes,
            new=[_new_row(new) for new in message.new],
            removed=_ints(message.removed),
            block_rows=_ints(message.block_rows),
            block_positions=_ints(message.block_positions),
            block_ids=_ints(message.block_ids),
            copies=_ints(message.copies).reshape(-1, 2),
            host_rows=_ints(message.host_rows),
            lookahead=message.lookahead,
            same_rows=message.same_rows,
        )


def encode_result(result: StepResult, *, whole: bool) -> Done:
    """The message of a step's result; without `whole` only that it is done, and its digest."""
    failed = None if result.failed is None else result.failed.tobytes()
    tokens = _bytes(result.token_ids)
    data = None
    if whole:
        data = ResultData(
            tokens,
            failed,
            _logprobs_data(result.logprobs),
            _logprobs_data(result.prompt_logprobs),
            result.seconds,
        )
    return Done(result.step, zlib.crc32(failed or b"", zlib.crc32(tokens)), data)


def decode_result(step: int, data: ResultData) -> StepResult:
    """The result of step `step`."""
    failed = data.failed
    return StepResult(
        step=step,
        token_ids=_ints(data.token_ids),
        failed=None if failed is None else np.frombuffer(failed, np.bool_).copy(),
        logprobs=_logprobs(data.logprobs),
        prompt_logprobs=_logprobs(data.prompt_logprobs),
        seconds=data.seconds,
    )


def needed(arguments: Mapping[str, Any], processors: Collection[str] | None) -> dict[str, Any]:
    """Arguments of a request, by processor, that the ranks need."""
    return {
        name: value for name, value in arguments.items() if processors is None or name in processors
    }


def _new_row_data(new: NewRow, arguments: dict[str, Any]) -> NewRowData:
    return NewRowData(
        new.row, new.request_id, _bytes(new.token_ids), new.num_prompt_tokens,
        _bytes(new.block_ids), new.sampling, new.seed, new.sample_index, arguments,
    )  # fmt: skip


def _new_row(data: NewRowData) -> NewRow:
    return NewRow(
        row=data.row,
        request_id=data.request_id,
        token_ids=_ints(data.token_ids),
        num_prompt_tokens=data.num_prompt_tokens,
        block_ids=_ints(data.block_ids),
        sampling=data.sampling,
        seed=data.seed,
        sample_index=data.sample_index,
        arguments=data.arguments,
    )


def _logprobs_data(by_row: Mapping[int, TokenLogprobs]) -> dict[int, LogprobsData]:
    return {
        int(row): LogprobsData(
            Array.of(found.token_logprobs), Array.of(found.ranks), Array.of(found.top_ids),
            Array.of(found.top_logprobs),
        )
        for row, found in by_row.items()
    }  # fmt: skip


def _logprobs(by_row: Mapping[int, LogprobsData]) -> dict[int, TokenLogprobs]:
    return {
        row: TokenLogprobs(
            data.token_logprobs.array(), data.ranks.array(), data.top_ids.array(),
            data.top_logprobs.array(),
        )
        for row, data in by_row.items()
    }  # fmt: skip


def _bytes(array: NDArray[Any]) -> bytes:
    return array.astype(np.int32, copy=False).tobytes() if array.size else b""


def _ints(data: bytes) -> IntArray:
    """int32, writable: what comes from here belongs to the executor."""
    return np.frombuffer(data, np.int32).copy() if data else _NOTHING
