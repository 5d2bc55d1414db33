"""Which rows ask for log probabilities, and what the device finds for them.

They are those of the model's own distribution: taken from the logits before processors, masks
and sampling parameters change anything, whichever sampler is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nanofw.contracts.arrays import BoolArray, IntArray, LongArray
from nanofw.contracts.outputs import TokenLogprobs
from nanofw.contracts.plan import NewRow, StepPlan
from nanofw.kernels.logprobs import Logprobs, joined, lines_at_once, logprobs_of

_NONE = -1


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Log probabilities of positions of several rows, one row's after another's.

    Attributes:
        rows: int32[r] on the host.
        counts: int64[r], positions of each row.
        num_top: int32[r], how many of the most likely tokens each row asked for.
        found: at all positions, for the row that asked for most.
    """

    rows: IntArray
    counts: LongArray
    num_top: IntArray
    found: Logprobs

    def copied(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> RowLogprobs:
        """The same with each tensor replaced by its copy."""
        found = self.found
        return RowLogprobs(
            self.rows, self.counts, self.num_top,
            Logprobs(
                copy(found.token_logprobs), copy(found.ranks), copy(found.top_ids),
                copy(found.top_logprobs),
            ),
        )  # fmt: skip

    def by_row(self) -> dict[int, TokenLogprobs]:
        """What each row asked for; the tensors must be on the host and there."""
        found = self.found
        tokens, ranks = found.token_logprobs.numpy(), found.ranks.numpy()
        top_ids, top_logprobs = found.top_ids.numpy(), found.top_logprobs.numpy()
        result: dict[int, TokenLogprobs] = {}
        end = 0
        columns = (self.rows.tolist(), self.counts.tolist(), self.num_top.tolist())
        for row, count, num_top in zip(*columns, strict=True):
            start, end = end, end + count
            result[row] = TokenLogprobs(
                tokens[start:end], ranks[start:end], top_ids[start:end, :num_top],
                top_logprobs[start:end, :num_top],
            )  # fmt: skip
        return result


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Positions of a step after which a prompt token stands whose log probability is asked for.

    Attributes:
        indices: for each micro-batch, int64[p_i] positions among its tokens.
        rows, positions: int64[p], the row and the position of each of those prompt tokens.
    """

    indices: list[LongArray]
    rows: LongArray
    positions: LongArray


class LogprobRows:
    """Who asks for log probabilities, of sampled tokens and of prompts.

    Attributes:
        are_asked: some request has asked for those of its tokens since the start.
    """

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.are_asked: bool = False

        def numbers() -> IntArray:
            return np.full(num_rows, _NONE, np.int32)

        self._num_top, self._num_prompt_top, self._num_prompt = numbers(), numbers(), numbers()

    def add_row(self, new: NewRow) -> None:
        """A request entered a row."""
        row, sampling = new.row, new.sampling
        self._num_top[row] = _NONE if sampling.logprobs is None else sampling.logprobs
        self.are_asked |= sampling.logprobs is not None
        asked = None if new.sample_index else sampling.prompt_logprobs
        self._num_prompt_top[row] = _NONE if asked is None else asked
        self._num_prompt[row] = new.num_prompt_tokens

    def asking(self, rows: IntArray) -> LongArray | None:
        """Indices of those int32[s] rows that ask for log probabilities; None: no row does."""
        indices = np.flatnonzero(self._num_top[rows] != _NONE)
        return indices if len(indices) else None

    def of_sampled(
        self, rows: IntArray, logits: torch.Tensor, token_ids: torch.Tensor
    ) -> RowLogprobs:
        """Of int[s] tokens that int32[s] rows sampled; float32[s, vocab] logits as the model made
        them."""
        num_top = self._num_top[rows]
        found = logprobs_of(logits, token_ids.long(), int(num_top.max()))
        return RowLogprobs(rows, np.ones(len(rows), np.int64), num_top, found)

    def ask_for_prompts(self, plan: StepPlan) -> bool:
        """Whether the plan computes anything for rows that ask for their prompts."""
        return bool(self._asks_for_prompts(plan).any())

    def prompt_tokens(self, plan: StepPlan, lengths: Sequence[int]) -> PromptTokens | None:
        """What the plan computes for rows that ask for their prompts; None: nothing.

        Args:
            lengths: tokens of each micro-batch without its padding; the plan's tokens in their
                order.
        """
        asks = self._asks_for_prompts(plan)
        if not asks.any():
            return None
        indices = np.repeat(np.arange(len(plan.rows)), plan.num_tokens)
        firsts = np.cumsum(plan.num_tokens) - plan.num_tokens
        positions = np.arange(len(indices)) - firsts[indices] + plan.starts[indices] + 1
        rows = plan.rows[indices]
        wanted = asks[indices] & (positions < self._num_prompt[rows])
        parts = np.split(wanted, np.cumsum(lengths)[:-1])
        return PromptTokens(
            [np.flatnonzero(part) for part in parts],
            rows[wanted].astype(np.int64),
            positions[wanted].astype(np.int64),
        )

    def _asks_for_prompts(self, plan: StepPlan) -> BoolArray:
        """bool[n], the rows of a plan that have prompt tokens whose log probability is wanted."""
        asks = self._num_prompt_top[plan.rows] != _NONE
        return asks & (plan.starts < self._num_prompt[plan.rows] - 1)

    def of_prompts(
        self,
        wanted: PromptTokens,
        hidden: torch.Tensor,
        token_ids: torch.Tensor,
        logits: Callable[[torch.Tensor], torch.Tensor],
    ) -> RowLogprobs:
        """Of int[p] wanted tokens, from hidden states [p, hidden] of the positions before them.

        Args:
            logits: makes float32[l, vocab] of some hidden states; called for a few at a time,
                so that the vocabulary's width bounds the memory and not the prompts' length.
        """
        # A row's tokens are next to each other: it is in a plan once.
        found_rows, first, counts = np.unique(wanted.rows, return_index=True, return_counts=True)
        order = np.argsort(first)
        rows: IntArray = found_rows[order].astype(np.int32)
        num_top = self._num_prompt_top[rows]
        count = lines_at_once(self._vocab_size)
        parts = zip(hidden.split(count), token_ids.long().split(count), strict=True)
        found = [logprobs_of(logits(part), tokens, int(num_top.max())) for part, tokens in parts]
        return RowLogprobs(rows, counts[order], num_top, joined(found))
