"""Contract `scheduler/2` (stable): whom to serve first.

A minimal policy:

    class ShortestPromptFirst(Policy):
        def key(self, request, view):
            return request.num_prompt_tokens

The policy proposes, the core disposes. The core owns queues, budgets, chunking, preemption and
the accounting of blocks; a policy orders requests and may, if it wants to, admit, cut, pause,
refuse and give up. Whatever it answers, no block leaks, no budget is exceeded and no request is
lost: nonsense is a `PolicyError` that shows the decision.
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
        reason: the sentence for the request's user.
        retry_after_s: when it may be worth to try again, in seconds from now, if that is known.
    """

    reason: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Facts that a policy is built with, beside its options.

    Attributes:
        name: what the configuration calls the policy.
        limits: the bounds of a step; None where a policy is built outside of a run.
    """

    name: str = ""
    limits: Limits | None = None


class Policy(ABC):
    """Base of scheduling policies. Only `key` must be written.

    A policy may keep state of its own. It is called from one thread and never concurrently. A
    hook that is not overridden is never called. `view` is the last argument of every hook that
    decides something or is told something; it is valid during that call.

    Constructed as `target(options, SchedulerConfig)`.

    Attributes:
        options: its validated options, None where the descriptor names none.
        config: what it was built with.
        window: when positive, the first `window` waiting requests by `key` get new keys from
            `window_key` in each step that could admit one: for keys that change without an
            event. Bounds the cost of a step.
        skip_ahead: how many requests past a head that does not fit may be tried in one step.
            0: the core stops at the head, so that no request overtakes it.
        max_rekeys: how many requests `rekey` may name before one step.
    """

    window: int = 0
    skip_ahead: int = 0
    max_rekeys: int = 0

    def __init__(self, options: Any = None, config: SchedulerConfig | None = None) -> None:
        self.options = options
        self.config: SchedulerConfig = config or SchedulerConfig()

    def check(self, arguments: Any) -> None:
        """Raise ValueError with the allowed values when a request's arguments are wrong.

        `arguments` is what the request carries under the policy's name; None: it carries
        nothing.
        """
        if arguments is not None:
            raise ValueError("this policy takes no arguments")

    @abstractmethod
    def key(self, request: RequestView, view: SchedulerView) -> SortKey | Refuse:
        """The request's key; smaller is served first.

        Called when the request arrives, when it returns after a preemption, and when `rekey`
        names it; not again while it waits: a step costs O(what runs, times the logarithm of
        what waits). Keys must be comparable with each other. Among equals, preempted requests
        come before those that never started, then the earlier arrival. Linear ageing is a
        static key: `cost + weight * request.arrival` orders as `cost - weight * waited` does
        at any time.

        `Refuse` ends the request. A running request cannot be refused. An exception here, when
        the request arrives, refuses that request alone.
        """

    def group(self, request: RequestView) -> Hashable:
        """The group that the request queues in, for example its client. One heap per group.

        Called once for each request, after `on_arrival` and before `key`.
        """
        return None

    def group_key(self, group: Hashable, view: SchedulerView) -> SortKey:
        """The key of a group that has waiting requests; the smallest is served first.

        Read anew when the group is about to be served, so it may grow at any time; it must not
        shrink while the group has waiting requests. Only called when `group` is overridden.
        """
        return 0

    def window_key(
        self, requests: Sequence[RequestView], view: SchedulerView
    ) -> Sequence[SortKey | Refuse]:
        """New keys of the first `window` waiting requests, one each, in their order."""
        return range(len(requests))

    def rekey(self, view: SchedulerView) -> Iterable[RequestView]:
        """Requests, waiting or running, for which `key` is called anew before this step.

        At most `max_rekeys`. A waiting request moves to its new place in the queue, or is
        refused. The key of a running one decides whom a waiting request may replace and who
        gives way first. With `group`, a waiting request stays in its group.
        """
        return ()

    def admit(self, request: RequestView, view: SchedulerView) -> bool | Refuse:
        """Whether the request may enter now, though the core has room for it.

        False makes it a head that does not fit (see `skip_ahead`). When nothing runs and no
        request is admitted, `wake` says when to ask again.
        """
        return True

    def chunk(self, request: RequestView, view: SchedulerView) -> int | None:
        """Most prefill tokens of the request in this step, at least 1; None: as configured."""
        return None

    def step_budget(self, view: SchedulerView) -> int | None:
        """Most tokens of this step; None: as configured, which it cannot exceed.

        Rows that decode come first, in order of admission; those beyond the budget wait a
        step. The rest is for prefill: a budget of `view.num_decoding` allows none.
        """
        return None

    def pause(self, view: SchedulerView) -> Iterable[int]:
        """Rows that do not run in this step. They keep their row and their KV.

        A paused request gives up its blocks before others when the pool is short. When every
        row is paused and nothing else runs, `wake` says when to ask again.
        """
        return ()

    def victim(self, for_request: RequestView | None, view: SchedulerView) -> int | None:
        """The row to give up, or None.

        `for_request` None: the pool is short for the running requests. None lets the core
        choose: a paused request before others, then the greatest key, the latest arrival among
        equals. Otherwise: a waiting request with a smaller key than some running one does not
        fit; only rows of a greater key than its own may be named. None leaves it waiting, and
        is what the base class answers.
        """
        return None

    def wake(self, view: SchedulerView) -> float | None:
        """When to ask again, in seconds on the engine's clock, later than `view.now`.

        Called when nothing runs and no request was admitted. None: nothing will change, which
        is a `PolicyError`.
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
        """int32[n] rows and the tokens that each computes in the plan just made. Once a step.

        The first `num_decodes` rows generate; the rest compute prompts, or recompute after a
        preemption. `on_start` of each row was called before. The arrays are read-only.
        """

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        """The request finished, whether it ran or not. Once for each that `on_arrival` saw.

        It has its result: what is raised here is logged, and changes nothing.
        """
