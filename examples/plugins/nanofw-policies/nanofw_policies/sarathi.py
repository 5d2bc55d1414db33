"""Stall-free batching with a token budget (Agrawal et al., OSDI 2024, arXiv 2403.02310)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nanofw.plugins import Options, Policy, RequestView, SchedulerConfig, SchedulerView


class SarathiOptions(Options):
    """`scheduler: {name: sarathi, ...}`."""

    tokens: Annotated[int, Field(ge=1)] = 512
    """Tokens of a step. Rows that decode come first; prefill chunks take the rest."""


class Sarathi(Policy):
    """First come, first served, in steps of a bounded number of tokens.

    The core cuts a prompt into the chunk that fits into what decodes leave, so that no row that
    decodes waits for a long prompt.
    """

    def __init__(self, options: SarathiOptions, config: SchedulerConfig | None) -> None:
        super().__init__(options, config)
        self._tokens = options.tokens

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.arrival

    def step_budget(self, view: SchedulerView) -> int:
        return max(self._tokens, view.num_decoding)
