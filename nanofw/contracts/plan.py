"""The plan that goes down to the executor and the result that comes up: plain arrays.

Shape letters: n rows that run, m appended blocks, r removed rows, h rows that wait for host
masks, s rows that sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanofw.contracts.arrays import (
    EMPTY_BOOL,
    EMPTY_COPIES,
    EMPTY_INT,
    BoolArray,
    Float32Array,
    IntArray,
)
from nanofw.contracts.outputs import TokenLogprobs
from nanofw.contracts.requests import Pooling, SamplingParams

NO_LOGPROBS: Mapping[int, TokenLogprobs] = {}
NO_EMBEDDINGS: Mapping[int, Float32Array] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRow:
    """A request that enters the running set, new or returning after a preemption.

    Attributes:
        row: its place in every per-row array, until it is listed as removed.
        request_id: a unique name among all running and waiting requests, the same before and after
            a preemption. It is the id of the request; further samples of `n` have an id derived
            from it.
        token_ids: int32[t], all known tokens: the prompt, then outputs from before a preemption.
            Read-only.
        num_prompt_tokens: how many of these tokens belong to the prompt.
        block_ids: int32[b], its block table so far.
        seed: 64-bit start of its random numbers.
        sample_index: which of the `n` siblings it is.
        arguments: arguments of the request for plugins, by the name of the plugin.
        pooling: how to pool the hidden states of the prompt; None: they are not wanted.
    """

    row: int
    request_id: str
    token_ids: IntArray
    num_prompt_tokens: int
    block_ids: IntArray
    sampling: SamplingParams
    seed: int
    sample_index: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    pooling: Pooling | None = None


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """One forward pass, as changes since the previous plan.

    A row begins with the plan that lists it in `new` and ends with the plan that lists it in
    `removed`. In between, the executor keeps the row's token ids, block table and sampling state.
    Apply removals first. The token at position `starts[i]` of a decoding row is the one that the
    row sampled last: the executor has this token; the plan does not contain it.

    Attributes:
        step: number of the plan, from 0, without gaps.
        rows: int32[n], each row at most once; the first `num_decodes` compute one token
            beyond their prompt, the others are prefill chunks.
        num_tokens: int32[n], tokens to compute, at least 1.
        starts: int32[n], position of the first of them: the row's computed length.
        samples: bool[n], whether the row samples a token after its last position.
        block_rows, block_positions, block_ids: int32[m], blocks appended to the tables of
            existing rows: `table[block_rows, block_positions] = block_ids`.
        copies: int32[c, 2], blocks to copy (source, target) before the pass.
        host_rows: int32[h], sampling rows that wait for `provide`.
        finished: ids (`NewRow.request_id`) of requests that had a row and have ended since the
            previous plan. Process them after removals and before new rows. Their rows are
            removed in this plan or in a later one.
        lookahead: number of slots that are reserved in each row after its tokens.
        same_rows: `rows`, `num_tokens` and `samples` equal those of the previous plan.
    """

    step: int
    rows: IntArray = field(default_factory=lambda: EMPTY_INT)
    num_tokens: IntArray = field(default_factory=lambda: EMPTY_INT)
    starts: IntArray = field(default_factory=lambda: EMPTY_INT)
    samples: BoolArray = field(default_factory=lambda: EMPTY_BOOL)
    num_decodes: int = 0
    new: Sequence[NewRow] = ()
    removed: IntArray = field(default_factory=lambda: EMPTY_INT)
    block_rows: IntArray = field(default_factory=lambda: EMPTY_INT)
    block_positions: IntArray = field(default_factory=lambda: EMPTY_INT)
    block_ids: IntArray = field(default_factory=lambda: EMPTY_INT)
    copies: IntArray = field(default_factory=lambda: EMPTY_COPIES)
    host_rows: IntArray = field(default_factory=lambda: EMPTY_INT)
    finished: tuple[str, ...] = ()
    lookahead: int = 0
    same_rows: bool = False
    _sampled_rows: IntArray | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def total_tokens(self) -> int:
        if self.num_decodes == len(self.rows):
            return self.num_decodes
        return int(self.num_tokens.sum())

    @property
    def sampled_rows(self) -> IntArray:
        """int32[s], the rows that sample, in the plan's order. Computed once."""
        if self._sampled_rows is None:
            all_sample = b"\0" not in self.samples.tobytes()  # faster than `all` of numpy
            self._sampled_rows = self.rows if all_sample else self.rows[self.samples]
        return self._sampled_rows


@dataclass(slots=True, kw_only=True)
class StepResult:
    """What one step produced, in the order of the plan's `sampled_rows`.

    Attributes:
        step: the plan's number.
        token_ids: int32[s].
        failed: bool[s], rows whose logits were not finite; None: no row failed.
        logprobs: by row, the log probabilities of its sampled token (one position), for rows
            whose requests ask for them.
        prompt_logprobs: by row, for each position of the chunk the log probabilities of the prompt
            token that follows it. Only for rows of first samples whose requests ask for them.
        embeddings: by row, float32[hidden] pooled hidden states of prompts that the step
            completed, for rows whose requests ask for them.
        seconds: time that the device spent on the step; None: not known.
    """

    step: int
    token_ids: IntArray
    failed: BoolArray | None = None
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=lambda: NO_LOGPROBS)
    prompt_logprobs: Mapping[int, TokenLogprobs] = field(default_factory=lambda: NO_LOGPROBS)
    embeddings: Mapping[int, Float32Array] = field(default_factory=lambda: NO_EMBEDDINGS)
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What an executor can hold.

    Attributes:
        num_blocks: KV blocks in the pool.
        block_size: tokens in a block.
        max_in_flight: steps that may be submitted before the first is collected.
    """

    num_blocks: int
    block_size: int
    max_in_flight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMasks:
    """Allowed tokens of the rows in `StepPlan.host_rows`, in their order.

    Attributes:
        step: the plan's number.
        bits: int32[h, ceil(vocab / 32)]; bit `v % 32` of word `v // 32` allows token v.
    """

    step: int
    bits: IntArray
