"""What goes into the engine: a prompt as token ids, and how its continuation is sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import wraps
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

from nanofw.contracts.arrays import IntArray
from nanofw.errors import RequestError, RequestShed, near

Pooling: TypeAlias = Literal["last", "mean", "cls"]
"""Which hidden states of a prompt are its embedding: the last one, the mean, the first one."""
POOLINGS: tuple[str, ...] = get_args(Pooling)


class FinishReason(StrEnum):
    """Why a request finished.

    Attributes:
        STOP: an end token, a stop token, or a stop string that the text layer found.
        LENGTH: it reached `max_tokens`, the model's length or the size of the pool.
        ABORT: the caller asked for it.
        ERROR: its logits were not numbers, or a component failed.
        REFUSED: it could not be served and never started.
        SHED: the policy refused to serve it.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REFUSED = "refused"
    SHED = "shed"

    @property
    def is_served(self) -> bool:
        """Whether the request got what it asked for; with the other reasons it finished early."""
        return self in (FinishReason.STOP, FinishReason.LENGTH)

    @property
    def is_refused(self) -> bool:
        """Whether the request was turned away, by a check or by the policy."""
        return self in (FinishReason.REFUSED, FinishReason.SHED)

    @classmethod
    def of_refusal(cls, error: RequestError) -> FinishReason:
        """Why a request that was not accepted ended."""
        return cls.SHED if isinstance(error, RequestShed) else cls.REFUSED


_Class = TypeVar("_Class", bound=type)


def _names_its_fields(cls: _Class) -> _Class:
    """An unknown name of a field is an error that says which names there are."""
    known = [field.name for field in fields(cls)]
    construct = cast("Any", cls).__init__

    @wraps(construct)
    def init(self: Any, *args: Any, **values: Any) -> None:
        try:
            construct(self, *args, **values)
        except TypeError:
            for name in values:
                if name not in known:
                    hint = near(name, known, count=1) or f"; there are {', '.join(known)}"
                    raise TypeError(f"{cls.__name__} has no {name!r}{hint}") from None
            raise

    cast("Any", cls).__init__ = init
    return cls


@_names_its_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are sampled. Checked when the request is submitted.

    Attributes:
        temperature: 0 takes the most likely token; otherwise logits are divided by it.
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of most likely tokens with at least this probability.
        min_p: keep tokens whose probability is at least this share of the most likely token's.
        repetition_penalty: for tokens that occur in the prompt or in the output, positive logits
            are divided by it and negative logits multiplied by it; 1 changes nothing.
        presence_penalty: is subtracted from the logits of tokens that occur in the output.
        frequency_penalty: is subtracted once for each time that the token occurs in the output.
        logit_bias: numbers that are added to the logits of these tokens.
        bad_words: sequences of token ids that the output must not contain; `LLM` and
            `AsyncLLM` replace words by their ids.
        max_tokens: the largest number of tokens to generate; None: up to the model's length.
        min_tokens: before this number of tokens, no end token and no stop token is sampled.
        n: samples of the same prompt; each has its own random numbers.
        seed: start of the request's random numbers; None: derived from `engine.seed` and
            the submission index.
        logprobs: report the log probability of each sampled token and of this number of most
            likely ones, in the model's own distribution, before temperature, cuts, penalties and
            biases; None: no log probabilities.
        prompt_logprobs: the same for the prompt's tokens; such a request does not use the
            prefix cache. With several samples, the first sample has these log probabilities.
        stop_token_ids: further tokens that end the request; they are part of the output.
        ignore_eos: go on past the model's end tokens (`stop_token_ids` still end it).
        stop: texts that end the request, one or several. Only the text layer reads `stop` and the
            two fields below. When it finds a stop text, it calls `Engine.finish_request`.
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
        arrival: arrival time in seconds on the engine's clock; None: the time when it is added.
        client: who sent it, for policies that share between clients.
        priority: smaller is more urgent.
        deadline: when it should be finished, on the engine's clock, in seconds.
        expected_output_tokens: a guess of the output's length, for policies that order by it.
        stream: report the tokens of each step, not only the finished output.
        arguments: arguments for plugins, by the name of the plugin.
        cache_salt: requests with different salts share nothing in the prefix cache.
        pooling: how to pool the hidden states of the prompt, which are then reported; None: they
            are not reported. With `mean` and `cls` the whole prompt is computed, even if the prefix
            cache has a part of it.
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
    cache_salt: str = ""
    pooling: Pooling | None = None
