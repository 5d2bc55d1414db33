"""Admission by service level objective: refuse early what would be late anyway.

After the early rejection of overload in Mooncake (Qin et al., FAST 2025, arXiv 2407.00079).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from nanofw.plugins import (
    FinishReason,
    IntArray,
    Options,
    Policy,
    Refuse,
    RequestView,
    SchedulerConfig,
    SchedulerView,
)

MEMORY = 0.98
"""Weight of what was measured before a step."""


class SLOAdmissionOptions(Options):
    """`scheduler: {name: slo_admission, ...}`."""

    ttft_s: Annotated[float, Field(gt=0)] = 2.0
    """Limit of the time to the first token, for requests without `arguments.ttft_s`."""
    margin: Annotated[float, Field(gt=0)] = 1.0
    """A prediction above `margin` times the limit refuses the request."""


class SLOAdmission(Policy):
    """First come, first served, but a request that would be late is refused on arrival.

    The wait is predicted from the prompt tokens that are queued and the rate at which prompts
    were computed lately, while some were queued.
    """

    def __init__(self, options: SLOAdmissionOptions, config: SchedulerConfig | None) -> None:
        super().__init__(options, config)
        self._options = options
        self._queued = 0  # prompt tokens accepted and not yet computed
        self._left: dict[RequestView, int] = {}  # of them, by request
        self._computed = self._seconds = 0.0  # prompt tokens, and the time that they took
        self._last: tuple[float, int] | None = None  # time and prompt tokens of the last step

    def check(self, arguments: Mapping[str, Any] | None) -> None:
        limit = (arguments or {}).get("ttft_s", self._options.ttft_s)
        if not isinstance(limit, (int, float)) or limit <= 0:
            raise ValueError(f"ttft_s must be a number of seconds above 0, not {limit!r}")

    def key(self, request: RequestView, view: SchedulerView) -> float | Refuse:
        if request.num_preemptions or not self._computed:
            return request.arrival
        limit = (request.arguments or {}).get("ttft_s", self._options.ttft_s)
        wait = view.now - request.arrival + self._queued * self._seconds / self._computed
        if wait > self._options.margin * limit:
            return Refuse(
                f"its first token is expected after {wait:.2f} s, the limit is {limit:g} s",
                retry_after_s=wait - limit,
            )
        return request.arrival

    def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
        self._left[request] = request.num_prompt_tokens
        self._queued += request.num_prompt_tokens

    def on_progress(
        self, rows: IntArray, num_tokens: IntArray, num_decodes: int, view: SchedulerView
    ) -> None:
        if self._last is not None:
            self._computed = MEMORY * self._computed + self._last[1]
            self._seconds = MEMORY * self._seconds + view.now - self._last[0]
        chunks = zip(rows[num_decodes:].tolist(), num_tokens[num_decodes:].tolist(), strict=True)
        for row, count in chunks:
            self._count(view.running.request(row), count)
        self._last = (view.now, int(num_tokens[num_decodes:].sum())) if self._queued else None

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        self._queued -= self._left.pop(request)

    def _count(self, request: RequestView, count: int) -> None:
        count = min(count, self._left[request])  # what a preemption makes compute again is not left
        self._left[request] -= count
        self._queued -= count
