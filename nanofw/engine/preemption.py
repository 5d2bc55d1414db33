"""Who gives way, and when: for running requests short of blocks, or for a waiting one."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from nanofw.contracts.kv_allocator import Extension
from nanofw.contracts.scheduler import Refuse
from nanofw.engine.parts import Parts
from nanofw.engine.request_state import RequestState, RequestStatus


class Wait(Enum):
    """Room is short, and only a step that is not in flight may lose a row."""

    FOR_STEP_IN_FLIGHT = 1


class Preemption:
    """Gives up rows by recompute: tokens are kept, their KV is computed again later."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._limits, self._running = parts, parts.limits, parts.running
        self._guard, self._allocator = parts.guard, parts.allocator
        self._last_worst: tuple[int, RequestState | None] = (-1, None)  # for a running.version

    def make_room(self, most: int, *, in_flight: bool) -> Extension | Wait | None:
        """Blocks for one more token in each decoding row, after the pool was short of them.

        Victims give up theirs, and may be decoding rows; None: no row decodes any more.

        Args:
            most: rows that may decode in this step.
        """
        if in_flight:
            return Wait.FOR_STEP_IN_FLIGHT
        running, extension = self._running, None
        while extension is None and len(running.decoding):
            self._check_not_alone()
            self._give_up(self._victim_for_room(), self._short_rows())
            running.refresh(most)
            if len(running.decoding):
                extension = self._allocator.extend(running.decoding, running.starts + 1)
        return extension

    def make_way(self, *, in_flight: bool) -> Wait | None:
        """Give up rows for a waiting head whose key is smaller and that does not fit.

        For a policy that names victims.
        """
        while (entry := self._parts.queue.peek()) is not None and not self._fits(entry.state):
            head, key = entry.state, entry.key
            worst = self._worst()
            if worst is None or not self._guard.is_smaller(key, worst.queue_key[0]):
                return None
            row = self._guard.victim(head)
            if row is None:
                return None
            victim = self._running.rows.state(row)
            if not self._guard.is_smaller(key, victim.queue_key[0]):
                raise self._guard.error(
                    f"victim() gave up {victim.view!r} of key {victim.queue_key[0]!r} for "
                    f"{head.view!r} of key {key!r}, which is not smaller"
                )
            if in_flight:
                return Wait.FOR_STEP_IN_FLIGHT
            self._give_up(victim, [head])
        return None

    def _fits(self, state: RequestState) -> bool:
        if not self._running.rows.free:
            return False
        needed = self._limits.blocks_for(len(state.tokens))
        if needed <= self._allocator.num_available:
            return True
        return self._allocator.num_taken_by(state) <= self._allocator.num_available

    def _victim_for_room(self) -> RequestState:
        if self._guard.names_victims:
            row = self._guard.victim(None)
            if row is not None:
                return self._running.rows.state(row)
        if self._running.has_paused:
            paused, states = self._running.rows.paused, self._running.states()
            return self._guard.call(
                "key", lambda: max(states, key=lambda state: (paused[state.row], state.queue_key))
            )
        worst = self._worst()
        assert worst is not None
        return worst

    def _worst(self) -> RequestState | None:
        version, worst = self._last_worst
        if version != self._running.version:
            states = self._running.states()
            worst = self._guard.call(
                "key", lambda: max(states, key=lambda state: state.queue_key, default=None)
            )
            self._last_worst = self._running.version, worst
        return worst

    def _short_rows(self) -> list[RequestState]:
        """Running requests whose next token needs a block; none where it is not asked for."""
        if not self._parts.journal.is_read:
            return []
        running, size = self._running, self._limits.block_size
        short = running.decoding[running.starts % size == 0]
        return [running.rows.state(row) for row in short.tolist()]

    def _give_up(self, state: RequestState, needed_by: Sequence[RequestState]) -> None:
        row, parts = state.row, self._parts
        parts.journal.note_preemption(state, needed_by)
        computed = int(self._running.rows.computed[row])
        state.num_computed_before = max(state.num_computed_before, computed)
        self._running.remove_request(state)
        state.status = RequestStatus.WAITING
        state.num_preemptions += 1
        parts.counters.num_preemptions += 1
        refusal: Refuse | None = None
        try:
            self._guard.on_preempt(row, state)
        finally:
            refusal = parts.queue.push(state)
        if refusal is not None:
            parts.shed(state, refusal)

    def _check_not_alone(self) -> None:
        """A request that fits the pool alone must find its blocks when it runs alone."""
        if len(self._running) > 1:
            return
        state = self._running.states()[0]
        raise self._allocator.error(
            f"extend() gives no block to request {state.request.id!r}, which runs alone with "
            f"{int(self._running.rows.planned[state.row])} tokens; num_available says that there "
            f"are {self._allocator.num_available} of {self._limits.num_blocks}"
        )
