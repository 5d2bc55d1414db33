"""Service in virtual time: what policies share that divide the engine between groups.

A group's counter grows with the service that it gets, divided by its weight; the smallest is
served next. A group that comes back after a pause is lifted to the virtual time, which is the
counter of the group served last: a pause earns no credit. As in the virtual token counters of
Sheng et al. (OSDI 2024, arXiv 2401.00588), with the virtual time of start-time fair queueing
(Goyal, Vin, Cheng, SIGCOMM 1996) in place of the minimum over all waiting groups.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable

import numpy as np

from nanofw.plugins import (
    FinishReason,
    IntArray,
    Options,
    Policy,
    RequestView,
    SchedulerConfig,
    SchedulerView,
)

MAX_GROUPS = 4096
"""Groups whose counters are kept; names of clients are what requests say."""


class WeightedService(Policy):
    """Base of policies that serve the group with the smallest counter.

    A subclass says which `group` a request is of, its `weight`, and the order within (`key`).
    A prompt is charged when its request starts, each generated token when it is planned; what a
    preemption makes compute again costs nothing. Of more than `MAX_GROUPS` groups, those that
    have no request and were served least are forgotten, and the virtual time is lifted to their
    counters: who comes back under a forgotten name, or a new one, has gained nothing.
    """

    def __init__(
        self,
        options: Options,
        config: SchedulerConfig | None,
        *,
        input_cost: float,
        output_cost: float,
    ) -> None:
        super().__init__(options, config)
        self._input_cost, self._output_cost = input_cost, output_cost
        self._index: dict[Hashable, int] = {}
        self._free: list[int] = []
        """Places of forgotten groups."""
        self._served = np.zeros(16)
        self._scale = np.ones(16)
        self._of_row = np.zeros(16, np.int64)
        self._num_waiting: IntArray = np.zeros(16, np.int32)
        self._num_running: IntArray = np.zeros(16, np.int32)
        self._virtual_time = 0.0

    @abstractmethod
    def group(self, request: RequestView) -> Hashable: ...

    @abstractmethod
    def weight(self, group: Hashable) -> float:
        """Share of the group against the others; greater than 0. Asked once for each group."""

    def num_waiting(self, group: Hashable) -> int:
        """Requests of the group that wait."""
        index = self._index.get(group)
        return 0 if index is None else int(self._num_waiting[index])

    def request_over_share(self, view: SchedulerView) -> RequestView | None:
        """Who gives way so that running requests are shared as the weights say.

        None where it would not bring them closer to that: the group that is served next would
        have more of them for its weight than the group that has the most now.
        """
        (waiting,) = np.nonzero(self._num_waiting)
        if not len(waiting):
            return None
        neediest = waiting[np.argmin(self._served[waiting])]
        shares = self._num_running * self._scale
        largest = int(np.argmax(shares))
        if shares[largest] <= shares[neediest] + self._scale[neediest]:
            return None
        rows = view.running.rows
        return view.running.request(int(rows[self._of_row[rows] == largest][-1]))

    def group_key(self, group: Hashable, view: SchedulerView) -> float:
        return float(self._served[self._index[group]])

    def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
        self._wait(self.group(request))

    def on_start(self, row: int, request: RequestView, view: SchedulerView) -> None:
        index = self._index[self.group(request)]
        self._num_waiting[index] -= 1
        self._num_running[index] += 1
        self._virtual_time = max(self._virtual_time, float(self._served[index]))
        if not request.num_preemptions:
            cost = self._input_cost * request.num_prompt_tokens
            self._served[index] += cost * self._scale[index]
        if row >= len(self._of_row):
            self._of_row = np.resize(self._of_row, 2 * row)
        self._of_row[row] = index

    def on_preempt(self, row: int, request: RequestView, view: SchedulerView) -> None:
        self._num_running[self._index[self.group(request)]] -= 1
        self._wait(self.group(request))

    def on_progress(
        self, rows: IntArray, num_tokens: IntArray, num_decodes: int, view: SchedulerView
    ) -> None:
        if num_decodes:
            groups = self._of_row[rows[:num_decodes]]
            counts = np.bincount(groups, minlength=len(self._served))
            self._served += counts * (self._output_cost * self._scale)

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        counts = self._num_running if request.is_running else self._num_waiting
        counts[self._index[self.group(request)]] -= 1

    def _wait(self, group: Hashable) -> None:
        if group not in self._index:
            self._add(group)
        index = self._index[group]
        if self._num_waiting[index] == 0:
            self._served[index] = max(self._served[index], self._virtual_time)
        self._num_waiting[index] += 1

    def _add(self, group: Hashable) -> None:
        if not self._free and len(self._index) >= MAX_GROUPS:
            self._forget_groups()
        index = self._free.pop() if self._free else len(self._index)
        if index == len(self._served):
            self._served = np.concatenate((self._served, np.zeros(index)))
            self._scale = np.concatenate((self._scale, np.ones(index)))
            none = np.zeros(index, np.int32)
            self._num_waiting = np.concatenate((self._num_waiting, none))
            self._num_running = np.concatenate((self._num_running, none))
        self._scale[index] = 1.0 / self.weight(group)
        self._index[group] = index

    def _forget_groups(self) -> None:
        """Forget half of the groups that have no request, those that were served least."""
        idle = [
            (float(self._served[index]), index, group)
            for group, index in self._index.items()
            if not self._num_waiting[index] and not self._num_running[index]
        ]
        idle.sort(key=lambda one: one[:2])
        for served, index, group in idle[: (len(idle) + 1) // 2]:
            self._virtual_time = max(self._virtual_time, served)
            self._served[index] = 0.0
            self._free.append(index)
            del self._index[group]
