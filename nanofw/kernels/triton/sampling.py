"""Sampling one token a line in one pass over the logits.

The Gumbel-max trick: the token with the largest `logit / temperature -
log(E)` wins, E exponential and its own for each token. Nothing is normalised or sorted. The
vocabulary is split over programs; a second, tiny kernel takes the best of the parts, and their
log-sum-exp for the logprob. The token does not depend on the number of parts: E belongs to a
token id, and ties go to the lowest id.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from nanofw.kernels.dispatch import launch
from nanofw.kernels.sampling import RowSampling
from nanofw.kernels.triton.common import cdiv, next_power_of_2, num_multiprocessors
from nanofw.kernels.triton.cutoff import Cutoffs, ordered_key
from nanofw.kernels.triton.random import log_exponential, position_key, random_bits

BLOCK = 2048
MAX_PARTS = 128
NO_TOKEN = tl.constexpr(2147483647)


_PER_LINE = [  # parts of larger arrays, which begin anywhere
    "rows_ptr", "positions_ptr", "cut_keys_ptr", "cut_ids_ptr", "best_ptr", "token_ptr",
    "token_logit_ptr", "max_ptr", "sum_ptr", "token_ids_ptr", "scores_ptr", "logprobs_ptr",
    "failed_ptr",
]  # fmt: skip


@triton.jit(
    do_not_specialize=["vocab_offset", "blocks_per_part", "stride_parts"],
    do_not_specialize_on_alignment=_PER_LINE,
)
def _sample_kernel(
    logits_ptr,
    rows_ptr,
    inverse_temperatures_ptr,
    base_keys_ptr,
    positions_ptr,
    cut_keys_ptr,
    cut_ids_ptr,
    best_ptr,
    token_ptr,
    token_logit_ptr,
    max_ptr,
    sum_ptr,
    vocab_size,
    vocab_offset,
    blocks_per_part,
    stride_logits,
    stride_parts,
    CUT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    line = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    row = tl.load(rows_ptr + line).to(tl.int64)
    inverse_temperature = tl.load(inverse_temperatures_ptr + row)
    position = tl.load(positions_ptr + line).to(tl.int32)
    first, second = position_key(base_keys_ptr + 2 * row, position)
    if CUT:
        cut_key = tl.load(cut_keys_ptr + line)
        cut_id = tl.load(cut_ids_ptr + line)
    logits = logits_ptr + line * stride_logits
    offs = tl.arange(0, BLOCK)
    begin = part * blocks_per_part * BLOCK

    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_token = begin + offs
    best_logit = tl.full((BLOCK,), float("-inf"), tl.float32)
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for block in range(blocks_per_part):
        token = begin + block * BLOCK + offs
        x = tl.load(logits + token, mask=token < vocab_size, other=float("-inf")).to(tl.float32)
        new_top = tl.maximum(top, tl.max(x, axis=0))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        # NaN and +inf both make the sum NaN, which marks the line as failed.
        total = total * tl.exp(top - base) + tl.sum(tl.exp(x - base), axis=0)
        top = new_top
        score = x
        if CUT:
            key = ordered_key(x)
            kept = (key > cut_key) | ((key == cut_key) & (token <= cut_id))
            score = tl.where(kept, x, float("-inf"))
        if inverse_temperature > 0.0:
            bits = random_bits(first, second, vocab_offset + token)
            score = score * inverse_temperature - log_exponential(bits)
        better = score > best
        best = tl.where(better, score, best)
        best_token = tl.where(better, token, best_token)
        best_logit = tl.where(better, x, best_logit)

    winner = tl.max(best, axis=0)
    chosen = tl.min(tl.where(best == winner, best_token, NO_TOKEN), axis=0)
    logit = tl.max(tl.where(best_token == chosen, best_logit, float("-inf")), axis=0)
    at = line * stride_parts + part
    tl.store(best_ptr + at, winner)
    tl.store(token_ptr + at, chosen + vocab_offset)
    tl.store(token_logit_ptr + at, logit)
    tl.store(max_ptr + at, top)
    tl.store(sum_ptr + at, total)


@triton.jit(
    do_not_specialize=["num_parts", "stride_parts"], do_not_specialize_on_alignment=_PER_LINE
)
def _pick_kernel(
    best_ptr,
    token_ptr,
    token_logit_ptr,
    max_ptr,
    sum_ptr,
    token_ids_ptr,
    scores_ptr,
    logprobs_ptr,
    failed_ptr,
    num_parts,
    stride_parts,
    PARTS: tl.constexpr,
):
    line = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, PARTS)
    at = line * stride_parts + offs
    mask = offs < num_parts
    best = tl.load(best_ptr + at, mask=mask, other=float("-inf"))
    token = tl.load(token_ptr + at, mask=mask, other=NO_TOKEN)
    logit = tl.load(token_logit_ptr + at, mask=mask, other=float("-inf"))
    m = tl.load(max_ptr + at, mask=mask, other=float("-inf"))
    s = tl.load(sum_ptr + at, mask=mask, other=0.0)
    winner = tl.max(best, axis=0)
    chosen = tl.min(tl.where(best == winner, token, NO_TOKEN), axis=0)
    top = tl.max(m, axis=0)
    total = tl.sum(s * tl.exp(m - tl.where(top == float("-inf"), 0.0, top)), axis=0)
    chosen_logit = tl.max(tl.where(token == chosen, logit, float("-inf")), axis=0)
    # A line with a finite logit has a sum in [1, inf); NaN compares false.
    good = (total > 0.0) & (total < float("inf"))
    tl.store(token_ids_ptr + line, tl.where(good, chosen, 0))
    tl.store(scores_ptr + line, winner)
    tl.store(logprobs_ptr + line, chosen_logit - top - tl.log(total))
    tl.store(failed_ptr + line, tl.where(good, 0, 1).to(tl.int8))


@dataclass(frozen=True, slots=True)
class SampledLines:
    """What was sampled for s lines.

    Attributes:
        token_ids: int32[s], ids in the whole vocabulary.
        scores: float32[s], with which they won: `logit / temperature - log(E)`.
        logprobs: float32[s], of these tokens under the softmax of the logits as they came.
        failed: bool[s], lines with NaN, +inf, or no finite logit; their ids are 0.
    """

    token_ids: torch.Tensor
    scores: torch.Tensor
    logprobs: torch.Tensor
    failed: torch.Tensor

    @classmethod
    def allocate(cls, num_lines: int, device: torch.device) -> SampledLines:
        """Nothing sampled yet."""

        def empty(dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(num_lines, dtype=dtype, device=device)

        return cls(
            empty(torch.int32), empty(torch.float32), empty(torch.float32), empty(torch.bool)
        )


def num_vocab_parts(num_lines: int, vocab_size: int, device: torch.device) -> int:
    """Parts of the vocabulary such that a multiprocessor has a few programs."""
    wanted = cdiv(8 * num_multiprocessors(device), max(num_lines, 1))
    return max(1, min(cdiv(vocab_size, BLOCK), wanted, MAX_PARTS))


def sample_tokens(
    logits: torch.Tensor,
    rows: torch.Tensor,
    sampling: RowSampling,
    positions: torch.Tensor,
    *,
    cutoffs: Cutoffs | None = None,
    vocab_offset: int = 0,
    num_parts: int | None = None,
) -> SampledLines:
    """Sample a token for each of s lines.

    Args:
        logits: [s, vocab], any floating type, last dimension contiguous. Not changed.
        rows: integers [s], index of each line in `sampling`.
        positions: integers [s], of the sampled tokens.
        cutoffs: what top-k and top-p keep, of `cutoffs_of`; None: everything.
        vocab_offset: id of the first column in the whole vocabulary.
        num_parts: into how many the vocabulary is split at most; None: by the device.
    """
    num_lines, vocab_size = logits.shape
    result = SampledLines.allocate(num_lines, logits.device)
    if num_lines == 0:
        return result
    block = min(BLOCK, next_power_of_2(vocab_size))
    parts = num_parts or num_vocab_parts(num_lines, vocab_size, logits.device)
    blocks_per_part = cdiv(cdiv(vocab_size, block), parts)
    parts = cdiv(vocab_size, blocks_per_part * block)
    numbers = torch.empty(4, num_lines, parts, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(num_lines, parts, dtype=torch.int32, device=logits.device)
    best, token_logit, maxima, sums = numbers
    cut_keys, cut_ids = (None, None) if cutoffs is None else (cutoffs.keys, cutoffs.last_ids)
    launch(
        _sample_kernel, (num_lines, parts),
        logits, rows, sampling.inverse_temperatures, sampling.base_keys, positions,
        cut_keys, cut_ids, best, tokens, token_logit, maxima, sums,
        vocab_size, vocab_offset, blocks_per_part, logits.stride(0), parts,
        CUT=cutoffs is not None, BLOCK=block, num_warps=max(1, block // 512),
    )  # fmt: skip
    launch(
        _pick_kernel, (num_lines,),
        best, tokens, token_logit, maxima, sums,
        result.token_ids, result.scores, result.logprobs, result.failed.view(torch.int8),
        parts, parts, PARTS=MAX_PARTS, num_warps=1,
    )  # fmt: skip
    return result
