"""Decision logs as timelines of a report: requests, steps, queue and KV over time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from nanofw.compare.results import Results
from nanofw.compare.run_files import RunFiles
from nanofw.decisions.log import DecisionLog, Life, read_log, shown_id
from nanofw.errors import ConfigError

MAX_REQUESTS = 2000
MAX_STEPS = 4000
MAX_POINTS = 3000
MAX_ARMS = 8


def timelines(results: Results) -> list[dict[str, object]]:
    """Of the first run of each arm at the highest load, where the experiment keeps logs."""
    options = results.experiment.options
    if options.decisions is None or not results.points:
        return []
    point = max(results.points, key=lambda point: point or 0.0)
    found: list[dict[str, object]] = []
    for arm in list(results.experiment.arms)[:MAX_ARMS]:
        files = RunFiles(options=options, arm=arm, point=point, repeat=0, seed=options.seed)
        try:
            log = read_log(files.log)
        except ConfigError:  # the experiment ended before this run
            continue
        found.append({"arm": arm, **timeline(log)})
    return found


def timeline(log: DecisionLog) -> dict[str, object]:
    """Plain values; times in seconds after the first arrival. Of long logs the beginning.

    `requests`: id, lane, arrival, end, and of each stay: begin, end of the prefill, end, whether it
    was preempted. `steps`: begin, end, decoding rows, prefill tokens. `counts`: time, requests that
    wait, blocks in use, each the greatest of a stretch.
    """
    lives = [life for life in log.lives.values() if life.keys or life.stays]
    lives.sort(key=lambda life: life.arrival)
    shown = lives[:MAX_REQUESTS]
    return {
        "requests": list(_requests(log, shown)),
        "num_requests": len(lives),
        "steps": list(_steps(log)),
        "num_steps": len(log.collected),
        "counts": _counts(log),
        "num_blocks": log.run.limits["num_blocks"],
        "end": _at(log, log.calls[-1].planned if log.calls else log.start),
    }


def _at(log: DecisionLog, time: float) -> float:
    return round(time - log.start, 6)


def _requests(log: DecisionLog, lives: list[Life]) -> Iterator[list[object]]:
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    last = log.calls[-1].planned if log.calls else log.start
    for life in lives:
        while busy and busy[0][0] <= life.arrival:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        ended = last if life.finished is None else life.finished.finished
        heapq.heappush(busy, (ended, lane))
        stays: list[list[object]] = []
        for stay in life.stays:
            step = log.calls[stay.last_chunk].step
            until = ended if stay.ended is None else log.calls[stay.ended].planned
            is_known = step is not None and step < len(log.collected)
            prefilled = min(log.collected[step], until) if is_known and step is not None else until
            began = log.calls[stay.began].planned
            stays.append(
                [_at(log, began), _at(log, prefilled), _at(log, until), stay.ended is not None]
            )
        yield [shown_id(life.id), lane, _at(log, life.arrival), _at(log, ended), stays]


def _steps(log: DecisionLog) -> Iterator[list[float]]:
    for step, planned, record in log.calls:
        if step is None:
            continue
        if step >= min(len(log.collected), MAX_STEPS):
            return
        prefill = sum(count for _, count in record.chunks)
        prefill += sum(new.num_tokens for new in record.new)
        yield [_at(log, planned), _at(log, log.collected[step]), record.decodes, prefill]


def _counts(log: DecisionLog) -> list[list[float]]:
    num_blocks = log.run.limits["num_blocks"]
    counts = [
        (_at(log, call.planned), call.record.waiting, num_blocks - call.record.free)
        for call in log.calls
    ]
    if not counts:
        return []
    parts = np.array_split(np.array(counts), min(len(counts), MAX_POINTS))
    return [[float(part[0, 0]), *map(float, part[:, 1:].max(axis=0))] for part in parts]
