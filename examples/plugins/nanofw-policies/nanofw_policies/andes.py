"""Quality of experience for readers of a stream (Liu et al., "Andes", arXiv 2404.16283)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from nanofw.plugins import (
    FinishReason,
    Options,
    Policy,
    RequestView,
    SchedulerConfig,
    SchedulerView,
)


class AndesOptions(Options):
    """`scheduler: {name: andes, ...}`."""

    ttft_s: Annotated[float, Field(gt=0)] = 1.0
    """When a reader expects the first token, in seconds after the arrival."""
    tokens_per_s: Annotated[float, Field(gt=0)] = 5.0
    """How fast a reader reads. Both can be arguments of a request."""
    horizon_s: Annotated[float, Field(gt=0)] = 5.0
    """How far ahead a gain is predicted."""
    refresh_s: Annotated[float, Field(gt=0)] = 0.5
    """How often the gains of the live requests are computed anew."""


class Andes(Policy):
    """Serves whom it helps most for the KV that it takes.

    A reader who has tokens left to read loses nothing by waiting; one who has read all of them
    does. The key is the quality that a horizon of waiting would cost, per token of context.
    """

    max_rekeys = 512

    def __init__(self, options: AndesOptions, config: SchedulerConfig | None) -> None:
        super().__init__(options, config)
        self._options = options
        self._live: dict[RequestView, None] = {}  # in order of arrival
        self._refreshed = -options.refresh_s

    def check(self, arguments: Mapping[str, Any] | None) -> None:
        for name in ("ttft_s", "tokens_per_s"):
            value = (arguments or {}).get(name, 1.0)
            if not isinstance(value, (int, float)) or value <= 0:
                raise ValueError(f"{name} must be a number above 0, not {value!r}")

    def key(self, request: RequestView, view: SchedulerView) -> float:
        context = request.num_prompt_tokens + request.num_output_tokens
        return -self._loss_of_waiting(request, view.now) / context

    def rekey(self, view: SchedulerView) -> list[RequestView]:
        if view.now - self._refreshed < self._options.refresh_s:
            return []
        self._refreshed = view.now
        return list(self._live)[: self.max_rekeys]

    def victim(self, for_request: RequestView | None, view: SchedulerView) -> int | None:
        running = view.running
        return max(running.rows.tolist(), key=running.key)

    def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
        self._live[request] = None

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        del self._live[request]

    def _loss_of_waiting(self, request: RequestView, now: float) -> float:
        """Tokens that the reader would miss within the horizon if the request did not run."""
        arguments = {**self._options.model_dump(), **(request.arguments or {})}
        elapsed = now + self._options.horizon_s - request.arrival - arguments["ttft_s"]
        wanted = min(elapsed * arguments["tokens_per_s"], request.max_tokens)
        return max(0.0, wanted - request.num_output_tokens)
