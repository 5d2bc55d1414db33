"""Traces of PyTorch's profiler in Chrome's format: recording, reading, joining, writing."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from nanofw.errors import ExecutorError

KERNEL = "kernel"
COPIES = ("gpu_memcpy", "gpu_memset")
OPERATOR = "cpu_op"


class Event(TypedDict):
    """Something that took a while. Events of other kinds, told by `ph`, lack some of the keys."""

    ph: str
    cat: str
    name: str
    pid: int
    tid: int
    ts: float
    dur: float


class StepTrace(TypedDict):
    """A trace; the events' times are microseconds."""

    traceEvents: list[Event]
    baseTimeNanoseconds: NotRequired[float]


@dataclass(frozen=True, slots=True)
class Work:
    """What one kernel, copy or operator does in a step.

    Attributes:
        category: `kernel`, `gpu_memcpy`, `gpu_memset` or `cpu_op`.
        count: how often it runs in a step.
        seconds: in a step; of an operator without those that it calls.
    """

    name: str
    category: str
    count: float
    seconds: float


def record(run: Callable[[], object], device: str = "cpu") -> StepTrace:
    """The trace of a call: operators, spans, and on CUDA kernels, those of graphs included.

    Args:
        device: what it runs on; a CUDA device is waited for before and after.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    on_cuda = device.startswith("cuda")
    if on_cuda:
        # Graphs do not survive that CUPTI is taken down and set up again between two traces.
        os.environ["DISABLE_CUPTI_LAZY_REINIT"] = "1"
        os.environ["TEARDOWN_CUPTI"] = "0"
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize(device)
    # torch 2.11 warns that events of earlier cycles are dropped, though there is one cycle.
    with profile(activities=activities, acc_events=True) as profiler:
        run()
        if on_cuda:
            torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory(prefix="nanofw-profile-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        made: StepTrace = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    return made


def device_work(trace: StepTrace, num_steps: int) -> list[Work]:
    """Kernels and copies of a step, the longest first. Raises ExecutorError when there are none.

    A kernel that was launched while the one before it ran in its stream waited for that one: it
    counts from there on.
    """
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    streams: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in _complete(trace, (KERNEL, *COPIES)):
        streams[event["pid"], event["tid"]].append(event)
    for events in streams.values():
        for event, seconds in _times_after_waiting(events):
            found[event["cat"], event["name"]].append(seconds)
    if not any(category == KERNEL for category, _ in found):
        raise ExecutorError(
            "PyTorch's profiler has recorded no kernels: its library, CUPTI, is missing, another "
            "profiler uses the device, or the driver lets only administrators profile; "
            "nanofw bench measures without it"
        )
    return _sorted(found, num_steps)


def operator_work(trace: StepTrace, num_steps: int) -> list[Work]:
    """Operators of a step by their own time, the longest first."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    threads: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in _complete(trace, (OPERATOR,)):
        threads[event["pid"], event["tid"]].append(event)
    for events in threads.values():
        for event, own in _own_times(events):
            found[OPERATOR, event["name"]].append(own)
    return _sorted(found, num_steps)


def busy_seconds(trace: StepTrace) -> float:
    """Seconds in which at least one kernel or copy was on the device."""
    busy, end = 0.0, float("-inf")
    events = _complete(trace, (KERNEL, *COPIES))
    for begin, duration in sorted((event["ts"], event["dur"]) for event in events):
        stop = begin + duration
        busy += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return busy / 1e6


def joined(traces: Sequence[StepTrace]) -> StepTrace:
    """One trace with the events of all, as they followed each other."""
    first = traces[0]
    events: list[Event] = []
    for trace in traces:
        # both are microseconds after a base that is whole seconds
        shift = (trace.get("baseTimeNanoseconds", 0) - first.get("baseTimeNanoseconds", 0)) / 1000
        for event in trace["traceEvents"]:
            events.append(
                {**event, "ts": event["ts"] + shift} if shift and "ts" in event else event
            )
    return {**first, "traceEvents": events}


def write(trace: Mapping[str, object], path: Path) -> None:
    """Write a trace for Perfetto; compressed when the name ends in `.gz`."""
    text = json.dumps(trace)
    if path.suffix == ".gz":
        with gzip.open(path, "wt", encoding="utf-8", compresslevel=5) as file:
            file.write(text)
    else:
        path.write_text(text, encoding="utf-8")


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces, template and call arguments."""
    text = name.removeprefix("void ")
    head = text.partition("(anonymous namespace)::")[2] or text
    head = head.partition("<")[0].partition("(")[0]
    return head.rpartition("::")[2] or head or name


def _complete(trace: StepTrace, categories: Iterable[str]) -> list[Event]:
    wanted = frozenset(categories)
    return [
        event
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") in wanted
    ]


def _own_times(events: list[Event]) -> list[tuple[Event, float]]:
    """Each event of one thread, and its time without the events within it."""
    events.sort(key=lambda event: (event["ts"], -event["dur"]))
    own = [event["dur"] for event in events]
    open_: list[int] = []
    for index, event in enumerate(events):
        while open_ and events[open_[-1]]["ts"] + events[open_[-1]]["dur"] <= event["ts"]:
            open_.pop()
        if open_:
            own[open_[-1]] -= event["dur"]
        open_.append(index)
    return [(event, max(0.0, seconds)) for event, seconds in zip(events, own, strict=True)]


def _times_after_waiting(events: list[Event]) -> list[tuple[Event, float]]:
    """Each event of one stream, and its time after the end of those that began before it."""
    events.sort(key=lambda event: (event["ts"], event["dur"]))
    times: list[tuple[Event, float]] = []
    before = float("-inf")
    for event in events:
        end = event["ts"] + event["dur"]
        times.append((event, max(0.0, end - max(event["ts"], before))))
        before = max(before, end)
    return times


def _sorted(found: Mapping[tuple[str, str], list[float]], num_steps: int) -> list[Work]:
    work = [
        Work(name, category, len(times) / num_steps, sum(times) / 1e6 / num_steps)
        for (category, name), times in found.items()
    ]
    return sorted(work, key=lambda item: -item.seconds)
