"""What every cost model must keep, on the plans of a simulated run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from itertools import takewhile
from typing import ClassVar
from unittest import SkipTest

import numpy as np

from nanofw.contracts.arrays import BoolArray
from nanofw.contracts.cost_model import CostModel, CostModelConfig
from nanofw.contracts.hooks import hook_problems
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.plan import StepPlan
from nanofw.sim.checked import CheckedCostModel
from nanofw.testing.class_state import check_class_state, class_state
from nanofw.testing.memory import reachable_bytes
from nanofw.testing.scheduler import InOrder
from nanofw.testing.sim_engine import SPEC, EngineShape, simulated_engine
from nanofw.testing.traffic import random_traffic, serve

SHAPE = EngineShape(num_blocks=20)
SLACK = 0.9
"""Times may vary a little by a rule of their own."""


class CostModelChecks(ABC):
    """Checks of one cost model; each `test_` method is one. Subclass it under pytest.

        class TestMyCostModel(CostModelChecks):
            def make(self, config):
                return MyCostModel(MyOptions(), config)

    It is asked for the times of the steps of a small run: prompts, chunks, decodes, rows that
    come and go.

    Attributes:
        spec: the model whose steps are timed.
        grows_with_work: more tokens, rows or context take at least nearly as long; False where a
            device is slower with less of them.
        kept_bytes_per_plan: how much the model may remember of each plan.
    """

    spec: ClassVar[ModelSpec] = SPEC
    grows_with_work: ClassVar[bool] = True
    kept_bytes_per_plan: ClassVar[int] = 16

    @abstractmethod
    def make(self, config: CostModelConfig) -> CostModel:
        """A fresh cost model."""

    def test_methods_are_those_of_the_contract(self) -> None:
        """No name is misspelt, and each method can be called as the contract says."""
        problems = hook_problems(type(self._fresh()), CostModel)
        assert not problems, "; ".join(problems)

    def test_every_step_has_a_time(self) -> None:
        """Seconds that are numbers and not negative; bytes, or None."""
        checked = CheckedCostModel(self._fresh(), "the cost model")
        checked.kv_bytes()
        for plan in recorded_plans():
            _seconds(checked, _copy(plan))

    def test_plans_are_neither_changed_nor_kept(self) -> None:
        """A plan is read during the call: later times do not depend on what becomes of it."""
        expected = self._times(recorded_plans())
        checked = CheckedCostModel(self._fresh(), "the cost model")
        for plan, times in zip(recorded_plans(), expected, strict=True):
            given = _copy(plan)
            found = _seconds(checked, given)
            for name in _array_names():
                before, after = getattr(plan, name), getattr(given, name)
                assert np.array_equal(before, after), (
                    f"{name} of plan {plan.step} was {before.tolist()} and became {after.tolist()}"
                )
            assert found == times, (
                f"plan {plan.step} takes {times} s, and {found} s when the plans before it were "
                "overwritten after their calls"
            )
            for name in _array_names():
                getattr(given, name)[...] = 0

    def test_times_depend_on_the_plans_alone(self) -> None:
        """The same plans take the same times, in another object and beside another one."""
        before = class_state(type(self._fresh()))
        plans = recorded_plans()
        first, second = (CheckedCostModel(self._fresh(), "the cost model") for _ in "ab")
        for number, times in enumerate(self._times(plans)):
            found = _seconds(first, _copy(plans[number]))
            assert found == times, f"plan {number} takes {times} s, and {found} s the second time"
            if number % 2:
                _seconds(second, _copy(plans[number // 2]))
        check_class_state(before, type(self._fresh()))

    def test_steady_steps_take_what_they_take_one_by_one(self) -> None:
        """`steady_seconds`, if there is one, answers what `seconds` would, and changes nothing."""
        checked, plans = CheckedCostModel(self._fresh(), "the cost model"), recorded_plans()
        expected = self._times(plans)
        for number, plan in enumerate(plans):
            count = _num_steady(plans[number:])
            if checked.knows_steady_steps and count:
                host, seconds = checked.steady_seconds(_copy(plan), count)
                found = list(zip(host or [0.0] * count, seconds, strict=True))
                times = expected[number : number + count]
                assert found == times, f"from {number} on: {times} s, and {found} s as one"
            assert _seconds(checked, _copy(plan)) == expected[number]

    def test_more_work_takes_no_less_time(self) -> None:
        """Steps of a run, each against the same step with a part of its rows or its context."""
        if not self.grows_with_work:
            raise SkipTest("grows_with_work is False")
        for plan in recorded_plans():
            for what, (more, less) in _pairs(plan).items():
                long, short = self._times([more])[0], self._times([less])[0]
                assert sum(long) >= SLACK * sum(short), (
                    f"plan {plan.step}, {what}: {sum(long):g} s against {sum(short):g} s; "
                    f"{plan.num_decodes} of {len(plan.rows)} rows decode, "
                    f"{plan.total_tokens} tokens"
                )

    def test_equal_steps_take_equal_times(self) -> None:
        """`same_rows` saves work, and says nothing that the arrays do not say."""
        plans = recorded_plans()
        expected = self._times([replace(plan, same_rows=False) for plan in plans])
        for plan, found, times in zip(plans, self._times(plans), expected, strict=True):
            assert np.allclose(found, times, rtol=1e-9, atol=0), (
                f"plan {plan.step} takes {found} s with same_rows {plan.same_rows}, and {times} s "
                "without"
            )

    def test_plans_are_forgotten(self) -> None:
        """What the model keeps does not grow with the number of plans."""
        checked, plans = CheckedCostModel(self._fresh(), "the cost model"), recorded_plans()
        sizes = list[int]()
        for _ in range(3):
            for plan in plans:
                _seconds(checked, _copy(plan))
            sizes.append(reachable_bytes(checked))
        grown = sizes[-1] - sizes[0]
        assert grown <= 2 * len(plans) * self.kept_bytes_per_plan, (
            f"after {2 * len(plans)} more plans the model keeps {grown} bytes more"
        )

    def _fresh(self) -> CostModel:
        return self.make(
            CostModelConfig(
                spec=self.spec,
                max_num_seqs=SHAPE.max_num_seqs,
                max_num_batched_tokens=SHAPE.max_num_batched_tokens,
                max_model_len=SHAPE.max_model_len,
            )
        )

    def _times(self, plans: Sequence[StepPlan]) -> list[tuple[float, float]]:
        checked = CheckedCostModel(self._fresh(), "the cost model")
        return [_seconds(checked, _copy(plan)) for plan in plans]


def _seconds(model: CheckedCostModel, plan: StepPlan) -> tuple[float, float]:
    """Of host and device; the host is asked first."""
    host = model.host_seconds(plan) if model.occupies_host else 0.0
    return host, model.seconds(plan)


def _num_steady(plans: Sequence[StepPlan]) -> int:
    """How many of them from the first on decode the rows of the plan before."""
    steady = (plan.same_rows and plan.num_decodes == len(plan.rows) for plan in plans)
    return sum(1 for _ in takewhile(bool, steady))


def _pairs(plan: StepPlan) -> dict[str, tuple[StepPlan, StepPlan]]:
    """Steps with more and with less work, by what is compared."""
    count, decodes = len(plan.rows), plan.num_decodes
    is_decode = np.arange(count) < decodes
    whole = _alone(plan, np.ones(count, bool))
    found: dict[str, tuple[StepPlan, StepPlan]] = {}
    if 0 < decodes < count:
        found["against its rows that decode"] = whole, _alone(plan, is_decode)
        found["against its prompts"] = whole, _alone(plan, ~is_decode)
    if count > 1:
        found["against its first row"] = whole, _alone(plan, np.arange(count) == 0)
    if count > decodes:
        half = np.where(is_decode, plan.num_tokens, (plan.num_tokens + 1) // 2).astype(np.int32)
        found["against half of its prompts"] = whole, replace(whole, num_tokens=half)
    longest = SHAPE.max_model_len - plan.num_tokens
    found["with the longest contexts against its own"] = replace(whole, starts=longest), whole
    return found


def _alone(plan: StepPlan, chosen: BoolArray) -> StepPlan:
    """The plan with some of its rows; no row is new or removed."""
    return replace(
        _copy(plan),
        rows=plan.rows[chosen],
        num_tokens=plan.num_tokens[chosen],
        starts=plan.starts[chosen],
        samples=plan.samples[chosen],
        num_decodes=int(np.count_nonzero(chosen[: plan.num_decodes])),
        new=(),
        same_rows=False,
    )


def _array_names() -> list[str]:
    names = [field.name for field in fields(StepPlan) if field.init]
    plan = recorded_plans()[0]
    return [name for name in names if isinstance(getattr(plan, name), np.ndarray)]


def _copy(plan: StepPlan) -> StepPlan:
    """A plan with arrays of its own."""
    return replace(
        plan,
        rows=plan.rows.copy(),
        num_tokens=plan.num_tokens.copy(),
        starts=plan.starts.copy(),
        samples=plan.samples.copy(),
        new=[replace(new, token_ids=new.token_ids.copy()) for new in plan.new],
        removed=plan.removed.copy(),
        block_rows=plan.block_rows.copy(),
        block_positions=plan.block_positions.copy(),
        block_ids=plan.block_ids.copy(),
        copies=plan.copies.copy(),
        host_rows=plan.host_rows.copy(),
    )


class _Recorder(StepObserver):
    """Keeps copies of the plans."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []

    def submitted(self, plan: StepPlan, now: float) -> None:
        self.plans.append(_copy(plan))


@lru_cache
def recorded_plans() -> tuple[StepPlan, ...]:
    """The plans of a small simulated run, in their order. They are shared: change none."""
    engine, recorder = simulated_engine(InOrder(), SHAPE), _Recorder()
    with engine.observed_by(recorder):
        serve(engine, random_traffic(2))
    return tuple(recorder.plans)
