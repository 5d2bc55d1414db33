"""The bounds of a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a step, resolved.

    Attributes:
        max_num_seqs: requests running at once.
        max_num_batched_tokens: tokens in a step.
        max_model_len: tokens of a request, prompt included.
        num_blocks: number of blocks in the pool.
        block_size: tokens in a block.
        chunk_tokens: longest prefill chunk of one request; None: the step's budget.
        max_partial_prefills: requests that may be left in the middle of their prefill.
        prefill_first: true: a step has only prefill or only decode; false: a step may have both.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_blocks: int
    block_size: int
    chunk_tokens: int | None = None
    max_partial_prefills: int = 1
    prefill_first: bool = False

    @property
    def max_rows(self) -> int:
        """Rows that a step can hold when each decodes one token."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)

    @property
    def pool_tokens(self) -> int:
        """Tokens whose KV fits in the pool."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens fill."""
        return -(-num_tokens // self.block_size)
