"""What the live page shows: the engine now, the last requests, and what the policy decided."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from nanofw.contracts.observer import StepObserver
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.plan import StepPlan
from nanofw.contracts.requests import FinishReason
from nanofw.engine.request_state import SAMPLE_SEPARATOR, sample_id
from nanofw.llm.results import RequestResult
from nanofw.narrowing import Stats

MAX_ENDED = 1000
"""Requests that latencies are of."""
MAX_DECISIONS = 40
MAX_EVENTS = 4096
"""What the engine did between two looks at it; of more, the oldest is forgotten."""
MAX_CLIENTS = 200
"""Clients that are counted apart; later ones are counted together."""
OTHERS = "(others)"
PERCENTILES = (50, 90, 99)
LATENCIES = ("queue", "ttft", "tpot", "e2e")

StepEvent: TypeAlias = tuple[str, float, str]
"""What happened (`started`, `preempted`, `resumed`), when on the engine's clock, and to whom."""


class AdmissionEvents(StepObserver):
    """Notes who gets a row and who loses it. Called in the engine's thread.

    Attributes:
        events: read and emptied by any other thread.
    """

    def __init__(self) -> None:
        self.events: deque[StepEvent] = deque(maxlen=MAX_EVENTS)
        self._rows: dict[int, str] = {}
        self._row_of: dict[str, int] = {}
        self._ended: set[str] = set()
        self._preempted: set[str] = set()

    def submitted(self, plan: StepPlan, now: float) -> None:
        if not plan.new and not len(plan.removed) and not plan.finished:
            return
        self._ended.update(name for name in plan.finished if name in self._row_of)
        for row in plan.removed.tolist():
            name = self._rows.pop(row, None)
            if name is None:
                continue
            self._row_of.pop(name, None)
            if name in self._ended:
                self._ended.discard(name)
            else:
                self._preempted.add(name)
                self.events.append(("preempted", now, name))
        for new in plan.new:
            self._rows[new.row], self._row_of[new.request_id] = new.request_id, new.row
            kind = "resumed" if new.request_id in self._preempted else "started"
            self._preempted.discard(new.request_id)
            self.events.append((kind, now, new.request_id))

    def finished(self, output: RequestOutput) -> None:
        self._preempted.discard(sample_id(output.id, output.sample_index))


@dataclass(slots=True)
class _OpenRequest:
    client: str
    came: float
    has_started: bool = False


@dataclass(slots=True)
class _ClientTotals:
    num_open: int = 0
    num_ended: int = 0
    num_refused: int = 0
    num_tokens: int = 0
    ttfts: deque[float] = field(default_factory=lambda: deque[float](maxlen=200))


class Overview:
    """Keeps what the page shows. For one event loop.

    Attributes:
        observer: of the engine.
    """

    def __init__(self) -> None:
        self.observer: AdmissionEvents = AdmissionEvents()
        self._started = time.monotonic()
        self._open: dict[str, _OpenRequest] = {}
        self._not_started: list[float] = []
        """When the open requests came that were not started yet, in this order."""
        self._clients: dict[str, _ClientTotals] = {}
        self._ended: deque[tuple[float | None, ...]] = deque(maxlen=MAX_ENDED)
        self._decisions: deque[dict[str, object]] = deque(maxlen=MAX_DECISIONS)

    @property
    def uptime_s(self) -> float:
        """Seconds since the server began to load."""
        return time.monotonic() - self._started

    def came(self, request_id: str, client: str) -> None:
        """A prompt is given to the engine."""
        request = self._open[request_id] = _OpenRequest(client, time.monotonic())
        self._not_started.append(request.came)
        self._totals(client).num_open += 1

    def left(self, request_id: str, result: RequestResult | None) -> None:
        """It has ended; None: its client went away before. Does nothing the second time."""
        self._take_events()
        known = self._open.pop(request_id, None)
        if known is None:
            return
        if not known.has_started:
            self._num_before(known, forget=True)
        totals = self._totals(known.client)
        totals.num_open -= 1
        totals.num_ended += 1
        if result is None:
            return
        if result.finish_reason.is_refused:
            totals.num_refused += 1
            if result.finish_reason is FinishReason.SHED:
                self._decide("refused", request_id, known.client, result.error or "")
            return
        totals.num_tokens += len(result.prompt_token_ids) + result.num_output_tokens
        if result.timings is not None:
            times = [getattr(result.timings, f"{name}_s") for name in LATENCIES]
            self._ended.append(tuple(times))
            if result.timings.ttft_s is not None:
                totals.ttfts.append(result.timings.ttft_s)

    def turned_away(self, client: str, reason: str) -> None:
        """The door refused a request that the engine never saw."""
        self._totals(client).num_refused += 1
        self._decide("turned away", "", client, reason)

    def record(self, stats: Stats) -> dict[str, object]:
        """Everything as a JSON object.

        Args:
            stats: `Engine.stats()`.
        """
        self._take_events()
        return {
            "num_running": stats["num_running"],
            "num_waiting": stats["num_waiting"],
            "num_output_tokens": stats["num_output_tokens"] + stats["num_unfinished_tokens"],
            "num_prompt_tokens": stats["num_prompt_tokens"],
            "num_cached_tokens": stats["num_cached_tokens"],
            "num_preemptions": stats["num_preemptions"],
            "num_ended": sum(stats["num_finished"].values()),
            "blocks": dict(stats["blocks"]),
            "latencies": _percentiles(self._ended),
            "clients": self._client_records(),
            "decisions": list(self._decisions),
        }

    def _totals(self, client: str) -> _ClientTotals:
        if client not in self._clients and len(self._clients) >= MAX_CLIENTS:
            client = OTHERS
        return self._clients.setdefault(client, _ClientTotals())

    def _take_events(self) -> None:
        events = self.observer.events
        while events:
            kind, now, name = events.popleft()
            request_id, _, sample = name.partition(SAMPLE_SEPARATOR)
            request = self._open.get(request_id)
            if request is None or sample:
                continue
            why = self._why(kind, now, request)
            self._decide(kind, request_id, request.client, why, now)

    def _why(self, kind: str, now: float, request: _OpenRequest) -> str:
        """What distinguishes a decision from the order in which requests came."""
        if kind != "started":
            return "gave way to another" if kind == "preempted" else "there is room again"
        waited = max(0.0, now - request.came)
        earlier = self._num_before(request, forget=not request.has_started)
        request.has_started = True
        ahead = f", ahead of {earlier} that came earlier" if earlier else ""
        return f"waited {waited:.2f} s{ahead}"

    def _num_before(self, request: _OpenRequest, *, forget: bool) -> int:
        """Requests that came before this one and were not started yet.

        Args:
            forget: this one is not counted from here on.
        """
        place = bisect_left(self._not_started, request.came)
        if forget:
            del self._not_started[place]
        return place

    def _decide(
        self, what: str, request_id: str, client: str, why: str, now: float | None = None
    ) -> None:
        at = time.monotonic() if now is None else now
        self._decisions.appendleft(
            {
                "at_s": at - self._started,
                "what": what,
                "request": request_id,
                "client": client,
                "why": why,
            }
        )

    def _client_records(self) -> list[dict[str, object]]:
        total = sum(client.num_tokens for client in self._clients.values())
        records: list[dict[str, object]] = []
        for name, client in self._clients.items():
            ttfts = list(client.ttfts)
            records.append(
                {
                    "name": name,
                    "num_open": client.num_open,
                    "num_ended": client.num_ended,
                    "num_refused": client.num_refused,
                    "num_tokens": client.num_tokens,
                    "share": client.num_tokens / total if total else 0.0,
                    "ttft_p90_s": float(np.percentile(ttfts, 90)) if ttfts else None,
                }
            )
        return sorted(records, key=lambda record: str(record["name"]))


def _percentiles(ended: Iterable[Sequence[float | None]]) -> dict[str, object]:
    """By latency, its percentiles over the requests that have it."""
    columns = list(zip(*ended, strict=True)) or [()] * len(LATENCIES)
    made: dict[str, object] = {}
    for name, column in zip(LATENCIES, columns, strict=True):
        values = [value for value in column if value is not None]
        if values:
            found = np.percentile(values, PERCENTILES).tolist()
            made[name] = {f"p{p}": value for p, value in zip(PERCENTILES, found, strict=True)}
    return made
