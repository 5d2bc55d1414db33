"""Cost models that are wrong."""

from __future__ import annotations

import math
import random
import time
from typing import ClassVar

from nanofw.plugins import Plugin, hookimpl
from nanofw.sim.roofline import Roofline, RooflineOptions
from nanofw.sim.work import StepWork
from tests.mutants.collection import Collection

sample = Collection("cost_model/1")


@hookimpl
def cost_model() -> list[Plugin]:
    return sample.plugins()


class Plain:
    """A time for each step and for each token."""

    def __init__(self, options, config) -> None:
        self.config = config

    def seconds(self, plan) -> float:
        return 0.01 + 0.0001 * plan.total_tokens

    def kv_bytes(self) -> int | None:
        return None


@sample()
class LessForMore(Plain):
    """The more tokens a step computes, the less time it takes."""

    def seconds(self, plan):
        return 0.1 / plan.total_tokens


@sample()
class LessForContext(Plain):
    """The longer the contexts are, the less time a step takes."""

    def seconds(self, plan):
        return max(0.001, super().seconds(plan) - 1e-5 * int(plan.starts.sum()))


@sample()
class PromptsAreFree(Plain):
    """A step takes no time as soon as a prompt is in it."""

    def seconds(self, plan):
        return super().seconds(plan) if plan.num_decodes == len(plan.rows) else 0.0


@sample()
class RowsAreRefunded(Plain):
    """Each row that decodes takes something off the time of the prompts beside it."""

    def seconds(self, plan):
        return max(0.0, super().seconds(plan) - 0.0005 * plan.num_decodes)


@sample()
class LessThanNothing(Plain):
    """Small steps take a negative time."""

    def seconds(self, plan):
        return 0.001 * (plan.total_tokens - 3)


@sample()
class ShareOfNothing(Plain):
    """The time of a step without decoding rows is not a number."""

    def seconds(self, plan):
        return super().seconds(plan) if plan.num_decodes else math.nan


@sample()
class WithoutEnd(Plain):
    """A step in which a row begins takes infinitely long."""

    def seconds(self, plan):
        return math.inf if len(plan.new) else super().seconds(plan)


@sample()
class DividesBySampled(Plain):
    """The time is divided by the number of rows that sample, which may be none."""

    def seconds(self, plan):
        return 0.01 * plan.total_tokens / len(plan.sampled_rows)


@sample()
class AnswersAsText(Plain):
    """The time is a text."""

    def seconds(self, plan):
        return f"{super().seconds(plan):.3f}s"


@sample()
class ReadsTheClock(Plain):
    """The time depends on how fast this machine is at the moment."""

    def seconds(self, plan):
        return super().seconds(plan) + 1e-3 * (time.perf_counter() % 1)


@sample()
class Unseeded(Plain):
    """The time is random, and no simulation can be had again."""

    def seconds(self, plan):
        return super().seconds(plan) * random.uniform(0.9, 1.1)


@sample()
class ChangesThePlan(Plain):
    """It adds up the lengths in the plan itself, which the executor reads afterwards."""

    def seconds(self, plan):
        plan.starts += plan.num_tokens
        return super().seconds(plan)


@sample()
class KeepsPlans(Plain):
    """Every plan is kept for ever."""

    def seconds(self, plan):
        vars(self).setdefault("plans", []).append(plan)
        return super().seconds(plan)


@sample()
class StepsOfTheClass(Plain):
    """Steps are counted on the class, and the first step of a second run is not slow any more."""

    num_steps: ClassVar[int] = 0

    def seconds(self, plan):
        type(self).num_steps += 1
        return super().seconds(plan) + 1.0 / self.num_steps


@sample()
class NegativeMemory(Plain):
    """The device has less than no memory for keys and values."""

    def kv_bytes(self):
        return 10**9 - 2 * 10**9


@sample()
class MemoryAsText(Plain):
    """The memory is a text."""

    def kv_bytes(self):
        return "80 GB"


@sample(RooflineOptions)
class ContextStands(Roofline):
    """While the rows stay the same their contexts seem not to grow: attention is too cheap."""

    def seconds(self, plan):
        if not plan.same_rows or self._work is None:
            self._work = StepWork.of(plan, None)
        return self._overhead_s + sum(self.parts(self._work))


@sample()
class HostBackwards(Plain):
    """The host is done before it began."""

    def host_seconds(self, plan):
        return -1e-4
