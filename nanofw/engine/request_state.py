"""What the scheduler keeps of each request, and what policies see of it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field
from enum import Enum
from typing import Protocol

from nanofw.contracts.arrays import Float32Array, IntArray
from nanofw.contracts.outputs import RequestOutput, TokenLogprobs
from nanofw.contracts.requests import FinishReason, Request
from nanofw.contracts.scheduler import RequestView, SortKey
from nanofw.contracts.splitmix64 import GOLDEN, WORD, mix

MAX_ORDER = 1 << 20
"""Exclusive bound on the samples of a request; keeps `order` unique."""

SAMPLE_SEPARATOR = "\x1f"
"""Stands in the ids of samples, hence in no request's id."""


def sample_id(request_id: str, sample_index: int) -> str:
    """Names one sample of a request among all live ones: the first has the request's id."""
    return f"{request_id}{SAMPLE_SEPARATOR}{sample_index}" if sample_index else request_id


def derive_seed(engine_seed: int, index: int) -> int:
    """64-bit seed of a request without one."""
    return mix((engine_seed * GOLDEN + (index + 1) * 0xD1B54A32D192ED03) & WORD)


class RowCounts(Protocol):
    """The counts over rows that a view of a running request reads."""

    known: IntArray
    computed: IntArray


class RequestStatus(Enum):
    """Where a request is. A preempted one is waiting again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False, repr=False)
class RequestState:
    """One accepted request. Written by the scheduler alone.

    Attributes:
        tokens: int32[t], all known tokens, while it does not run (a row's are in `Rows`).
        limit: most tokens that it may have in all, prompt included.
        host: host processors constrain it.
        arguments: what the request carries for the policy.
        sample_id: names it among all live ones.
        order: unique, decides where keys are equal.
        queue_key: `(key, 0 if preempted else 1, arrival, order)`, smaller is served first.
        salt: keeps its prefix apart from those of other salts in the cache; 0: none.
        ticket: number of its entry in the queue; -1: it has none.
        is_known: the policy has heard of it, and not of its end.
        finished_in_row: it was running when it finished.
        row: its row while it runs, else -1.
        num_computed_before: positions computed when it was last preempted.
    """

    request: Request
    tokens: IntArray
    _: KW_ONLY
    index: int
    arrival: float
    limit: int
    seed: int
    sample_index: int = 0
    host: bool = False
    salt: int = 0
    arguments: InitVar[Mapping[str, object] | None] = None
    sample_id: str = field(init=False)
    order: int = field(init=False)
    queue_key: tuple[SortKey, int, float, int] = field(init=False)
    group: Hashable = field(default=None, init=False)
    ticket: int = field(default=-1, init=False)
    is_known: bool = field(default=False, init=False)
    finished_in_row: bool = field(default=False, init=False)
    status: RequestStatus = field(default=RequestStatus.WAITING, init=False)
    row: int = field(default=-1, init=False)
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs], init=False)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs], init=False)
    embedding: Float32Array | None = field(default=None, init=False)
    num_prompt: int = field(init=False)
    num_output: int = field(default=0, init=False)
    num_cached: int = field(default=0, init=False)
    num_preemptions: int = field(default=0, init=False)
    num_computed_before: int = field(default=0, init=False)
    num_recomputed: int = field(default=0, init=False)
    num_recovered: int = field(default=0, init=False)
    scheduled: float | None = field(default=None, init=False)
    first_token: float | None = field(default=None, init=False)
    finished: float | None = field(default=None, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    error: str | None = field(default=None, init=False)
    retry_after_s: float | None = field(default=None, init=False)
    view: StateView = field(init=False)

    def __post_init__(self, arguments: Mapping[str, object] | None) -> None:
        self.sample_id = sample_id(self.request.id, self.sample_index)
        self.num_prompt = len(self.tokens)
        self.order = self.index * MAX_ORDER + self.sample_index
        self.queue_key = (0, 1, self.arrival, self.order)
        self.view = StateView(self, arguments)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log probabilities of its prompt are still missing: of the first sample alone,
        since those of its siblings are the same."""
        if self.request.sampling.prompt_logprobs is None or self.sample_index:
            return False
        return sum(len(part) for part in self.prompt_logprobs) < self.num_prompt - 1

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether every position of its prompt is still wanted, so that cached ones do not do."""
        is_pooled = self.request.pooling in ("mean", "cls") and self.embedding is None
        return is_pooled or self.wants_prompt_logprobs

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
            embedding=self.embedding,
            finish_reason=self.finish_reason,
            num_prompt_tokens=self.num_prompt,
            error=self.error,
            retry_after_s=self.retry_after_s,
            num_cached_tokens=self.num_cached,
            num_preemptions=self.num_preemptions,
            num_recomputed_tokens=self.num_recomputed,
            num_recovered_tokens=self.num_recovered,
            arrival=self.arrival,
            scheduled=self.scheduled,
            first_token=self.first_token,
            finished=self.finished,
        )


class StateView(RequestView):
    """A request of the engine as policies see it.

    Attributes:
        state: the engine's own record. Not part of what policies are promised.
    """

    __slots__ = ("rows", "state")

    def __init__(self, state: RequestState, arguments: Mapping[str, object] | None) -> None:
        super().__init__(
            state.request,
            state.tokens,
            index=state.index,
            arrival=state.arrival,
            max_tokens=state.limit - state.num_prompt,
            sample_index=state.sample_index,
            salt=state.salt,
            arguments=arguments,
        )
        self.state: RequestState = state
        self.rows: RowCounts | None = None  # while it runs

    @property
    def num_output_tokens(self) -> int:
        if self.rows is None:
            return self.state.num_output
        return int(self.rows.known[self.state.row]) - self.state.num_prompt

    @property
    def num_computed_tokens(self) -> int:
        return 0 if self.rows is None else int(self.rows.computed[self.state.row])

    @property
    def num_preemptions(self) -> int:
        return self.state.num_preemptions

    @property
    def is_running(self) -> bool:
        return self.rows is not None or self.state.finished_in_row

    @property
    def row(self) -> int | None:
        return None if self.rows is None else self.state.row

    @property
    def scheduled(self) -> float | None:
        return self.state.scheduled

    @property
    def first_token(self) -> float | None:
        return self.state.first_token
