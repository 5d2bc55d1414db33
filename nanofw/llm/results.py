"""What a finished request looks like to its user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from nanofw.contracts.arrays import Float32Array
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.reply_format import ToolCall
from nanofw.contracts.requests import FinishReason
from nanofw.llm.logprobs import PositionLogprobs
from nanofw.llm.logprobs import to_record as logprob_record
from nanofw.measure.latencies import PER_REQUEST
from nanofw.text.replies import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One continuation of a prompt.

    Attributes:
        index: which of the request's samples it is.
        text: without special tokens, end tokens and stop strings.
        token_ids: the generated tokens, the end token or those of the stop string included.
        stop_reason: the stop string or the stop token that ended it; None for the model's own
            end token and for every other reason.
        limit: what cut a sample that ended with `length`: `max_tokens`, or `max_model_len`, which
            was reached before; None for every other reason.
        logprobs: by position, what was asked for with `SamplingParams.logprobs`.
        reply: of a chat: its content, reasoning and calls of tools.
    """

    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    limit: str | None = None
    logprobs: list[PositionLogprobs] | None = None
    reply: Reply | None = None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of tools in a chat's reply."""
        return () if self.reply is None else self.reply.tool_calls

    @property
    def cumulative_logprob(self) -> float | None:
        """Log probability of the whole; None when no log probabilities were asked for."""
        if self.logprobs is None:
            return None
        positions = zip(self.token_ids, self.logprobs, strict=True)
        return sum(position[token_id].logprob for token_id, position in positions)

    def to_record(self) -> dict[str, object]:
        """The continuation as a JSON object."""
        record: dict[str, object] = {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": str(self.finish_reason),
            "stop_reason": self.stop_reason,
            "limit": self.limit,
        }
        if self.logprobs is not None:
            record["logprobs"] = [logprob_record(position) for position in self.logprobs]
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """When things happened, from one monotonic clock (the virtual one in a simulated run).

    Attributes:
        arrival, scheduled, first_token, finished: seconds on the engine's clock; None where
            the request never got so far.
        itl_s: gaps between consecutive tokens, in seconds; None unless they were asked for.
        num_output_tokens: of the sample that ended last; `tpot_s` divides by it.
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
        outputs: a completion for each of the `n` samples; one without text when refused.
        error: a sentence for the user when the reason is `refused`, `shed` or `error`.
        retry_after_s: when it may be worth to try again, in seconds, where the policy refused it
            and said so.
        timings: None when it was refused.
        num_cached_tokens: prompt tokens taken from the prefix cache.
        metadata: what the request brought under this key.
        prompt_logprobs: by position, None for the first token; None unless asked for.
        embedding: float32[hidden], the prompt's hidden states as they were pooled; None unless
            asked for.
    """

    request_id: str
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] = ()
    outputs: list[Completion]
    error: str | None = None
    retry_after_s: float | None = None
    timings: Timings | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    metadata: object = None
    embedding: Float32Array | None = None
    finished: bool = field(default=True, init=False)

    @property
    def ok(self) -> bool:
        """Whether all samples were served: not refused, not failed, not aborted."""
        return all(output.finish_reason.is_served for output in self.outputs)

    @property
    def finish_reason(self) -> FinishReason:
        """Why it ended; with several samples the first reason that is not served."""
        bad = [o.finish_reason for o in self.outputs if not o.finish_reason.is_served]
        return bad[0] if bad else self.outputs[0].finish_reason

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens of all samples."""
        return sum(len(output.token_ids) for output in self.outputs)

    def to_record(self) -> dict[str, object]:
        """The result as a JSON object; `docs/results.md` describes it."""
        record: dict[str, object] = {
            "id": self.request_id,
            "prompt": self.prompt,
            **self.outputs[0].to_record(),
            "error": self.error,
            "num_prompt_tokens": len(self.prompt_token_ids),
            "num_output_tokens": self.num_output_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_preemptions": self.num_preemptions,
            **_timing_record(self.timings),
        }
        if len(self.outputs) > 1:
            record["samples"] = [output.to_record() for output in self.outputs]
        if self.metadata is not None:
            record["metadata"] = self.metadata
        if self.prompt_logprobs is not None:
            record["prompt_logprobs"] = [logprob_record(p) for p in self.prompt_logprobs]
        return record


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """A piece of a streamed request.

    Attributes:
        text: new text; may be empty.
        token_ids: the tokens that came with it.
        index: which of the request's samples it belongs to.
        logprobs: of the tokens, when asked for.
        result: the finished request, in the last event; None before.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    index: int = 0
    logprobs: list[PositionLogprobs] | None = None
    result: RequestResult | None = None


TIMES = ("arrival", "scheduled", "first_token", "finished")
"""When things happened, on the engine's clock."""


def _timing_record(timings: Timings | None) -> dict[str, object]:
    names = [*TIMES, *(f"{name}_s" for name in PER_REQUEST)]
    if timings is None:
        return {**dict.fromkeys(names)}
    record: dict[str, object] = {name: _rounded(getattr(timings, name)) for name in names}
    if timings.itl_s is not None:
        record["itl_s"] = [_rounded(gap) for gap in timings.itl_s]
    return record


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def refused(
    request_id: str,
    error: str,
    prompt: str | None = None,
    reason: FinishReason = FinishReason.REFUSED,
    retry_after_s: float | None = None,
) -> RequestResult:
    """The result of a request that was never accepted."""
    return RequestResult(
        request_id=request_id,
        prompt=prompt,
        outputs=[Completion(finish_reason=reason)],
        error=error,
        retry_after_s=retry_after_s,
    )


def make_timings(
    outputs: Sequence[RequestOutput], last: RequestOutput, num_tokens: int, times: Sequence[float]
) -> Timings:
    """The timings of a finished request.

    Args:
        outputs: of all its samples.
        last: of the sample that ended last, which has `num_tokens` tokens.
        times: when each of them came, on the engine's clock; empty when they were not noted.
    """
    gaps = tuple(late - early for early, late in pairwise(times))
    return Timings(
        arrival=last.arrival,
        scheduled=min((o.scheduled for o in outputs if o.scheduled is not None), default=None),
        first_token=min(
            (o.first_token for o in outputs if o.first_token is not None), default=None
        ),
        finished=last.finished,
        num_output_tokens=num_tokens,
        itl_s=gaps if times else None,
    )
