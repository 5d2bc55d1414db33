"""What every cost model must keep, on the plans of a simulated run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from itertools import takewhile
from typing import ClassVar

import numpy as np

from nanofw.contracts.cost_model import CostModel, CostModelConfig
from nanofw.contracts.hooks import hook_problems
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.plan import StepPlan
from nanofw.sim.checked import CheckedCostModel
from nanofw.testing.class_state import check_class_state, class_state
from nanofw.testing.scheduler import InOrder
from nanofw.testing.sim_engine import SPEC, EngineShape, simulated_engine
from nanofw.testing.traffic import random_traffic, serve

SHAPE = EngineShape(num_blocks=20)


class CostModelChecks(ABC):
    """Checks of one cost model; each `test_` method is one. Subclass it under pytest.

        class TestMyCostModel(CostModelChecks):
            def make(self, config):
                return MyCostModel(MyOptions(), config)

    It is asked for the times of the steps of a small run: prompts, chunks, decodes, rows that
    come and go.

    Attributes:
        spec: the model whose steps are timed.
    """

    spec: ClassVar[ModelSpec] = SPEC

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
