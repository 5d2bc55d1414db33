"""What a finished request looks like to its user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from nanofw.core.types import FinishReason, RequestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One continuation of a prompt.

    Attributes:
        index: which of the request's samples it is.
        text: without special tokens, end tokens and stop strings.
        token_ids: the generated tokens, the end token or those of the stop string included.
        stop_reason: the stop string or the stop token that ended it; None for the model's own
            end token and for every other reason.
    """

    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """When things happened, from one monotonic clock (the virtual one in a simulated run).

    Attributes:
        arrival, scheduled, first_token, finished: seconds on the engine's clock; None where
            the request never got so far.
        itl_s: gaps between consecutive tokens, in seconds; None unless they were asked for.
        num_output_tokens: what `tpot_s` divides by.
    """

    arrival: float
    scheduled: float | None
    first_token: float | None
    finished: float
    num_output_tokens: int
    itl_s: tuple[float, ...] | None = None

    @property
    def queue_s(self) -> float | None:
        """Seconds from arrival to the first step that ran it."""
        return None if self.scheduled is None else self.scheduled - self.arrival

    @property
    def ttft_s(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def e2e_s(self) -> float:
        """Seconds from arrival to the end."""
        return self.finished - self.arrival

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per token after the first; None for less than two tokens."""
        if self.first_token is None or self.num_output_tokens < 2:
            return None
        return (self.finished - self.first_token) / (self.num_output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """A request that ended, in whatever way.

    Attributes:
        prompt: its text; None when it came as token ids. A chat's is the rendered template.
        outputs: one completion, without text when the request was refused.
        error: a sentence for the user when the reason is `refused` or `error`.
        timings: None when it was refused.
        num_cached_tokens: prompt tokens taken from the prefix cache.
    """

    request_id: str
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] = ()
    outputs: list[Completion]
    error: str | None = None
    timings: Timings | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    finished: bool = field(default=True, init=False)

    @property
    def ok(self) -> bool:
        """Whether it ended as requests should: neither refused, nor failed, nor aborted."""
        return self.outputs[0].finish_reason in (FinishReason.STOP, FinishReason.LENGTH)

    def to_record(self) -> dict[str, Any]:
        """The result as a JSON object; `docs/results.md` describes it."""
        completion, timings = self.outputs[0], self.timings
        record: dict[str, Any] = {
            "id": self.request_id,
            "prompt": self.prompt,
            "text": completion.text,
            "token_ids": list(completion.token_ids),
            "finish_reason": str(completion.finish_reason),
            "stop_reason": completion.stop_reason,
            "error": self.error,
            "num_prompt_tokens": len(self.prompt_token_ids),
            "num_output_tokens": len(completion.token_ids),
            "num_cached_tokens": self.num_cached_tokens,
            "num_preemptions": self.num_preemptions,
        }
        return record | _timing_record(timings)


def _timing_record(timings: Timings | None) -> dict[str, Any]:
    names = ("queue_s", "ttft_s", "tpot_s", "e2e_s")
    if timings is None:
        return dict.fromkeys(names)
    record: dict[str, Any] = {name: _rounded(getattr(timings, name)) for name in names}
    if timings.itl_s is not None:
        record["itl_s"] = [_rounded(gap) for gap in timings.itl_s]
    return record


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def refused(request_id: str, reason: str, prompt: str | None = None) -> RequestResult:
    """The result of a request that was never accepted."""
    return RequestResult(
        request_id=request_id,
        prompt=prompt,
        outputs=[Completion(finish_reason=FinishReason.REFUSED)],
        error=reason,
    )


def make_timings(output: RequestOutput, num_tokens: int, times: Sequence[float]) -> Timings:
    """The timings of a finished request.

    Args:
        times: when each token came, on the engine's clock; empty when nobody asked.
    """
    gaps = tuple(late - early for early, late in pairwise(times))
    return Timings(
        arrival=output.arrival,
        scheduled=output.scheduled,
        first_token=output.first_token,
        finished=output.finished,
        num_output_tokens=num_tokens,
        itl_s=gaps if times else None,
    )
