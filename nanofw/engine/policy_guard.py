"""Calls into a policy: what it raises, or answers wrongly, becomes a `PolicyError`."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar, cast

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.requests import FinishReason
from nanofw.contracts.scheduler import Policy, RunningView, SchedulerView, SortKey, check_chunk
from nanofw.engine.request_state import RequestState
from nanofw.errors import PolicyError

T = TypeVar("T")


class PolicyGuard:
    """One policy, its hooks that are overridden, and the errors of those that fail.

    Attributes:
        policy: the policy itself.
        orders_groups, admits, cuts, names_victims, hears_progress: the hook is overridden; the
            others are not called at all.
    """

    def __init__(self, policy: Policy, describe: Callable[[], str]) -> None:
        self.policy = policy
        self._describe = describe
        for name in ("window", "skip_ahead"):
            value: Any = getattr(policy, name)
            if type(value) is not int or value < 0:
                raise PolicyError(
                    f"scheduler {type(policy).__name__}: {name} is {value!r}; it must be an "
                    "integer, 0 or greater"
                )
        kind = type(policy)
        self.orders_groups = kind.group is not Policy.group
        self.admits = kind.admit is not Policy.admit
        self.cuts = kind.chunk is not Policy.chunk
        self.names_victims = kind.victim is not Policy.victim
        self.hears_progress = kind.on_progress is not Policy.on_progress

    def error(self, text: str) -> PolicyError:
        """A `PolicyError` that names the policy and shows the moment of the decision."""
        return PolicyError(f"scheduler {type(self.policy).__name__}: {text}\n  {self._describe()}")

    def call(self, name: str, method: Callable[..., T], *args: Any) -> T:
        """The method's answer; what it raises is named after the hook."""
        try:
            return method(*args)
        except PolicyError:
            raise
        except Exception as error:
            raise self.error(
                f"{name}() raised {type(error).__name__}: {error}{_place(error)}"
            ) from error

    def key(self, state: RequestState, now: float) -> SortKey:
        return self._checked("key", self.call("key", self.policy.key, state.view, now))

    def _checked(self, name: str, key: SortKey) -> SortKey:
        if type(key) is not int and _has_no_order(key):
            raise self.error(f"{name}() returned {key!r}, which has no order")
        return key

    def group(self, state: RequestState) -> Hashable:
        if not self.orders_groups:
            return None
        group = self.call("group", self.policy.group, state.view)
        self.call("group", hash, group)
        return group

    def group_key(self, group: Hashable, now: float) -> SortKey:
        key = self.call("group_key", self.policy.group_key, group, now)
        return self._checked("group_key", key)

    def window_order(self, states: Sequence[RequestState], view: SchedulerView) -> list[int]:
        """Indices of the states in the order of their keys in the window."""
        views = [state.view for state in states]
        keys = self.call("window_key", lambda: list(self.policy.window_key(views, view)))
        if len(keys) != len(states):
            raise self.error(f"window_key() gave {len(keys)} keys for {len(states)} requests")
        order = range(len(states))
        return self.call(
            "window_key", lambda: sorted(order, key=lambda i: (keys[i], states[i].queue_key))
        )

    def admit(self, state: RequestState, view: SchedulerView) -> bool:
        return not self.admits or bool(self.call("admit", self.policy.admit, state.view, view))

    def chunk(self, state: RequestState, view: SchedulerView) -> int | None:
        chunk = self.call("chunk", self.policy.chunk, state.view, view) if self.cuts else None
        if chunk is None:
            return None
        try:
            return check_chunk(chunk)
        except ValueError as error:
            raise self.error(f"{error} (for {state.view!r})") from None

    def victim(self, running: RunningView, for_request: RequestState | None) -> int | None:
        """A row that is running, or None."""
        view = for_request.view if for_request is not None else None
        row = self.call("victim", self.policy.victim, running, view)
        if row is None:
            return None
        rows: list[int] = running.rows.tolist()
        if isinstance(row, bool) or row not in rows:
            raise self.error(f"victim() named row {row!r}; running rows are {sorted(rows)}")
        return int(row)

    def is_smaller(self, key: SortKey, other: SortKey) -> bool:
        """Whether a key is smaller than another."""
        return self.call("key", lambda: bool(key < other))

    def on_arrival(self, state: RequestState, now: float) -> None:
        self.call("on_arrival", self.policy.on_arrival, state.view, now)

    def on_start(self, row: int, state: RequestState, now: float) -> None:
        self.call("on_start", self.policy.on_start, row, state.view, now)

    def on_preempt(self, row: int, state: RequestState, now: float) -> None:
        self.call("on_preempt", self.policy.on_preempt, row, state.view, now)

    def on_progress(self, rows: IntArray, num_tokens: IntArray, num_decodes: int) -> None:
        if self.hears_progress:
            hook = self.policy.on_progress
            self.call("on_progress", hook, rows, num_tokens, num_decodes)

    def on_finish(self, state: RequestState, reason: FinishReason, now: float) -> None:
        self.call("on_finish", self.policy.on_finish, state.view, reason, now)


def _has_no_order(key: SortKey) -> bool:
    """Whether `<` fails, or means nothing: NaN is neither before nor after a number."""
    try:
        _ = key < key
        parts = cast("Sequence[Any]", key) if isinstance(key, (tuple, list)) else (key,)
        return any(bool(part != part) for part in parts)
    except Exception:
        return True


def _place(error: Exception) -> str:
    """The last line of the policy's file on the way to an error: ` (my_policy.py, line 12)`."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    if not frames:
        return ""
    last = [frame for frame in frames if frame.filename == frames[0].filename][-1]
    return f" ({os.path.basename(last.filename)}, line {last.lineno})"
