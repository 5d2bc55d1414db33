"""An executor around another one: the base of executors that watch a run from outside."""

from __future__ import annotations

from nanofw.contracts.executor import Executor
from nanofw.contracts.plan import Capacity, HostMasks, StepPlan, StepResult
from nanofw.contracts.requests import Request


class PassingExecutor:
    """Implements `Executor` by handing everything on to another one."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner

    def submit(self, plan: StepPlan) -> None:
        self.inner.submit(plan)

    def collect(self) -> StepResult:
        return self.inner.collect()

    def capacity(self) -> Capacity:
        return self.inner.capacity()

    def check(self, request: Request) -> None:
        self.inner.check(request)

    def provide(self, masks: HostMasks) -> None:
        self.inner.provide(masks)

    def close(self) -> None:
        self.inner.close()
