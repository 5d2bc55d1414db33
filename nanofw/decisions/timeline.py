"""A log as a timeline that can be zoomed: steps, requests, the queue and the pool over time.

It is a trace in Chrome's format, which Perfetto (ui.perfetto.dev) and browsers' tracing pages
show. Requests that overlap in time lie in lanes: the first that is free.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from nanofw.decisions.log import DecisionLog, shown_id
from nanofw.decisions.story import Ran, Teller, Waited

STEPS, RUNNING, WAITING = 1, 2, 3
"""Groups of lanes."""
Span: TypeAlias = tuple[float, float, str, dict[str, object]]
"""Begin and end in seconds, name, details."""


def timeline_trace(log: DecisionLog) -> dict[str, object]:
    """The trace; its times are microseconds after the first arrival."""
    names = {STEPS: "steps", RUNNING: "requests that run", WAITING: "requests that wait"}
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        for pid, name in names.items()
    ]
    events += _steps(log)
    events += _requests(log)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _steps(log: DecisionLog) -> Iterator[dict[str, object]]:
    """Each step from its plan to its collection, and counts after its plan."""
    start = log.start
    for step, planned, record in log.calls:
        at = 1e6 * (planned - start)
        if step is not None and step < len(log.collected):
            prefill = sum(count for _, count in record.chunks)
            prefill += sum(new.num_tokens for new in record.new)
            yield {
                "ph": "X", "cat": "step", "name": f"step {step}", "pid": STEPS, "tid": step % 2,
                "ts": at, "dur": 1e6 * (log.collected[step] - planned),
                "args": {"decodes": record.decodes, "prefill_tokens": prefill,
                         "first_in_queue_waits_for": record.blocker},
            }  # fmt: skip
        counts = {"waiting": record.waiting, "running": record.running}
        yield {"ph": "C", "name": "requests", "pid": STEPS, "ts": at, "args": counts}
        yield {"ph": "C", "name": "free blocks", "pid": STEPS, "ts": at,
               "args": {"free": record.free}}  # fmt: skip


def _requests(log: DecisionLog) -> Iterator[dict[str, object]]:
    """Waiting, prefill and decode of each request."""
    spans: dict[int, list[Span]] = {RUNNING: [], WAITING: []}
    teller = Teller(log)
    last = log.calls[-1].planned if log.calls else log.start
    for name in log.lives:
        shown = shown_id(name)
        for part in teller.tell(name).parts:
            ended = last if part.ended is None else part.ended
            if ended <= part.began:
                continue
            if isinstance(part, Waited):
                again = " again" if part.after_preemption else ""
                args: dict[str, object] = {
                    f"for_{key}_s": part.seconds[key] for key in part.seconds
                }
                spans[WAITING].append((part.began, ended, f"{shown} waits{again}", args))
            else:
                spans[RUNNING] += _ran(shown, part, ended)
    for pid, some in spans.items():
        yield from _in_lanes(pid, some, log.start)


def _ran(shown: str, part: Ran, ended: float) -> Iterator[Span]:
    """Prefill and decode, the first as long as is known."""
    args: dict[str, object] = {"cached_tokens": part.num_cached, "preempted": part.was_preempted}
    middle = ended if part.prefilled is None else min(part.prefilled, ended)
    yield part.began, middle, f"{shown} prefill", args
    if middle < ended:
        yield middle, ended, f"{shown} decode", args


def _in_lanes(pid: int, spans: Iterable[Span], start: float) -> Iterator[dict[str, object]]:
    """Spans by their begin, each in the first lane that is free."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for began, ended, name, args in sorted(spans, key=lambda span: span[:3]):
        while busy and busy[0][0] <= began:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (ended, lane))
        yield {
            "ph": "X", "cat": "request", "name": name, "pid": pid, "tid": lane,
            "ts": 1e6 * (began - start), "dur": 1e6 * (ended - began), "args": args,
        }  # fmt: skip
