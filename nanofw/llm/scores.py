"""The log probability of a continuation that is given and not generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from nanofw.contracts.requests import FinishReason, SamplingParams
from nanofw.errors import shown
from nanofw.llm.encoding import Encoder
from nanofw.llm.prompts import Prompt, parse_prompt, with_fields
from nanofw.llm.refusals import or_refused, unread
from nanofw.llm.results import RequestResult

SCORED = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
"""Of requests whose prompt is scored, and whose one token is not what they are about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """The log probability of one continuation.

    Attributes:
        logprob: natural logarithm of its probability after the prompt; None when the request was
            not served.
        token_ids: of the continuation.
        token_logprobs: of each of them.
        is_greedy: whether each of them was the most likely token at its place.
        error: why there is no score, as a sentence.
    """

    request_id: str
    finish_reason: FinishReason
    logprob: float | None = None
    token_ids: tuple[int, ...] = ()
    token_logprobs: tuple[float, ...] = ()
    is_greedy: bool = False
    error: str | None = None
    num_prompt_tokens: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is a score."""
        return self.logprob is not None


def paired(
    prompts: Sequence[object], continuations: Sequence[object]
) -> list[tuple[object, object]]:
    """Each continuation with its prompt; one prompt goes with all."""
    if len(prompts) == 1:
        prompts = [prompts[0]] * len(continuations)
    if len(prompts) != len(continuations):
        raise ValueError(f"{len(prompts)} prompts, but {len(continuations)} continuations")
    return list(zip(prompts, continuations, strict=True))


def encode_pair(
    encoder: Encoder, prompt: object, continuation: object, fields: Mapping[str, object]
) -> Prompt:
    """Both as one encoded prompt, whose `metadata` is the number of the continuation's tokens.

    What is wrong with them is its `refusal`.
    """

    def read() -> Prompt:
        first = parse_prompt(with_fields(prompt, fields), SCORED)
        if first.sampling != SCORED:
            raise ValueError("a score takes no sampling parameters: nothing is sampled")
        return _joined(encoder, encoder.encode(first), continuation, first.messages is not None)

    return or_refused(unread(prompt, fields), read)


def _joined(encoder: Encoder, first: Prompt, continuation: object, is_chat: bool) -> Prompt:
    known = [int(token_id) for token_id in first.token_ids or ()]
    if not isinstance(continuation, str):
        more = encoder.encode(parse_prompt(continuation, SCORED)).token_ids
        whole, num_known = [*known, *map(int, more or ())], len(known)
    elif first.text is None:
        raise ValueError("the prompt is token ids: give the continuation as token ids, too")
    else:
        whole = encoder.text_tokens(first.text + continuation, is_chat=is_chat)
        num_known = _num_common(known, whole)
    if num_known == len(whole):
        raise ValueError(f"the continuation {shown(continuation)} has no token of its own")
    if num_known == 0:
        raise ValueError(
            "the first token of a text has no log probability: give a prompt of a token or more"
        )
    return replace(first, token_ids=whole, metadata=len(whole) - num_known)


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens at the beginning that are the same."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(first), len(second)))


def score_of(result: RequestResult) -> ScoreResult:
    """What the result of such a request says."""
    positions = result.prompt_logprobs
    if not result.ok or positions is None:
        return ScoreResult(
            request_id=result.request_id,
            finish_reason=result.finish_reason,
            error=result.error or "the executor computed no log probabilities of the prompt",
        )
    count = cast("int", result.metadata)
    token_ids = result.prompt_token_ids[-count:]
    found = [
        position[token_id]
        for token_id, position in zip(token_ids, positions[-count:], strict=True)
        if position is not None
    ]
    return ScoreResult(
        request_id=result.request_id,
        finish_reason=result.finish_reason,
        logprob=sum(one.logprob for one in found),
        token_ids=token_ids,
        token_logprobs=tuple(one.logprob for one in found),
        is_greedy=all(one.rank == 1 for one in found),
        num_prompt_tokens=len(result.prompt_token_ids) - count,
    )
