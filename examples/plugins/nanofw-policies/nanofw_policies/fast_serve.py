"""A skip-join multilevel feedback queue (Wu et al., "FastServe", arXiv 2305.05920)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nanofw.plugins import (
    FinishReason,
    IntArray,
    Options,
    Policy,
    RequestView,
    SchedulerConfig,
    SchedulerView,
)


class FastServeOptions(Options):
    """`scheduler: {name: fast_serve, ...}`."""

    levels: Annotated[int, Field(ge=2)] = 6
    """Queues, the first served first."""
    quantum: Annotated[int, Field(ge=1)] = 64
    """Tokens that a request may compute on the first level; each level doubles it."""
    max_batch: Annotated[int, Field(ge=1)] = 16
    """Rows that run in a step. The others of `engine.max_num_seqs` are paused and keep their KV."""
    promote_after_s: Annotated[float, Field(gt=0)] = 30.0
    """A request that is paused or waits this long without a token returns to the first level."""


class FastServe(Policy):
    """Short jobs pass long ones, though no length is known.

    A request enters on the first level whose quantum holds its prompt (skip-join), goes one
    level down when it has used its quantum up, and returns to the top when it starves.
    """

    max_rekeys = 256

    def __init__(self, options: FastServeOptions, config: SchedulerConfig | None) -> None:
        super().__init__(options, config)
        self._options = options
        self._level: dict[RequestView, int] = {}  # of live requests, in order of arrival
        self._used: dict[RequestView, int] = {}
        self._last_run: dict[RequestView, float] = {}

    def key(self, request: RequestView, view: SchedulerView) -> tuple[int, float]:
        return self._level[request], request.arrival

    def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
        level = 0
        while level < self._options.levels - 1 and request.num_prompt_tokens > self._quantum(level):
            level += 1
        self._level[request], self._used[request], self._last_run[request] = level, 0, view.now

    def rekey(self, view: SchedulerView) -> list[RequestView]:
        moved: list[RequestView] = []
        for request, level in self._level.items():
            starved = view.now - self._last_run[request] > self._options.promote_after_s
            used_up = self._used[request] >= self._quantum(level)
            if level and starved:
                self._move(request, 0, view.now)
            elif used_up and level < self._options.levels - 1:
                self._move(request, level + 1, self._last_run[request])
            else:
                continue
            moved.append(request)
            if len(moved) == self.max_rekeys:
                break
        return moved

    def pause(self, view: SchedulerView) -> list[int]:
        running = view.running
        order = sorted(running.rows.tolist(), key=running.key)
        return order[self._options.max_batch :]

    def victim(self, for_request: RequestView | None, view: SchedulerView) -> int | None:
        """The row of the lowest level; for a waiting request only if it is better than that."""
        return max(view.running.rows.tolist(), key=view.running.key)

    def on_progress(
        self, rows: IntArray, num_tokens: IntArray, num_decodes: int, view: SchedulerView
    ) -> None:
        for row, count in zip(rows.tolist(), num_tokens.tolist(), strict=True):
            request = view.running.request(row)
            self._used[request] += count
            self._last_run[request] = view.now

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        del self._level[request], self._used[request], self._last_run[request]

    def _quantum(self, level: int) -> int:
        return self._options.quantum << level

    def _move(self, request: RequestView, level: int, last_run: float) -> None:
        self._level[request], self._used[request], self._last_run[request] = level, 0, last_run
