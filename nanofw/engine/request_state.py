"""What the scheduler keeps of requests: one object each, and arrays over the running rows."""

from __future__ import annotations

from enum import Enum
from typing import Any

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.outputs import RequestOutput, TokenLogprobs
from nanofw.contracts.requests import FinishReason, Request

_MASK = (1 << 64) - 1
MAX_ORDER = 1 << 20
"""More samples than a request may ask for."""

SAMPLE_SEPARATOR = "\x1f"
"""Stands in the keys of samples, hence in no id."""


def sample_key(request_id: str, sample_index: int) -> str:
    """Names one sample of a request among all live ones: the first has the request's id."""
    return f"{request_id}{SAMPLE_SEPARATOR}{sample_index}" if sample_index else request_id


def derive_seed(engine_seed: int, index: int) -> int:
    """64-bit seed of a request without one (SplitMix64 finalizer, Steele et al. 2014)."""
    z = (engine_seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1B54A32D192ED03) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Status(Enum):
    """Where a request is. A preempted one is waiting again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class RequestState:
    """One accepted request. Written by the scheduler alone.

    Attributes:
        key: names it among all live ones: the request's id, then the sample's number.
        tokens: int32[t], all known tokens, while it does not run (a row's are in `Rows`).
        limit: most tokens that it may have in all, prompt included.
        rank: `(key, 0 if preempted else 1, arrival, order)`, smaller is served first.
        row: its row while it runs, else -1.
        host: host processors constrain it.
    """

    __slots__ = (
        "arrival",
        "error",
        "finish_reason",
        "finished",
        "first_token",
        "group",
        "host",
        "index",
        "key",
        "limit",
        "logprobs",
        "num_cached",
        "num_computed_before",
        "num_output",
        "num_preemptions",
        "num_prompt",
        "num_recomputed",
        "num_recovered",
        "order",
        "prompt_logprobs",
        "rank",
        "request",
        "row",
        "sample_index",
        "scheduled",
        "seed",
        "status",
        "tokens",
        "view",
    )

    def __init__(
        self,
        request: Request,
        tokens: IntArray,
        *,
        index: int,
        arrival: float,
        limit: int,
        seed: int,
        sample_index: int = 0,
        host: bool = False,
    ) -> None:
        self.request = request
        self.key = sample_key(request.id, sample_index)
        self.tokens = tokens
        self.index = index
        self.arrival = arrival
        self.limit = limit
        self.seed = seed
        self.sample_index = sample_index
        self.host = host
        self.num_prompt = len(tokens)
        self.num_output = 0
        self.status = Status.WAITING
        self.row = -1
        self.order = index * MAX_ORDER + sample_index  # unique, where ranks tie
        self.rank: tuple[Any, int, float, int] = (0, 1, arrival, self.order)
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.group: Any = None
        self.num_preemptions = 0
        self.num_cached = 0
        self.num_computed_before = 0  # when it was last preempted
        self.num_recomputed = 0
        self.num_recovered = 0
        self.scheduled: float | None = None
        self.first_token: float | None = None
        self.finished: float | None = None
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self.view = StateView(self)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log probabilities of its prompt are still missing: of the first sample alone,
        since those of its siblings are the same."""
        if self.request.sampling.prompt_logprobs is None or self.sample_index:
            return False
        return sum(len(part) for part in self.prompt_logprobs) < self.num_prompt - 1

    def output(self) -> RequestOutput:
        """The finished request as its user sees it."""
        assert self.finish_reason is not None
        assert self.finished is not None
        token_ids = self.tokens[self.num_prompt :].copy()  # a view would keep the prompt alive
        logprobs = TokenLogprobs.joined(self.logprobs) if self.logprobs else None
        prompt = TokenLogprobs.joined(self.prompt_logprobs) if self.prompt_logprobs else None
        return RequestOutput(
            id=self.request.id,
            sample_index=self.sample_index,
            token_ids=token_ids,
            logprobs=logprobs.cut(len(token_ids)) if logprobs is not None else None,
            prompt_logprobs=prompt,
            finish_reason=self.finish_reason,
            num_prompt_tokens=self.num_prompt,
            error=self.error,
            num_cached_tokens=self.num_cached,
            num_preemptions=self.num_preemptions,
            num_recomputed_tokens=self.num_recomputed,
            num_recovered_tokens=self.num_recovered,
            arrival=self.arrival,
            scheduled=self.scheduled,
            first_token=self.first_token,
            finished=self.finished,
        )


class StateView:
    """A request as policies see it: implements `RequestView`."""

    __slots__ = ("_state",)

    def __init__(self, state: RequestState) -> None:
        self._state = state

    @property
    def id(self) -> str:
        return self._state.request.id

    @property
    def index(self) -> int:
        return self._state.index

    @property
    def arrival(self) -> float:
        return self._state.arrival

    @property
    def client(self) -> str:
        return self._state.request.client

    @property
    def priority(self) -> int:
        return self._state.request.priority

    @property
    def deadline(self) -> float | None:
        return self._state.request.deadline

    @property
    def num_prompt_tokens(self) -> int:
        return self._state.num_prompt

    @property
    def num_output_tokens(self) -> int:
        return self._state.num_output

    @property
    def max_tokens(self) -> int:
        return self._state.limit - self._state.num_prompt

    @property
    def expected_output_tokens(self) -> int | None:
        return self._state.request.expected_output_tokens

    @property
    def num_preemptions(self) -> int:
        return self._state.num_preemptions

    @property
    def known_tokens(self) -> IntArray:
        """Token ids while it waits. Not part of what policies are promised."""
        return self._state.tokens

    def __repr__(self) -> str:
        return f"<request {self.id!r}: {self.num_prompt_tokens}+{self.num_output_tokens} tokens>"
