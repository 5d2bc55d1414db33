"""Shortest job first, by prompt or by how much there is to generate, with ageing."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

from pydantic import NonNegativeFloat

from nanofw.plugins import (
    FinishReason,
    Options,
    Policy,
    RequestView,
    SchedulerConfig,
    SchedulerView,
)


class ShortestJobFirstOptions(Options):
    """`scheduler: {name: shortest_job_first, ...}`."""

    by: Literal["prompt", "output", "total"] = "prompt"
    """What makes a job short: prompt tokens, tokens still to generate, or both."""
    output_length: Literal["given", "predicted"] = "given"
    """How the length of the output is found. given: the request's `expected_output_tokens`, or, if
    the request does not state that, its `max_tokens`. predicted: the running mean over finished
    requests of the same client whose prompts have about the same length. Until such a request has
    finished, `given` is used."""
    prompt_weight: NonNegativeFloat = 1.0
    """With `by: total`: how much a prompt token counts; a generated token counts 1."""
    ageing: NonNegativeFloat = 0.0
    """Tokens that each second of waiting takes off a job. 0: long jobs may starve."""


class ShortestJobFirst(Policy):
    """Orders by `length - ageing * waited`, which is the static key `length + ageing * arrival`."""

    def __init__(
        self, options: ShortestJobFirstOptions, config: SchedulerConfig | None = None
    ) -> None:
        super().__init__(options, config)
        self._options = options
        self._means: dict[Hashable, float] = {}

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return self._length(request) + self._options.ageing * request.arrival

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        """Learn how long outputs are, from requests that were served to their end."""
        predicts = self._options.output_length == "predicted"
        if predicts and reason.is_served:
            seen, kind = float(request.num_output_tokens), _kind(request)
            self._means[kind] = 0.9 * self._means.get(kind, seen) + 0.1 * seen

    def _length(self, request: RequestView) -> float:
        match self._options.by:
            case "prompt":
                return request.num_prompt_tokens
            case "output":
                return self._left(request)
            case "total":
                prompt = self._options.prompt_weight * request.num_prompt_tokens
                return prompt + self._left(request)

    def _left(self, request: RequestView) -> float:
        """Tokens still to generate; a request that outlived its guess has one left."""
        given = request.expected_output_tokens or request.max_tokens
        total: float = given
        if self._options.output_length == "predicted":
            total = min(self._means.get(_kind(request), given), request.max_tokens)
        return max(total - request.num_output_tokens, 1.0)


def _kind(request: RequestView) -> Hashable:
    """Requests that are guessed alike: one client, prompts within a factor of two."""
    return request.client, request.num_prompt_tokens.bit_length()
