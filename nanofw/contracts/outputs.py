"""What comes out of the engine: token ids and numbers, no text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nanofw.contracts.arrays import EMPTY_INT, Float32Array, IntArray
from nanofw.contracts.requests import FinishReason, Request


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at t positions, of the model's own distribution.

    Attributes:
        token_logprobs: float32[t], the log probability of the token at each position.
        ranks: int32[t], the rank of this token: 1 is the most likely token.
        top_ids: int32[t, k], the most likely tokens, best first.
        top_logprobs: float32[t, k], the log probabilities of `top_ids`.
    """

    token_logprobs: NDArray[np.float32]
    ranks: IntArray
    top_ids: IntArray
    top_logprobs: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.token_logprobs)

    def cut(self, length: int) -> TokenLogprobs:
        """The first `length` positions."""
        return TokenLogprobs(
            self.token_logprobs[:length],
            self.ranks[:length],
            self.top_ids[:length],
            self.top_logprobs[:length],
        )

    def after(self, count: int) -> TokenLogprobs:
        """All but the first `count` positions."""
        return TokenLogprobs(
            self.token_logprobs[count:],
            self.ranks[count:],
            self.top_ids[count:],
            self.top_logprobs[count:],
        )

    @staticmethod
    def joined(parts: Sequence[TokenLogprobs]) -> TokenLogprobs:
        """Positions one after the other; at least one part."""
        return TokenLogprobs(
            np.concatenate([part.token_logprobs for part in parts]),
            np.concatenate([part.ranks for part in parts]),
            np.concatenate([part.top_ids for part in parts]),
            np.concatenate([part.top_logprobs for part in parts]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A finished request, or one of its `n` samples.

    Attributes:
        sample_index: which of the `n` samples it is.
        token_ids: the generated tokens, an end or stop token included.
        error: a sentence for the user when the reason is `error`, `refused` or `shed`.
        retry_after_s: if the policy refused the request: after how many seconds a new attempt may
            succeed; None: not known.
        logprobs: those of the generated tokens, if the request asks for them.
        prompt_logprobs: those of the prompt's tokens from the second on, if the request asks for
            them; the first sample has them.
        embedding: float32[hidden], the pooled hidden states of the prompt, if the request asks for
            them.
        num_cached_tokens: prompt tokens taken from the prefix cache at first admission.
        num_recomputed_tokens: tokens computed again after preemptions.
        num_recovered_tokens: tokens of a preempted request found in the cache on its return.
        arrival: when it arrived, in seconds on the engine's clock.
        scheduled: when a step first ran it; None if no step did.
        first_token: when its first token was committed; None if it has no token.
        finished: when it ended.
    """

    id: str
    token_ids: IntArray
    finish_reason: FinishReason
    num_prompt_tokens: int
    sample_index: int = 0
    error: str | None = None
    retry_after_s: float | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: TokenLogprobs | None = None
    embedding: Float32Array | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_recovered_tokens: int = 0
    arrival: float = 0.0
    scheduled: float | None = None
    first_token: float | None = None
    finished: float = 0.0

    @classmethod
    def of_unserved(
        cls,
        request: Request,
        reason: FinishReason,
        now: float,
        *,
        error: str | None = None,
        sample_index: int = 0,
        token_ids: IntArray = EMPTY_INT,
    ) -> RequestOutput:
        """The output of a request that finished outside an engine: refused, or its engine died."""
        return cls(
            id=request.id,
            token_ids=token_ids,
            finish_reason=reason,
            num_prompt_tokens=len(request.prompt_token_ids),
            sample_index=sample_index,
            error=error,
            arrival=now if request.arrival is None else request.arrival,
            finished=now,
        )


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """New tokens of a streaming request, and their log probabilities when asked for."""

    id: str
    token_ids: IntArray
    sample_index: int = 0
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A request that got a row in a step, or one of its samples.

    Attributes:
        arrival: when the request arrived, in seconds on the engine's clock.
        scheduled: when it was first admitted. For a request that returns after a preemption, this
            is earlier than the current step.
    """

    id: str
    sample_index: int
    arrival: float
    scheduled: float


@dataclass(slots=True, kw_only=True)
class StepReport:
    """Facts about one committed step.

    Attributes:
        step: the plan's number.
        admitted: requests that got a row in it, in the order in which they were admitted.
        num_prefill_tokens: tokens of prompts that it computed.
        num_decode_tokens: tokens that it computed for decoding rows.
        num_rows: rows that ran.
        num_running: requests that run after the commit.
        num_waiting: requests that wait after the commit.
        num_used_blocks: blocks owned by running requests after the commit.
        num_preemptions: number of requests that were preempted for the plan.
        num_waits: 1 if the plan had to wait for the step in flight because blocks were missing,
            otherwise 0.
        planned: when the plan was made, in seconds on the engine's clock.
        committed: when the step was committed.
    """

    step: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_rows: int
    num_running: int
    num_waiting: int
    num_used_blocks: int
    num_preemptions: int
    num_waits: int
    planned: float
    committed: float
    admitted: tuple[Admitted, ...] = ()


@dataclass(slots=True, kw_only=True)
class StepOutput:
    """The result of one `Engine.step`.

    Attributes:
        finished: requests that finished, in this order.
        deltas: new tokens of streaming requests.
        report: the committed step, or None when only planning happened.
        wake_at: if nothing runs, the time at which the policy asks to be called again, in seconds
            on the engine's clock; None: step again at once.
    """

    finished: list[RequestOutput] = field(default_factory=list[RequestOutput])
    deltas: list[TokenDelta] = field(default_factory=list[TokenDelta])
    report: StepReport | None = None
    wake_at: float | None = None
