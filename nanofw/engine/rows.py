"""The running requests as arrays, one row each."""

from __future__ import annotations

import numpy as np

from nanofw.contracts.arrays import BoolArray, IntArray, LongArray, read_only
from nanofw.engine.request_state import RequestState, RequestStatus


class Rows:
    """Arrays over the rows of running requests.

    A row's tokens, by position:

        0 ........ num_prompt ........ known ..... planned ........ limit
        |--prompt-----|---committed------|-in flight-|
        |---- computed or being computed ----|
                                           computed

    Attributes:
        tokens: int32[max_num_seqs, max_model_len], token ids; valid below `known`.
        shown_tokens: the same, read-only.
        known: committed tokens.
        planned: known tokens and those that steps in flight will sample.
        computed: positions whose KV is computed, steps in flight included.
        limit: where `planned` must stop.
        alive: the row's request is still running (false too for a finished one whose step is
            in flight).
        prefilling: the row is in the middle of its prefill.
        paused: the policy leaves the row out of the step being planned.
        last_step: number of the last plan that the row is in.
    """

    def __init__(self, max_num_seqs: int, max_tokens: int) -> None:
        def ints() -> IntArray:
            return np.zeros(max_num_seqs, np.int32)

        self.tokens: IntArray = np.zeros((max_num_seqs, max_tokens), np.int32)
        self.shown_tokens: IntArray = read_only(self.tokens)
        self.num_prompt: IntArray = ints()
        self.known: IntArray = ints()
        self.planned: IntArray = ints()
        self.computed: IntArray = ints()
        self.limit: IntArray = ints()
        self.alive: BoolArray = np.zeros(max_num_seqs, np.bool_)
        self.ignore_eos: BoolArray = np.zeros(max_num_seqs, np.bool_)
        self.custom_stop: BoolArray = np.zeros(max_num_seqs, np.bool_)
        self.stream: BoolArray = np.zeros(max_num_seqs, np.bool_)
        self.host: BoolArray = np.zeros(max_num_seqs, np.bool_)
        self.no_token_yet: BoolArray = np.zeros(max_num_seqs, np.bool_)
        self.logprobs: BoolArray = np.zeros(max_num_seqs, np.bool_)
        self.prefilling: BoolArray = np.zeros(max_num_seqs, np.bool_)
        self.paused: BoolArray = np.zeros(max_num_seqs, np.bool_)
        self.last_step: LongArray = np.full(max_num_seqs, -1, np.int64)
        self.states: list[RequestState | None] = [None] * max_num_seqs
        self.free: list[int] = list(range(max_num_seqs - 1, -1, -1))

    def assign(self, state: RequestState, num_computed: int) -> int:
        """Give a waiting request a row, with `num_computed` cached tokens."""
        row = self.free.pop()
        tokens = state.tokens
        self.tokens[row, : len(tokens)] = tokens
        self.num_prompt[row] = state.num_prompt
        self.known[row] = self.planned[row] = len(tokens)
        self.computed[row] = num_computed
        self.limit[row] = state.limit
        sampling = state.request.sampling
        self.ignore_eos[row] = sampling.ignore_eos
        self.custom_stop[row] = bool(sampling.stop_token_ids)
        self.stream[row] = state.request.stream
        reports_more = sampling.logprobs is not None or sampling.prompt_logprobs is not None
        self.logprobs[row] = reports_more or state.request.pooling is not None
        self.host[row] = state.host
        self.no_token_yet[row] = state.first_token is None
        self.alive[row] = True
        self.states[row] = state
        state.row, state.status = row, RequestStatus.RUNNING
        state.view.rows = self
        return row

    def stop(self, row: int) -> None:
        """The row's request stops running; its committed tokens move back to it."""
        state = self.state(row)
        state.tokens = self.tokens[row, : self.known[row]].copy()
        state.num_output = len(state.tokens) - state.num_prompt
        state.view.rows = None
        state.row = -1
        self.alive[row] = self.paused[row] = False

    def release(self, row: int) -> None:
        """The row may be used again."""
        self.states[row] = None
        self.free.append(row)

    def state(self, row: int) -> RequestState:
        state = self.states[row]
        assert state is not None
        return state
