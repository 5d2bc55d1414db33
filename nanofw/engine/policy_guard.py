"""Calls into a policy: what it raises, or answers wrongly, becomes a `PolicyError`."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar, cast

from nanofw.contracts.arrays import IntArray, read_only
from nanofw.contracts.hooks import hook_problems
from nanofw.contracts.requests import FinishReason
from nanofw.contracts.scheduler import Policy, Refuse, RequestView, SortKey
from nanofw.engine.request_state import RequestState, StateView
from nanofw.engine.views import EngineView
from nanofw.errors import NanofwError, PolicyError, shown
from nanofw.plugin_calls import PluginCalls, integer_of, is_flag, number_of

T = TypeVar("T")


class PolicyGuard(PluginCalls):
    """One policy, its hooks that are overridden, and the errors of those that fail.

    Args:
        describe: the moment of a decision, for messages.
        label: the policy in messages.

    Attributes:
        policy: the policy itself.
        view: what it is shown; the scheduler sets its time and budget.
        orders_groups, admits, cuts, names_victims, hears_progress, rekeys, budgets, pauses: the
            hook is overridden; the others are not called at all.
    """

    def __init__(
        self, policy: Policy, view: EngineView, describe: Callable[[], str], label: str = ""
    ) -> None:
        kind = type(policy)
        super().__init__(label or f"scheduler {kind.__name__}", PolicyError)
        self.policy = policy
        self.view = view
        self._describe: Callable[[], str] | None = None
        problems = hook_problems(kind, Policy)
        for name in ("window", "skip_ahead", "max_rekeys"):
            value: object = self.call(name, getattr, policy, name)
            if type(value) is not int or value < 0:
                problems.append(f"{name} is {shown(value)}; it must be an integer, 0 or greater")
        if problems:
            raise self.error("; ".join(problems))
        self._describe = describe
        self.orders_groups: bool = kind.group is not Policy.group
        self.admits: bool = kind.admit is not Policy.admit
        self.cuts: bool = kind.chunk is not Policy.chunk
        self.names_victims: bool = kind.victim is not Policy.victim
        self.hears_progress: bool = kind.on_progress is not Policy.on_progress
        self.rekeys: bool = kind.rekey is not Policy.rekey
        self.budgets: bool = kind.step_budget is not Policy.step_budget
        self.pauses: bool = kind.pause is not Policy.pause

    def error(self, text: str) -> NanofwError:
        """A `PolicyError` that names the policy and shows the moment of the decision."""
        moment = f"\n  {self._describe()}" if self._describe is not None else ""
        return super().error(f"{text}{moment}")

    # -- what orders requests -------------------------------------------------------------

    def key(self, state: RequestState) -> SortKey | Refuse:
        return self._checked("key", self.call("key", self.policy.key, state.view, self.view))

    def _checked(self, name: str, key: SortKey) -> SortKey:
        if type(key) is Refuse:
            return self._checked_refusal(name, key)
        if type(key) is not int and _has_no_order(key):
            raise self.error(f"{name}() returned {shown(key)}, which has no order")
        return key

    def _checked_refusal(self, name: str, refusal: Refuse) -> Refuse:
        reason: Any = refusal.reason
        after: Any = refusal.retry_after_s
        if not isinstance(reason, str) or not reason:
            what = f"{name}() refused with the reason {shown(reason)}"
            raise self.error(f"{what}; it must be a sentence")
        if after is not None and not _is_time(after):
            what = f"{name}() refused with retry_after_s {shown(after)}"
            raise self.error(f"{what}; it must be a number")
        return refusal

    def group(self, state: RequestState) -> Hashable:
        if not self.orders_groups:
            return None
        group = self.call("group", self.policy.group, state.view)
        self.call("group", hash, group)
        return group

    def group_key(self, group: Hashable) -> SortKey:
        key = self.call("group_key", self.policy.group_key, group, self.view)
        if type(key) is Refuse:
            raise self.error("group_key() returned Refuse; only a request can be refused")
        return self._checked("group_key", key)

    def window_keys(self, states: Sequence[RequestState]) -> list[SortKey | Refuse]:
        """New keys of the states in the window."""
        views = [state.view for state in states]
        keys = self._listed("window_key", self.policy.window_key, len(views), views, self.view)
        if len(keys) != len(states):
            raise self.error(f"window_key() gave {len(keys)} keys for {len(states)} requests")
        return [self._checked("window_key", key) for key in keys]

    def rekey(self) -> list[RequestState]:
        """Live requests whose keys are to be asked for anew."""
        limit, named = self.policy.max_rekeys, dict[int, RequestState]()
        most = max(limit, self.view.num_running + self.view.num_waiting)
        for view in self._listed("rekey", self.policy.rekey, most, self.view):
            state = self._state(view)
            named[id(state)] = state
        if len(named) > limit:
            raise self.error(f"rekey() named {len(named)} requests; max_rekeys is {limit}")
        return list(named.values())

    def _state(self, view: RequestView) -> RequestState:
        state = view.state if isinstance(view, StateView) else None
        if state is None or not state.is_known:
            raise self.error(f"rekey() named {view!r}, which neither waits nor runs")
        return state

    # -- what runs ------------------------------------------------------------------------

    def admit(self, state: RequestState) -> bool | Refuse:
        if not self.admits:
            return True
        answer: object = self.call("admit", self.policy.admit, state.view, self.view)
        if type(answer) is Refuse:
            return self._checked_refusal("admit", answer)
        if not is_flag(answer):
            raise self.wrong("admit", answer, "True, False or Refuse")
        return bool(answer)

    def chunk(self, state: RequestState) -> int | None:
        if not self.cuts:
            return None
        chunk = self.call("chunk", self.policy.chunk, state.view, self.view)
        return None if chunk is None else self.integer("chunk", chunk, 1)

    def step_budget(self) -> int | None:
        budget = self.call("step_budget", self.policy.step_budget, self.view)
        return None if budget is None else self.integer("step_budget", budget, 0)

    def pause(self) -> list[int]:
        """Running rows that the policy pauses."""
        running = self.view.running.rows
        rows = self._listed("pause", self.policy.pause, len(running), self.view)
        return [self._row("pause", row, running) for row in rows]

    def victim(self, for_request: RequestState | None) -> int | None:
        """A row that is running, or None."""
        view = for_request.view if for_request is not None else None
        row = self.call("victim", self.policy.victim, view, self.view)
        return None if row is None else self._row("victim", row, self.view.running.rows)

    def wake(self) -> float | None:
        """When to ask again; None: the policy does not say, or names no later time."""
        at: object = self.call("wake", self.policy.wake, self.view)
        if at is None:
            return None
        if not _is_time(at):
            raise self.wrong("wake", at, "seconds on the engine's clock")
        return float(at) if at > self.view.now else None

    def is_smaller(self, key: SortKey, other: SortKey) -> bool:
        """Whether a key is smaller than another."""
        return self.call("key", lambda: bool(key < other))

    def _listed(
        self, name: str, hook: Callable[..., Iterable[T]], most: int, *arguments: object
    ) -> list[T]:
        """What a hook names, which may come without end."""
        found = self.call(name, lambda: list(islice(iter(hook(*arguments)), most + 1)))
        if len(found) > most:
            raise self.error(f"{name}() names more than {most}")
        return found

    def _row(self, name: str, row: object, rows: IntArray) -> int:
        """The row as a number, which must be one of the running `rows`."""
        number = integer_of(row)
        if number is None or not (rows == number).any():
            raise self.error(
                f"{name}() named row {shown(row)}; running rows are {sorted(rows.tolist())}"
            )
        return number

    # -- what it is told ------------------------------------------------------------------

    def on_arrival(self, state: RequestState) -> None:
        self.call("on_arrival", self.policy.on_arrival, state.view, self.view)

    def on_start(self, row: int, state: RequestState) -> None:
        self.call("on_start", self.policy.on_start, row, state.view, self.view)

    def on_preempt(self, row: int, state: RequestState) -> None:
        self.call("on_preempt", self.policy.on_preempt, row, state.view, self.view)

    def on_progress(self, rows: IntArray, num_tokens: IntArray, num_decodes: int) -> None:
        arrays = read_only(rows), read_only(num_tokens)
        self.call("on_progress", self.policy.on_progress, *arrays, num_decodes, self.view)

    def on_finish(self, state: RequestState, reason: FinishReason) -> None:
        """The request has its result: what the policy raises is logged, and changes nothing."""
        self.tell("on_finish", self.policy.on_finish, state.view, reason, self.view)


def _is_time(value: object) -> bool:
    number = number_of(value)
    return number is not None and math.isfinite(number)


def _has_no_order(key: SortKey) -> bool:
    """Whether `<` fails, or means nothing: NaN is neither before nor after a number."""
    if type(key) is float:
        return key != key
    try:
        _ = key < key
        parts = cast("Sequence[object]", key) if isinstance(key, (tuple, list)) else (key,)
        return any(bool(part != part) for part in parts)
    except Exception:
        return True
