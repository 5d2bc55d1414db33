"""A step between its submission and its commit, and what is reported of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanofw.contracts.outputs import Admitted, StepReport
from nanofw.contracts.plan import StepPlan

if TYPE_CHECKING:
    from nanofw.engine.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A submitted step and what will be reported of it."""

    plan: StepPlan
    planned: float
    num_preemptions: int
    num_waits: int
    admitted: tuple[Admitted, ...]

    def report(self, scheduler: Scheduler, now: float) -> StepReport:
        """The report of the step, which was just committed."""
        plan = self.plan
        return StepReport(
            step=plan.step,
            num_prefill_tokens=plan.total_tokens - plan.num_decodes,
            num_decode_tokens=plan.num_decodes,
            num_rows=len(plan.rows),
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_used_blocks=scheduler.limits.num_blocks - scheduler.allocator.num_available,
            num_preemptions=self.num_preemptions,
            num_waits=self.num_waits,
            planned=self.planned,
            committed=now,
            admitted=self.admitted,
        )


def admitted_by(plan: StepPlan, scheduler: Scheduler) -> tuple[Admitted, ...]:
    """The requests that get a row in a plan. Their rows may be gone when it is collected."""
    states = [scheduler.rows.state(new.row) for new in plan.new]
    return tuple(
        Admitted(
            id=state.request.id,
            sample_index=state.sample_index,
            arrival=state.arrival,
            scheduled=state.scheduled,
        )
        for state in states
        if state.scheduled is not None
    )
