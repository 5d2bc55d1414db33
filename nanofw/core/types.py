"""What goes into the engine and what comes out of it: token ids and numbers, no text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int32]
LongArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.float64]


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # an end token, a stop token, or a stop string found outside
    LENGTH = "length"  # max_tokens, the model's length or the pool's size
    ABORT = "abort"  # somebody asked for it
    ERROR = "error"  # numerical trouble or a failing component
    REFUSED = "refused"  # never accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are drawn. Checked when the request is submitted.

    Attributes:
        temperature: 0 takes the most likely token; otherwise logits are divided by it.
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of most likely tokens with at least this probability.
        min_p: keep tokens of at least this share of the most likely token's probability.
        repetition_penalty: divide positive logits, multiply negative ones, of tokens that the
            prompt or the output has; 1 changes nothing.
        presence_penalty: subtract from logits of tokens that the output has.
        frequency_penalty: subtract for each time that the output has the token.
        logit_bias: add to the logits of these tokens.
        bad_words: sequences of token ids that the output must not contain; the text side
            replaces words by their ids.
        max_tokens: most tokens to generate; None: up to the model's length.
        min_tokens: draw no end or stop token before so many tokens.
        n: samples of the same prompt; each has random numbers of its own.
        seed: start of the request's random numbers; None: derived from `engine.seed` and
            the submission index.
        logprobs: report the log probability of each drawn token and of so many most likely
            ones; None: none. Of the model's own distribution, before anything above.
        prompt_logprobs: the same for the prompt's tokens; such a request takes no cache hits.
            With several samples the first has them.
        stop_token_ids: further tokens that end the request; they are part of the output.
        ignore_eos: go on past the model's end tokens (`stop_token_ids` still end it).
        stop: texts that end the request, one or several. Like the two below it is read by the
            text side alone, which ends the request through `Engine.finish`.
        include_stop_str_in_output: the text ends with the stop string, or the stop token's text,
            instead of before it.
        skip_special_tokens: leave special tokens out of the text.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    bad_words: tuple[tuple[int, ...] | str, ...] = ()
    max_tokens: int | None = 16
    min_tokens: int = 0
    n: int = 1
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stop: Sequence[str] | str = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to continue.

    Attributes:
        id: unique among the live requests.
        prompt_token_ids: the prompt; not empty.
        arrival: when it arrived on the engine's clock, in seconds; None: when it is added.
        client: who sent it, for policies that share between clients.
        priority: smaller is more urgent.
        deadline: when it should be finished, on the engine's clock, in seconds.
        expected_output_tokens: a guess of the output's length, for policies that rank by it.
        stream: report the tokens of each step, not only the finished output.
        arguments: per-request arguments of logits processors, by their name.
    """

    id: str
    prompt_token_ids: Sequence[int] | IntArray
    sampling: SamplingParams = field(default_factory=SamplingParams)
    arrival: float | None = None
    client: str = ""
    priority: int = 0
    deadline: float | None = None
    expected_output_tokens: int | None = None
    stream: bool = False
    arguments: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at t positions, of the model's own distribution.

    Attributes:
        token_logprobs: float32[t], of the token that stands there.
        ranks: int32[t], how many tokens are more likely than it, plus one.
        top_ids: int32[t, k], the most likely tokens, best first.
        top_logprobs: float32[t, k], theirs.
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
        error: a sentence for the user when the reason is `error` or `refused`.
        logprobs: of the generated tokens, when asked for.
        prompt_logprobs: of the prompt's tokens from the second on, when asked for; the first
            sample has them.
        num_cached_tokens: prompt tokens taken from the prefix cache at first admission.
        num_recomputed_tokens: tokens computed again after preemptions.
        num_recovered_tokens: tokens of a preempted request found in the cache on its return.
        arrival, scheduled, first_token, finished: seconds on the engine's clock; None where
            the request never got so far.
    """

    id: str
    token_ids: IntArray
    finish_reason: FinishReason
    num_prompt_tokens: int
    sample_index: int = 0
    error: str | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: TokenLogprobs | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_recovered_tokens: int = 0
    arrival: float = 0.0
    scheduled: float | None = None
    first_token: float | None = None
    finished: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """New tokens of a streaming request, and their log probabilities when asked for."""

    id: str
    token_ids: IntArray
    sample_index: int = 0
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True, kw_only=True)
class StepReport:
    """Facts about one committed step.

    Attributes:
        step: the plan's number.
        num_prefill_tokens, num_decode_tokens: tokens computed in it.
        num_rows: rows that ran.
        num_running, num_waiting: after the commit.
        num_used_blocks: blocks owned by running requests after the commit.
        preemptions: victims of the plan.
        waited: the plan had to wait for the step in flight because room was short.
        planned, committed: seconds on the engine's clock.
    """

    step: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_rows: int
    num_running: int
    num_waiting: int
    num_used_blocks: int
    preemptions: int
    waited: bool
    planned: float
    committed: float


@dataclass(slots=True, kw_only=True)
class StepOutput:
    """What one `Engine.step` brought.

    Attributes:
        finished: requests that ended, in the order in which they did.
        deltas: new tokens of streaming requests.
        report: the committed step, or None when only planning happened.
    """

    finished: list[RequestOutput] = field(default_factory=list[RequestOutput])
    deltas: list[TokenDelta] = field(default_factory=list[TokenDelta])
    report: StepReport | None = None
