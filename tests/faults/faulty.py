"""Plugins of the kinds that need no torch, sound until their fault, as a file of `plugins.load`.

`method` says which method is at fault, `fault` what it does instead of its answer, and `after`
how many calls are sound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.executor import Executor, ExecutorConfig
from nanofw.contracts.logits_processor import HostProcessor, HostProcessorConfig
from nanofw.contracts.router import ReplicaView, Router, RouterConfig
from nanofw.contracts.scheduler import RunningView
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.plugins import (
    AllocatorConfig,
    KVAllocator,
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
from nanofw.sim import manifest
from nanofw.sim.constant import ConstantCost, ConstantOptions
from nanofw.sim.executor import SimExecutor
from nanofw.sim.options import SimOptions
from tests.faults.faults import NUM_REQUESTS, Fault, with_fault


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


class SoundRouter(Router):
    """By turns, with a look at what was sent."""

    prefix_blocks = 4

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        return sum(replica.cached_tokens(request) + replica.num_tokens for replica in replicas) % 2


class SoundCost(ConstantCost):
    """A cost model that knows the host, too."""

    def __init__(self, config: Any) -> None:
        super().__init__(ConstantOptions(seconds_per_step=0.01), config)

    def kv_bytes(self) -> int | None:
        return None

    def host_seconds(self, plan: Any) -> float:
        return 0.0


class SoundHost(HostProcessor):
    """Constrains every request, and allows everything."""

    def check(self, arguments: Any) -> None:
        """Anything goes."""

    def advance(self, request_id: str, token_ids: IntArray) -> None:
        """Nothing is kept."""

    def mask(self, request_id: str, bits: IntArray) -> None:
        """Everything is allowed."""

    def finish(self, request_id: str) -> None:
        """Nothing is kept."""


class ExecutorFault(SimOptions):
    """Options of the faulty executor: those of `Fault`, beside its own."""

    method: str = ""
    fault: str = ""
    after: int = 0


def make_host(options: Fault, config: HostProcessorConfig) -> HostProcessor:
    return with_fault(SoundHost, options)(options, config)


def make_executor(options: ExecutorFault, config: ExecutorConfig) -> Executor:
    return with_fault(SimExecutor, options)(options, config)


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


def make_router(options: Fault, config: RouterConfig) -> Router:
    return with_fault(SoundRouter, options)(options, config)


def make_cost_model(options: Fault, config: Any) -> Any:
    return with_fault(SoundCost, options)(config)


@hookimpl
def scheduler() -> Plugin:
    overlap = {"overlap": True}
    return Plugin("faulty", ":make_policy", api="scheduler/2", options=Fault, capabilities=overlap)


@hookimpl
def logits_processor() -> Plugin:
    claims = {"devices": ("*",), "overlap": True, "needs_history": "host"}
    return Plugin(
        "faulty_host",
        ":make_host",
        api="logits_processor/2",
        options=Fault,
        capabilities=claims,
    )


@hookimpl
def executor() -> Plugin:
    claims = dict(manifest.executor().capabilities)
    return Plugin(
        "faulty", ":make_executor", api="executor/2", options=ExecutorFault, capabilities=claims
    )


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
def router() -> Plugin:
    return Plugin("faulty", ":make_router", api="router/1", options=Fault)


@hookimpl
def cost_model() -> Plugin:
    return Plugin("faulty", ":make_cost_model", api="cost_model/1", options=Fault)
