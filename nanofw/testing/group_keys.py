"""Keys of a policy's groups, watched while requests are served."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

from nanofw.contracts.requests import FinishReason
from nanofw.contracts.scheduler import Policy, RequestView, SchedulerView, SortKey

Sample: TypeAlias = tuple[int, int]
"""Index of a request, and which of its samples."""


class WatchedGroups:
    """Reads the keys of all groups that have waiting requests whenever the engine asks for one.

    It stands between the engine and the policy: hooks of the policy's object are replaced by
    ones that note who waits and then call it.

    Attributes:
        shrunk: a sentence for each key that became smaller while its group waited.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._group, self._group_key = policy.group, policy.group_key
        self._on_arrival, self._on_finish = policy.on_arrival, policy.on_finish
        self._on_start, self._on_preempt = policy.on_start, policy.on_preempt
        self._arrived: Sample | None = None  # the engine asks for its group next
        self._groups: dict[Sample, Hashable] = {}  # of all live requests
        self._waiting: dict[Hashable, set[Sample]] = {}
        self._keys: dict[Hashable, SortKey] = {}
        self.shrunk: list[str] = []
        hooks = ("group", "group_key", "on_arrival", "on_start", "on_preempt", "on_finish")
        for name in hooks:
            setattr(policy, name, getattr(self, name))

    def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
        self._on_arrival(request, view)
        self._arrived = _sample(request)

    def group(self, request: RequestView) -> Hashable:
        sample, group = _sample(request), self._group(request)
        if sample == self._arrived:  # otherwise the policy asks itself
            self._arrived = None
            self._groups[sample] = group
            self._waiting.setdefault(group, set()).add(sample)
        return group

    def group_key(self, group: Hashable, view: SchedulerView) -> SortKey:
        for other in self._waiting:
            self._note(other, self._group_key(other, view), view.now)
        return self._group_key(group, view)

    def on_start(self, row: int, request: RequestView, view: SchedulerView) -> None:
        self._leave_queue(_sample(request))
        self._on_start(row, request, view)

    def on_preempt(self, row: int, request: RequestView, view: SchedulerView) -> None:
        sample = _sample(request)
        self._waiting.setdefault(self._groups[sample], set()).add(sample)
        self._on_preempt(row, request, view)

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        self._leave_queue(_sample(request))
        self._groups.pop(_sample(request), None)
        self._on_finish(request, reason, view)

    def _leave_queue(self, sample: Sample) -> None:
        group = self._groups.get(sample)
        waiting = self._waiting.get(group, set[Sample]())
        waiting.discard(sample)
        if not waiting:
            self._waiting.pop(group, None)
            self._keys.pop(group, None)

    def _note(self, group: Hashable, key: SortKey, now: float) -> None:
        before = self._keys.get(group)
        if before is not None and key < before:
            self.shrunk.append(
                f"group_key({group!r}) was {before!r} and {key!r} at {now:g} s, while requests of "
                "the group waited"
            )
        self._keys[group] = key


def _sample(request: RequestView) -> Sample:
    return request.index, request.sample_index
