"""Contract `scheduler/2` (stable): which request is served first.

A minimal policy:

    class ShortestPromptFirst(Policy):
        def key(self, request, view):
            return request.num_prompt_tokens

The policy proposes, the engine disposes. The engine owns queues, budgets, chunking, preemption and
the accounting of blocks. A policy orders requests; if it wants to, it also admits, cuts, pauses,
refuses and preempts them. Whatever it answers, no block leaks, no budget is exceeded and no request
is lost: a wrong answer is a `PolicyError` that shows the decision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.limits import Limits
from nanofw.contracts.requests import FinishReason
from nanofw.contracts.views import RequestView, RunningView, SchedulerView, SortKey

__all__ = [
    "Policy",
    "Refuse",
    "RequestView",
    "RunningView",
    "SchedulerConfig",
    "SchedulerView",
    "SortKey",
]


@dataclass(frozen=True, slots=True)
class Refuse:
    """An answer of `key`, `window_key` and `admit`: the request will not be served.

    It ends with `FinishReason.SHED`. On arrival it is never queued, and `Engine.add_request`
    raises `RequestShed`.

    Attributes:
        reason: the sentence for the user who sent the request.
        retry_after_s: after how many seconds the user may try again; None: not known.
    """

    reason: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Facts that a policy is constructed with, beside its options.

    Attributes:
        name: what the configuration calls the policy.
        limits: the bounds of a step; None where a policy is built outside of a run.
    """

    name: str = ""
    limits: Limits | None = None


class Policy(ABC):
    """Base of scheduling policies. Only `key` must be written.

    A policy may keep state of its own. It is called from one thread and never concurrently. A
    hook that is not overridden is never called. `view` is the last argument of nearly every hook;
    it is valid during that call.

    Constructed as `target(options, SchedulerConfig)`.

    Attributes:
        options: its validated options; None if the descriptor names no options.
        config: what it was constructed with.
        window: if this number is positive, the first `window` waiting requests by `key` get new
            keys from `window_key` in each step that could admit one. Use it for keys that change
            with time alone. The number limits the cost of a step.
        skip_ahead: if the head of the queue does not fit, the engine tries the requests behind it.
            It stops trying in this step when more than this number of them do not fit either. With
            0 the engine stops at a head that does not fit, so that no request overtakes it.
        max_rekeys: how many requests `rekey` may name before one step.
    """

    window: int = 0
    skip_ahead: int = 0
    max_rekeys: int = 0

    def __init__(self, options: Any = None, config: SchedulerConfig | None = None) -> None:
        self.options = options
        self.config: SchedulerConfig = config or SchedulerConfig()

    def check(self, arguments: Any) -> None:
        """Raise ValueError with the allowed values if the arguments of a request are wrong.

        `arguments` is what the request has under the policy's name; None if it has nothing.
        """
        if arguments is not None:
            raise ValueError("this policy takes no arguments")

    @abstractmethod
    def key(self, request: RequestView, view: SchedulerView) -> SortKey | Refuse:
        """The request's key; the request with the smallest key is served first.

        Called when the request arrives, when it returns after a preemption, and when `rekey`
        names it. It is not called again while the request waits. So a step costs O(r log w),
        with r running and w waiting requests. All keys must be comparable with each other. Among
        requests with equal keys, those that were preempted come before those that never
        started; after that, the one that arrived earlier comes first. Linear ageing needs no
        new keys: `cost + weight * request.arrival` gives the same order at any time as
        `cost - weight * waited`.

        `Refuse` ends the request. A running request cannot be refused. If this method raises an
        exception when the request arrives, that request alone is refused.
        """

    def group(self, request: RequestView) -> Hashable:
        """The group in whose queue the request waits, for example its client. Each group has a heap
        of its own.

        Called once for each request, after `on_arrival` and before `key`.
        """
        return None

    def group_key(self, group: Hashable, view: SchedulerView) -> SortKey:
        """The key of a group that has waiting requests; the smallest is served first.

        It is read again when the group is about to be served, so the key may grow at any time. It
        must not shrink while the group has waiting requests. So do not use a count that shrinks
        with time. If all counts shrink at the same rate, use `sum(tokens * exp(rate * time))`
        instead: it gives the same order and only grows. Store its logarithm, which does not
        overflow. Only called if `group` is overridden.
        """
        return 0

    def window_key(
        self, requests: Sequence[RequestView], view: SchedulerView
    ) -> Sequence[SortKey | Refuse]:
        """New keys for the first `window` waiting requests, one for each, in their order."""
        return range(len(requests))

    def rekey(self, view: SchedulerView) -> Iterable[RequestView]:
        """Requests, waiting or running, for which `key` is called again before this step.

        At most `max_rekeys`. A waiting request moves to its new place in the queue, or is
        refused. The key of a running request decides which waiting request may replace it, and
        which request is preempted first. With `group`, a waiting request stays in its group.
        """
        return ()

    def admit(self, request: RequestView, view: SchedulerView) -> bool | Refuse:
        """Whether the request may start now. The engine asks only when it has room for it.

        After False the request is treated like a head that does not fit (see `skip_ahead`). If
        nothing runs and no request is admitted, `wake` says when to ask again. The base class
        admits every request. `fcfs` leaves a share of the pool free (its option `watermark`): a
        policy that should do the same needs an `admit` of its own.
        """
        return True

    def chunk(self, request: RequestView, view: SchedulerView) -> int | None:
        """The largest number of prefill tokens that the request may have in this step, at least 1.

        None: the number from the configuration.
        """
        return None

    def step_budget(self, view: SchedulerView) -> int | None:
        """The largest number of tokens in this step.

        None: the number from the configuration; a larger answer is cut to that. Rows that
        decode come first, in order of admission; those beyond the budget wait a step. The rest
        is for prefill: with a budget of `view.num_decoding`, no prefill runs in this step.
        """
        return None

    def pause(self, view: SchedulerView) -> Iterable[int]:
        """Rows that do not run in this step. They keep their row and their KV.

        If the pool has too few blocks, a paused request gives up its blocks before others. If
        every row is paused and nothing else runs, `wake` says when to ask again.
        """
        return ()

    def victim(self, for_request: RequestView | None, view: SchedulerView) -> int | None:
        """The row whose request is preempted, or None. There are two cases.

        If `for_request` is None, the pool has too few blocks for the running requests. After
        the answer None the engine chooses: a paused request before others, then the greatest
        key, and among equal keys the latest arrival.

        Otherwise `for_request` is a waiting request that does not fit, and whose key is smaller
        than that of a running request. The answer may only be a row whose key is greater than the
        key of `for_request`. After the answer None, which the base class gives, the request keeps
        waiting.
        """
        return None

    def wake(self, view: SchedulerView) -> float | None:
        """When to ask again, in seconds on the engine's clock, later than `view.now`.

        Called if nothing runs and no request was admitted. None means that nothing will ever
        change; it is a `PolicyError`.
        """
        return None

    def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
        """The request was accepted; called just before `key`."""

    def on_start(self, row: int, request: RequestView, view: SchedulerView) -> None:
        """The request entered the running set in `row`, first or again."""

    def on_preempt(self, row: int, request: RequestView, view: SchedulerView) -> None:
        """The request left `row` and waits again; `key` is called next."""

    def on_progress(
        self, rows: IntArray, num_tokens: IntArray, num_decodes: int, view: SchedulerView
    ) -> None:
        """A plan was made: the row `rows[i]` computes `num_tokens[i]` tokens. Both arrays are
        int32[n].

        Called once for each step. The first `num_decodes` rows decode. The others compute
        prompts, or compute tokens again after a preemption; such a row also samples a token when
        it reaches the end of its known tokens. `request.num_output_tokens` says how many tokens
        a request has generated. `on_start` of each row was called before. The arrays
        are read-only. A simulated run that calls this method takes every step alone, which makes
        it slower.
        """

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        """The request finished, whether it ran or not. Called once for each request that arrived.

        It has its result already: an exception here is logged, and changes nothing.
        """
