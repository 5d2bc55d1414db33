"""Beam search over `LLM`: each step is a batch of requests for one token, which share prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from nanofw.contracts.requests import FinishReason, SamplingParams
from nanofw.errors import RequestError
from nanofw.llm.arguments import as_list
from nanofw.llm.llm import LLM
from nanofw.llm.prompts import PromptLike
from nanofw.llm.results import RequestResult

MAX_WIDTH = 32
"""Twice as many likely tokens are asked for, and 64 are the most that a request gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """One continuation that a beam search found.

    Attributes:
        token_ids: the end token included.
        text: without special tokens; empty for a model without a tokenizer.
        logprob: natural logarithm of its probability.
        score: `logprob` divided by its length to the power of the length penalty.
        finish_reason: `stop` where it ends with an end token of the model.
    """

    token_ids: tuple[int, ...]
    text: str = ""
    logprob: float
    score: float
    finish_reason: FinishReason


@dataclass(slots=True)
class _BeamSearch:
    """The beams of one prompt: token ids and log probability of each that goes on."""

    prompt: list[int]
    width: int
    length_penalty: float
    eos: tuple[int, ...]
    running: list[tuple[tuple[int, ...], float]] = field(default_factory=lambda: [((), 0.0)])
    ended: list[Beam] = field(default_factory=list[Beam])

    def take(self, results: Sequence[RequestResult]) -> None:
        """Go on by a token.

        Args:
            results: of the running beams, with their likely tokens.
        """
        candidates = [
            ((*ids, token_id), logprob + one.logprob)
            for (ids, logprob), result in zip(self.running, results, strict=True)
            for token_id, one in _likely(result).items()
            if one.is_top
        ]
        candidates.sort(key=lambda candidate: -candidate[1])
        self.running = []
        for place, (ids, logprob) in enumerate(candidates[: 2 * self.width]):
            if ids[-1] not in self.eos:
                self.running.append((ids, logprob))
            elif place < self.width:
                self.ended.append(self._beam(ids, logprob, FinishReason.STOP))
        del self.running[self.width :]
        self.ended = self._best()
        if len(self.ended) == self.width and self.running:
            ids, logprob = self.running[0]
            if self.ended[-1].score >= logprob / len(ids) ** self.length_penalty:
                self.running = []  # no running beam can come before those that ended

    def close(self) -> list[Beam]:
        """The best, after the last step."""
        for ids, logprob in self.running:
            self.ended.append(self._beam(ids, logprob, FinishReason.LENGTH))
        return self._best()

    def _best(self) -> list[Beam]:
        return sorted(self.ended, key=lambda beam: -beam.score)[: self.width]

    def _beam(self, ids: tuple[int, ...], logprob: float, reason: FinishReason) -> Beam:
        score = logprob / len(ids) ** self.length_penalty
        return Beam(token_ids=ids, logprob=logprob, score=score, finish_reason=reason)


def _likely(result: RequestResult) -> dict[int, Any]:
    if not result.ok:
        raise RequestError(result.request_id, str(result.error))
    logprobs = result.outputs[0].logprobs
    assert logprobs is not None
    return logprobs[0]


def beam_search(
    llm: LLM,
    prompts: PromptLike | Sequence[PromptLike],
    *,
    beam_width: int = 4,
    max_tokens: int = 16,
    length_penalty: float = 1.0,
) -> list[list[Beam]]:
    """The most likely continuations of each prompt that a search of this width finds, best first.

    With a prefix cache (`kv_allocator: paged_prefix`, the default) a step computes little more than
    the new tokens.

    Args:
        prompts: texts or token ids.
        max_tokens: most tokens of a continuation.
        length_penalty: above 0 it favours longer ones.

    Raises:
        ValueError: a width or a number of tokens that is out of bounds.
        RequestError: a prompt cannot be served.
    """
    if not 1 <= beam_width <= MAX_WIDTH:
        raise ValueError(f"beam_width is {beam_width}; it must be from 1 to {MAX_WIDTH}")
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}; it must be at least 1")
    eos = llm.engine.spec.eos_token_ids
    searches = [
        _BeamSearch(_token_ids(llm, prompt), beam_width, length_penalty, eos)
        for prompt in as_list(prompts)
    ]
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2 * beam_width, ignore_eos=True)
    for _ in range(max_tokens):
        steps = [[*search.prompt, *ids] for search in searches for ids, _ in search.running]
        if not steps:
            break
        results = iter(llm.generate(steps, params))
        for search in searches:
            if search.running:
                search.take([next(results) for _ in search.running])
    return [[_with_text(llm, beam) for beam in search.close()] for search in searches]


def _token_ids(llm: LLM, prompt: object) -> list[int]:
    (result,) = llm.generate([cast("Any", prompt)], SamplingParams(temperature=0.0, max_tokens=1))
    if not result.ok:
        raise RequestError(result.request_id, str(result.error))
    return list(result.prompt_token_ids)


def _with_text(llm: LLM, beam: Beam) -> Beam:
    return (
        beam if llm.tokenizer is None else replace(beam, text=llm.tokenizer.decode(beam.token_ids))
    )
