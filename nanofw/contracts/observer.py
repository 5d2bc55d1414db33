"""Who watches the steps of an engine: `Engine(observers=[...])`, or `engine.observed_by(...)`.

class Longest(StepObserver):
seconds = 0.0
def collected(self, plan, result, now):
self.seconds = max(self.seconds, result.seconds or 0.0)
"""

from __future__ import annotations

from collections.abc import Collection

from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.plan import StepPlan, StepResult
from nanofw.contracts.requests import FinishReason, Request
from nanofw.contracts.stride import Stride
from nanofw.errors import RequestError

PHASES = ("accept", "step", "plan", "submit", "provide", "collect", "commit", "output")
"""Parts of an engine's work: a request is accepted; a step, and within it the plan is made, given
to the executor with its masks, collected, committed, and finished requests are handed out."""


class StepObserver:
    """Base of observers. Methods that are not overridden are not called.

    An observer reads and changes nothing: plans, results and outputs belong to the engine. If an
    observer raises an exception, it gets no more calls; requests are not affected.

    Attributes:
        phases: the phases (from `PHASES`) for which `began` and `ended` are called.
    """

    phases: Collection[str] = ()

    def received(self, request: Request, error: RequestError | None, now: float) -> None:
        """A request was accepted, or refused with this error."""

    def finish_requested(
        self,
        request_id: str,
        reason: FinishReason,
        num_tokens: int | None,
        sample_index: int | None,
        now: float,
    ) -> None:
        """A caller has ended a live request, or one of its samples: it was aborted, or a stop
        string was found. `num_tokens`: how many generated tokens are kept; None: all of them.
        `sample_index` None: all samples."""

    def planned(self, plan: StepPlan | None, now: float) -> None:
        """A plan was made, and is not yet given to the executor. None: nothing can run now, or
        the step in flight must be collected first."""

    def submitted(self, plan: StepPlan, now: float) -> None:
        """A step was given to the executor."""

    def collected(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """A step was collected, and is not yet committed. Steps come in their order."""

    def strode(self, stride: Stride) -> None:
        """Several steps were planned, submitted and collected at once, in a simulated run.

        An observer that overrides methods for steps or phases must override `strode` in the same
        class or in a subclass. Otherwise steps are not combined while it is registered, so that
        it sees every step.
        """

    def finished(self, output: RequestOutput) -> None:
        """A request, or one of its samples, has ended. It is not called for a request that was
        refused on arrival."""

    def began(self, phase: str) -> None:
        """A phase begins."""

    def ended(self, phase: str) -> None:
        """A phase is over. Also called if an error ended it."""
