"""What a single engine and the router of several have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.clock import Clock, RealClock
from nanofw.contracts.limits import Limits
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.outputs import RequestOutput, StepOutput
from nanofw.contracts.requests import FinishReason, Request, SamplingParams
from nanofw.engine.request_checks import check_id, check_request, is_fixed
from nanofw.engine.request_state import derive_seed
from nanofw.errors import (
    NanofwError,
    PolicyError,
    RequestError,
    RequestShed,
    RouterError,
    refusal_reason,
    shown,
)
from nanofw.narrowing import JsonObject, Stats

if TYPE_CHECKING:
    from nanofw.engine.engine import Engine


class BaseEngine(ABC):
    """Takes requests of token ids, and gives their outputs step by step.

    Attributes:
        spec: the model's description.
        clock: the one that all times are from.

    Args:
        limits: what a single request may need.
        seed: of requests that bring none, with their submission index.
        plugin_names: plugins whose arguments requests may carry.
    """

    def __init__(
        self,
        spec: ModelSpec,
        clock: Clock,
        limits: Limits,
        *,
        seed: int = 0,
        plugin_names: set[str],
    ) -> None:
        self.spec = spec
        self.clock = clock
        self._limits, self._seed, self._plugin_names = limits, seed, plugin_names
        self._num_submitted = 0
        self._checked: SamplingParams | None = None  # those of the last request, if fixed
        self._num_steps: int = 0
        self._num_finished = dict.fromkeys(FinishReason, 0)
        self._failure: BaseException | None = None
        self._is_closed = False

    @property
    def max_model_len(self) -> int:
        """The largest number of tokens of a request, its prompt included."""
        return self._limits.max_model_len

    # -- requests -------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queue a request, or raise `RequestError` with the reason why it is refused.

        Raises `RequestShed`, which is one, where the policy refuses it.

        A refused request changes nothing but the submission index of those after it.
        """
        index = self._num_submitted
        self._num_submitted += 1
        try:
            check_id(request.id, is_used=self._has_request)
            tokens, limit = check_request(
                request, self.spec.vocab_size, self._plugin_names, self._limits, self._checked
            )
            self._checked = request.sampling if is_fixed(request.sampling) else None
            seed = request.sampling.seed
            seed = derive_seed(self._seed, index) if seed is None else int(seed)
            self._queue_request(request, tokens, limit, index, seed)
        except RequestShed:
            self._num_finished[FinishReason.SHED] += 1
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, NanofwError) and not isinstance(
                error, (ValueError, PolicyError, RouterError)
            ):
                self._failure = error  # what all requests share is lost
                raise
            self._num_finished[FinishReason.REFUSED] += 1
            raise RequestError(_id_text(request.id), refusal_reason(error)) from error

    @abstractmethod
    def _has_request(self, request_id: str) -> bool:
        """Whether a request of this id has not finished, or its output was not handed out yet."""

    @abstractmethod
    def _queue_request(
        self, request: Request, tokens: IntArray, limit: int, index: int, seed: int
    ) -> None:
        """Take a request that was checked. Raises ValueError when it cannot be served after all.

        Args:
            tokens: int32[t], the prompt.
            limit: most tokens that each sample may have in all.
            index: its place among all requests that were submitted.
        """

    @abstractmethod
    def abort_request(self, request_id: str) -> bool:
        """Finish a request in whatever state it is; its output comes with a later step.

        Returns whether there was one.
        """

    def finish_request(
        self, request_id: str, num_tokens: int, reason: FinishReason, sample_index: int = 0
    ) -> bool:
        """Finish a sample at `num_tokens` generated tokens, for a stop string found outside.

        Tokens past them reach neither output nor counters. Its output comes with a later
        step. Returns whether it was still live. Raises ValueError when `num_tokens` is negative.
        """
        if num_tokens < 0:
            raise ValueError(f"num_tokens is {num_tokens}; it must be at least 0")
        return self._finish_sample(request_id, num_tokens, reason, sample_index)

    @abstractmethod
    def _finish_sample(
        self, request_id: str, num_tokens: int, reason: FinishReason, sample_index: int
    ) -> bool:
        """Implements `finish_request`."""

    # -- the step -------------------------------------------------------------------------

    @property
    @abstractmethod
    def has_unfinished(self) -> bool:
        """Whether `step` still has something to do or to say."""

    @property
    def has_failed(self) -> bool:
        """Whether a step failed, so that no other is possible."""
        return self._failure is not None

    @abstractmethod
    def step(self) -> StepOutput:
        """What one step brought. Does nothing when there are no requests.

        Raises `PolicyError`, `AllocatorError` or `ExecutorError` when the run cannot go on;
        it cannot be stepped again afterwards, and `take_finished` has what was finished.
        """

    @property
    def has_strides(self) -> bool:
        """Whether `step_until` may take several steps at once."""
        return False

    def step_until(self, until: float) -> StepOutput:
        """A step, or several at once as far as none but the first begins at `until` or later."""
        return self.step()

    @abstractmethod
    def take_finished(self) -> list[RequestOutput]:
        """Outputs that no step handed out: after a failed step, what had finished before it."""

    # -- while idle -----------------------------------------------------------------------

    @property
    @abstractmethod
    def is_watchable(self) -> bool:
        """Whether it can fail while idle, so that `check_alive` is worth a call now and then."""

    @abstractmethod
    def check_alive(self) -> None:
        """Raise the error that stopped it while no step ran, if there is one; returns at once."""

    # -- facts ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def engines(self) -> Sequence[Engine]:
        """The engines of this process whose steps can be observed."""

    @property
    def is_simulated(self) -> bool:
        """Whether a modelled machine answers."""
        return not isinstance(self.clock, RealClock)

    @property
    def replica_problems(self) -> tuple[str | None, ...]:
        """By replica, why it does not serve now; None: it serves. Empty where there are none.

        Any thread may ask.
        """
        return ()

    # -- counters and the end -------------------------------------------------------------

    @abstractmethod
    def stats(self) -> Stats:
        """Counters and gauges, by name; see `Counters` and `AllocatorStats`."""

    def _request_stats(self) -> JsonObject:
        """The part of `stats` that counts requests from their submission to their output."""
        finished = {reason.value: count for reason, count in self._num_finished.items()}
        return {"num_submitted": self._num_submitted, "num_finished": MappingProxyType(finished)}

    def close(self) -> None:
        """Give back devices and processes. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._close()

    @abstractmethod
    def _close(self) -> None:
        """Implements `close`; called once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _id_text(request_id: object) -> str:
    """The id of a refused request, whatever it is."""
    return request_id if isinstance(request_id, str) else shown(request_id)
