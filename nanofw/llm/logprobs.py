"""Log probabilities as users read them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from nanofw.contracts.outputs import TokenLogprobs
from nanofw.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token at one position.

    Attributes:
        logprob: natural logarithm of its probability in the model's own distribution.
        rank: how many tokens are more likely, plus one.
        decoded_token: its text on its own.
        is_top: it is one of the most likely tokens that were asked for.
    """

    logprob: float
    rank: int
    decoded_token: str
    is_top: bool = True


PositionLogprobs: TypeAlias = dict[int, Logprob]
"""By token id: the token that stands there first, then the most likely ones."""


def readable(
    logprobs: TokenLogprobs, token_ids: Iterable[int], tokenizer: Tokenizer | None
) -> list[PositionLogprobs]:
    """One mapping per position.

    Args:
        token_ids: the tokens that stand there, as many as there are positions.
    """
    positions: list[PositionLogprobs] = []
    for index, token_id in enumerate(token_ids):
        rank = int(logprobs.ranks[index])
        top_ids: list[int] = logprobs.top_ids[index].tolist()
        own = _one(token_id, logprobs.token_logprobs[index], rank, tokenizer)
        position = {token_id: replace(own, is_top=token_id in top_ids)}
        tops = zip(top_ids, logprobs.top_logprobs[index], strict=True)
        for top_rank, (top_id, value) in enumerate(tops, 1):
            position.setdefault(top_id, _one(top_id, value, top_rank, tokenizer))
        positions.append(position)
    return positions


def to_record(position: PositionLogprobs | None) -> dict[str, object] | None:
    """A position as a JSON object: the token, and the most likely ones under `top`."""
    if position is None:
        return None
    (token_id, own), *others = position.items()
    by_rank = sorted([(token_id, own), *others], key=lambda item: item[1].rank)
    top = [_token_record(*item) for item in by_rank if item[1].is_top]
    return {**_token_record(token_id, own), "rank": own.rank, "top": top}


def _token_record(token_id: int, logprob: Logprob) -> dict[str, object]:
    # JSON has neither NaN nor infinity: a failed request's prompt may have them.
    value = round(logprob.logprob, 6) if math.isfinite(logprob.logprob) else None
    return {"token_id": token_id, "token": logprob.decoded_token, "logprob": value}


def _one(token_id: int, value: float, rank: int, tokenizer: Tokenizer | None) -> Logprob:
    text = tokenizer.decode([token_id], skip_special_tokens=False) if tokenizer else ""
    return Logprob(float(value), rank, text)
