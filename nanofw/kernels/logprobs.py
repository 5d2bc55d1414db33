"""Log probabilities of tokens, their ranks, and the most likely tokens beside them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_ELEMENTS_AT_ONCE = 1 << 23  # bounds what is alive at once beside the logits
_LAST_ID = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of s tokens, on the device.

    Attributes:
        token_logprobs: float32[s].
        ranks: int32[s], how many tokens are more likely, plus one.
        top_ids: int32[s, k], the most likely tokens, best first, equal ones by id.
        top_logprobs: float32[s, k].
    """

    token_logprobs: torch.Tensor
    ranks: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor


def lines_at_once(vocab_size: int) -> int:
    """How many lines of logits are looked at together."""
    return max(1, _ELEMENTS_AT_ONCE // vocab_size)


def logprobs_of(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> Logprobs:
    """Log probabilities of int64[s] tokens, and of the `num_top` most likely ones.

    Args:
        logits: float32[s, vocab]. Not changed.
        num_top: k; may be 0, and more than the vocabulary has means all of it.
    """
    count = lines_at_once(logits.shape[1])
    lines, tokens = logits.split(count), token_ids.split(count)
    return joined([_of_lines(*pair, num_top) for pair in zip(lines, tokens, strict=True)])


def joined(parts: list[Logprobs]) -> Logprobs:
    """One after the other; at least one part."""
    if len(parts) == 1:
        return parts[0]
    return Logprobs(
        torch.cat([part.token_logprobs for part in parts]),
        torch.cat([part.ranks for part in parts]),
        torch.cat([part.top_ids for part in parts]),
        torch.cat([part.top_logprobs for part in parts]),
    )


def _of_lines(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> Logprobs:
    totals = logits.logsumexp(dim=-1, keepdim=True)
    own = logits.gather(1, token_ids.unsqueeze(1))
    values, ids = most_likely(logits, num_top)
    return Logprobs(
        (own - totals).squeeze(1),
        (logits > own).sum(dim=-1, dtype=torch.int32) + 1,
        ids,
        values - totals,
    )


def most_likely(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` highest of float32[s, vocab] logits and their tokens int32[s, count].

    In falling order; equal logits by token id, also where only some of them find room: the
    order is that of one integer made of logit and id.
    """
    count = min(count, logits.shape[1])
    bits = (logits + 0.0).view(torch.int32)  # one zero instead of two
    keys = (bits ^ (bits >> 31 & 0x7FFFFFFF)).long() << 32
    keys += _LAST_ID - torch.arange(logits.shape[1], device=logits.device)
    ids = _LAST_ID - (keys.topk(count, dim=-1).values & _LAST_ID)
    return logits.gather(1, ids), ids.to(torch.int32)
