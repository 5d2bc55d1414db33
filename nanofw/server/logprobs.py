"""Log probabilities as completions and chats have them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from nanofw.llm.logprobs import Logprob, PositionLogprobs
from nanofw.narrowing import JsonObject

LEAST = -9999.0
"""What stands for a probability of zero, whose logarithm JSON does not have."""


def for_completion(
    positions: Iterable[PositionLogprobs | None], first_token: str = "", offset: int = 0
) -> JsonObject:
    """The four lists of a completion's choice.

    Args:
        positions: None for the first token of a prompt.
        first_token: its text.
        offset: characters of the choice's text before the first of them.
    """
    record: JsonObject = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    for position in positions:
        if position is None:
            text, value, tops = first_token, None, None
        else:
            own, *_ = position.values()
            text, value = own.decoded_token, _finite(own)
            tops = _by_text(position.values())
        record["tokens"].append(text)
        record["token_logprobs"].append(value)
        record["top_logprobs"].append(tops)
        record["text_offset"].append(offset)
        offset += len(text)
    return record


def _by_text(logprobs: Iterable[Logprob]) -> dict[str, float]:
    """The most likely tokens by their text; of those that are spelled alike the likeliest."""
    found: dict[str, float] = {}
    for one in sorted(logprobs, key=lambda logprob: logprob.rank):
        found.setdefault(one.decoded_token, _finite(one))
    return found


def for_chat(positions: Sequence[PositionLogprobs]) -> dict[str, object]:
    """The list of a chat's choice."""
    return {"content": [_position(position) for position in positions], "refusal": None}


def _position(position: PositionLogprobs) -> dict[str, object]:
    own, *_ = position.values()
    by_rank = sorted(position.values(), key=lambda logprob: logprob.rank)
    return {**_token(own), "top_logprobs": [_token(one) for one in by_rank if one.is_top]}


def _token(one: Logprob) -> dict[str, object]:
    text = one.decoded_token
    # a token that is a part of a character has no text of its own, and its bytes are not kept
    data = None if "\ufffd" in text else list(text.encode("utf-8"))
    return {"token": text, "logprob": _finite(one), "bytes": data}


def _finite(one: Logprob) -> float:
    return round(one.logprob, 6) if math.isfinite(one.logprob) else LEAST
