"""Sampling tokens by the Gumbel-max trick, and the sets that min-p, top-k and top-p keep.

The token with the smallest `E / w`, E exponential and w its weight, is sampled with probability
proportional to w; the logarithm of `w / E` is the logit plus Gumbel noise. Each token's E comes
from its own counter, so a sample does not depend on how many others take part, on their order, or
on which rank holds them.

Each row's result is a function of that row alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nanofw.kernels.random import exponential, random_bits

_STRETCHES = (128, 64, 32)


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How each row samples, as arrays over rows on the device.

    Attributes:
        inverse_temperatures: float32[rows]; 0 takes the most likely token, the lowest id among
            equals.
        base_keys: int32[rows, 2], of `random.base_key`.
        top_k: int32[rows]; 0 or less, or the vocabulary's size, cuts nothing.
        top_p: float32[rows]; 1 cuts nothing.
        min_p: float32[rows]; 0 cuts nothing.
    """

    inverse_temperatures: torch.Tensor
    base_keys: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor


def greedy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Highest logit float32[s] and its token int64[s]; NaN where a row of [s, vocab] has one.

    Of equal logits the lower token wins. On a CPU the highest of each stretch is found first,
    which is vectorised, as finding a position is not: four times faster.
    """
    num_rows, width = logits.shape
    stretch = next((n for n in _STRETCHES if width % n == 0), None)
    if logits.device.type != "cpu" or stretch is None or not logits.is_contiguous():
        best = logits.max(dim=-1)
        return best.values, best.indices
    stretches = logits.view(num_rows, width // stretch, stretch)
    best = stretches.amax(dim=-1).max(dim=-1)
    where = stretches[torch.arange(num_rows), best.indices].argmax(dim=-1)
    return best.values, best.indices * stretch + where


def gumbel_max(
    logits: torch.Tensor,
    highest: torch.Tensor,
    inverse_temperatures: torch.Tensor,
    keys: torch.Tensor,
    token_ids: torch.Tensor,
) -> torch.Tensor:
    """Sample from the whole vocabulary.

    Args:
        logits: float32[s, vocab]. Overwritten.
        highest: float32[s], the largest of each row.
        inverse_temperatures: float32[s].
        keys: int32[s, 2], from `position_keys`.
        token_ids: int32[vocab].

    Returns:
        int64[s], columns of `logits`.
    """
    ratios = exponential_ratios(logits, highest, inverse_temperatures, keys, token_ids)
    return greedy(ratios.neg_())[1]  # the smallest; faster than argmin


def exponential_ratios(
    logits: torch.Tensor,
    highest: torch.Tensor,
    inverse_temperatures: torch.Tensor,
    keys: torch.Tensor,
    token_ids: torch.Tensor,
) -> torch.Tensor:
    """`E / w` of each token, float32[s, vocab]: the smallest wins. Arguments as of `gumbel_max`.

    `logits` may be a part of the vocabulary, `token_ids` then the part's.
    """
    weights = logits.sub_(highest.unsqueeze(1)).mul_(inverse_temperatures.unsqueeze(1)).exp_()
    return exponential(random_bits(keys, token_ids)).div_(weights)


def ordered_candidates(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` highest of [s, vocab] logits and their tokens int64[s, count].

    In falling order, equal logits by token id. When more tokens equal the last candidate than
    the list has room for, which of them are in it is undefined.
    """
    if count >= logits.shape[1]:
        return logits.sort(dim=-1, descending=True, stable=True)
    values, ids = logits.topk(count, dim=-1)
    ids, by_id = ids.sort(dim=-1)
    values, by_value = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, by_value)


def total_weights(
    logits: torch.Tensor, highest: torch.Tensor, inverse_temperatures: torch.Tensor
) -> torch.Tensor:
    """float64[s], sums of `exp((logit - highest) / temperature)` over the vocabulary."""
    scaled = (logits - highest.unsqueeze(1)).mul_(inverse_temperatures.unsqueeze(1))
    return scaled.exp_().sum(dim=-1, dtype=torch.float64)


def num_kept(
    weights: torch.Tensor,
    totals: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """How many candidates min-p and top-k, then top-p keep, at least one: int64[s].

    Min-p takes tokens of at least its share of the highest weight, which is 1. Top-p takes the
    smallest set of most likely tokens that reaches its share of what the other two kept.

    Args:
        weights: float32[s, c] in falling order.
        totals: float64[s], over the whole vocabulary; read where min-p and top-k cut nothing.
        top_k: int32[s], at least 1.
        top_p: float64[s], in (0, 1].
        min_p: float64[s], in [0, 1].
    """
    ranks = torch.arange(weights.shape[1], device=weights.device)
    masses = weights.double()
    is_allowed = (ranks < top_k.unsqueeze(1)) & (masses >= min_p.unsqueeze(1))
    masses.masked_fill_(~is_allowed, 0)
    reached = masses.cumsum(dim=-1)
    whole = torch.where(is_allowed[:, -1], totals, reached[:, -1])
    is_short = reached - masses < (top_p * whole).unsqueeze(1)
    kept = is_allowed & (is_short | (top_p >= 1).unsqueeze(1))
    return kept.sum(dim=-1).clamp_(min=1)


def gumbel_max_among(
    weights: torch.Tensor, kept: torch.Tensor, keys: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """Sample from the first int64[s] `kept` candidates.

    Args:
        weights: float32[s, c].
        keys: int32[s, 2], from `position_keys`.
        token_ids: int64[s, c].

    Returns:
        int64[s] tokens.
    """
    ratios = exponential(random_bits(keys, token_ids.to(torch.int32))).div_(weights)
    ranks = torch.arange(weights.shape[1], device=weights.device)
    ratios.masked_fill_(ranks >= kept.unsqueeze(1), torch.inf)
    return token_ids.gather(1, ratios.argmin(dim=-1, keepdim=True)).squeeze(1)


def forbid(logits: torch.Tensor, lines: torch.Tensor, bits: torch.Tensor) -> None:
    """Set to -inf, in int64[h] lines of [s, vocab] logits, the tokens whose bit is clear.

    `bits` is int32[h, ceil(vocab / 32)]; bit `v % 32` of word `v // 32` stands for token v.
    """
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = (bits.unsqueeze(-1) >> shifts & 1).view(len(bits), -1)[:, : logits.shape[1]]
    logits[lines] = logits[lines].masked_fill_(allowed == 0, -torch.inf)
