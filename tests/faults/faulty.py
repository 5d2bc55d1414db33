"""A plugin of each kind that is sound until its fault, as a local file of `plugins.load`.

`method` says which method is at fault, `fault` what it does instead of its answer, and `after`
how many calls are sound.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from nanofw.contracts.scheduler import RunningView
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.plugins import (
    AllocatorConfig,
    KVAllocator,
    Options,
    Plugin,
    Policy,
    Request,
    RequestOutput,
    RequestView,
    SchedulerConfig,
    SchedulerView,
    Workload,
    WorkloadConfig,
    hookimpl,
)
from nanofw.sim.constant import ConstantCost, ConstantOptions

NUM_REQUESTS = 6


class Interrupted(BaseException):
    """Neither an Exception nor the user's interrupt."""


class Fault(Options):
    """`{name: faulty, method: acquire, fault: raises, after: 2}`; no method: sound."""

    method: str = ""
    fault: str = ""
    after: int = 0


def _raise(error: BaseException) -> Any:
    raise error


def _endless(answer: Any) -> Iterator[Any]:
    """The items of an answer again and again; numbers where there are none."""
    items = list(answer) or [0]
    while True:
        yield from items


RAISING: dict[str, Callable[[Any], Any]] = {
    "raises": lambda _: _raise(ZeroDivisionError("a bug in the plugin")),
    "exits": lambda _: _raise(SystemExit(0)),
    "is_interrupted": lambda _: _raise(Interrupted()),
    "raises_ours": lambda _: _raise(KeyError("a" * 500)),
}
"""What a method raises."""
ANSWERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda _: None,
    "text": lambda _: "text",
    "object": lambda _: object(),
    "nan": lambda _: float("nan"),
    "negative": lambda _: -7,
    "flag": lambda _: True,
    "huge": lambda _: 10**30,
    "empty": lambda _: [],
    "array": lambda _: np.array([[1, 2], [3, 4]]),
    "longer": lambda answer: _changed(answer, lambda array: np.concatenate((array, array))),
    "shorter": lambda answer: _changed(answer, lambda array: array[:-1]),
    "zeros": lambda answer: _changed(answer, np.zeros_like),
    "outside": lambda answer: _changed(answer, lambda array: array + 1_000_000),
    "below": lambda answer: _changed(answer, lambda array: array - 1_000_000),
    "as_text": lambda answer: _changed(answer, lambda array: array.astype(np.str_)),
    "as_list": lambda answer: _changed(answer, lambda array: array.tolist()),
}
"""What a method answers instead."""
ENDLESS: dict[str, Callable[[Any], Any]] = {"endless": _endless}
FAULTS = {**RAISING, **ANSWERS, **ENDLESS}


def _changed(answer: Any, change: Callable[[Any], Any]) -> Any:
    """An answer with a change of its block ids; others stay as they are."""
    if not hasattr(answer, "block_ids"):
        return answer
    values = {name: getattr(answer, name) for name in type(answer).__dataclass_fields__}
    return type(answer)(**{**values, "block_ids": change(values["block_ids"])})


def with_fault(sound: type, options: Fault) -> type:
    """The class with one method, or property, at fault."""
    if not options.method:
        return sound
    inner, calls = inspect.getattr_static(sound, options.method), iter(range(1 << 60))

    def spoilt(answer: Callable[[], Any]) -> Any:
        if next(calls) < options.after:
            return answer()
        make = FAULTS[options.fault]
        return make(None if options.fault in RAISING else answer())

    if isinstance(inner, property):
        made: Any = property(lambda self: spoilt(lambda: inner.fget(self)))
    elif callable(inner):

        def made(self: Any, *arguments: Any) -> Any:
            return spoilt(lambda: inner(self, *arguments))

        made.__signature__ = inspect.signature(inner)
    else:
        made = property(lambda self: spoilt(lambda: inner), lambda self, value: None)
    return type("Faulty", (sound,), {options.method: made})


class SoundPolicy(Policy):
    """Every hook is used, and changes little."""

    window = 3
    max_rekeys = 1

    def check(self, arguments: Any) -> None:
        """Anything goes."""

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.priority

    def group(self, request: RequestView) -> str:
        return request.client

    def group_key(self, group: Any, view: SchedulerView) -> int:
        return 0

    def window_key(self, requests: Sequence[RequestView], view: SchedulerView) -> list[Any]:
        return [(-view.cached_tokens(one), one.arrival) for one in requests]

    def rekey(self, view: SchedulerView) -> Iterable[RequestView]:
        running: RunningView = view.running
        return [running.request(row) for row in running.rows.tolist()[:1]]

    def admit(self, request: RequestView, view: SchedulerView) -> bool:
        return view.now >= 0.01

    def chunk(self, request: RequestView, view: SchedulerView) -> int:
        return 5

    def step_budget(self, view: SchedulerView) -> int:
        return 12

    def pause(self, view: SchedulerView) -> list[int]:
        rows = view.running.rows.tolist()
        return rows[2:]

    def victim(self, for_request: RequestView | None, view: SchedulerView) -> int | None:
        if for_request is None:
            return None
        key = view.running.key
        greater = [row for row in view.running.rows.tolist() if key(row) > for_request.priority]
        return max(greater, key=key, default=None)

    def wake(self, view: SchedulerView) -> float:
        return view.now + 0.01

    def on_progress(self, rows: Any, num_tokens: Any, num_decodes: int, view: Any) -> None:
        """Nothing is kept."""


class SoundWorkload(Workload):
    """Half of the requests are known beforehand, the rest follow."""

    notes = ("a note",)

    def __init__(self, config: WorkloadConfig) -> None:
        self._config, self._next = config, NUM_REQUESTS // 2

    @property
    def num_requests(self) -> int:
        return NUM_REQUESTS

    @property
    def rate(self) -> float:
        return 100.0

    def initial(self) -> Iterator[Request]:
        return iter([self._request(i, i / 100) for i in range(NUM_REQUESTS // 2)])

    def follow(self, output: RequestOutput) -> Sequence[Request]:
        if self._next == NUM_REQUESTS:
            return []
        self._next += 1
        return [self._request(self._next - 1, output.finished)]

    def _request(self, number: int, arrival: float) -> Request:
        config = self._config
        return Request(
            id=f"r{number}",
            prompt_token_ids=range(2, 12 + number),
            sampling=config.sampling,
            arrival=config.start + arrival,
        )


class SoundCost(ConstantCost):
    """A cost model that knows the host, too."""

    def __init__(self, config: Any) -> None:
        super().__init__(ConstantOptions(seconds_per_step=0.01), config)

    def kv_bytes(self) -> int | None:
        return None

    def host_seconds(self, plan: Any) -> float:
        return 0.0


def make_policy(options: Fault, config: SchedulerConfig) -> Policy:
    sound = SoundPolicy
    if options.method in ("window_key", "group", "group_key"):
        admits = {"admit": Policy.admit, "pause": Policy.pause}
        sound = type("SoundPolicy", (SoundPolicy,), admits)
    return with_fault(sound, options)(options, config)


def make_allocator(options: Fault, config: AllocatorConfig) -> KVAllocator:
    return with_fault(PagedPrefixAllocator, options)(None, config)


def make_workload(options: Fault, config: WorkloadConfig) -> Workload:
    return with_fault(SoundWorkload, options)(config)


def make_cost_model(options: Fault, config: Any) -> Any:
    return with_fault(SoundCost, options)(config)


@hookimpl
def scheduler() -> Plugin:
    overlap = {"overlap": True}
    return Plugin("faulty", ":make_policy", api="scheduler/2", options=Fault, capabilities=overlap)


@hookimpl
def kv_allocator() -> Plugin:
    claims = {"block_sizes": ("*",), "prefix_cache": True}
    return Plugin(
        "faulty", ":make_allocator", api="kv_allocator/2", options=Fault, capabilities=claims
    )


@hookimpl
def workload() -> Plugin:
    return Plugin("faulty", ":make_workload", api="workload/1", options=Fault)


@hookimpl
def cost_model() -> Plugin:
    return Plugin("faulty", ":make_cost_model", api="cost_model/1", options=Fault)


KINDS: dict[str, tuple[type, str]] = {
    "scheduler": (SoundPolicy, "scheduler"),
    "kv_allocator": (PagedPrefixAllocator, "kv_allocator"),
    "workload": (SoundWorkload, "input.workload"),
    "cost_model": (SoundCost, "executor.cost_model"),
}
"""The sound class of each kind, and its key in the configuration."""
