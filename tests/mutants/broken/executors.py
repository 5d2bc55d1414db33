"""Executors that are wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from nanofw.plugins import Plugin, VirtualClock, hookimpl
from nanofw.sim.executor import SimExecutor
from nanofw.sim.options import SimOptions
from tests.mutants.collection import Collection

CLAIMS = {
    "devices": ("*",),
    "overlap": True,
    "needs": ("cost_model",),
    "virtual_time": True,
}
sample = Collection("executor/2", CLAIMS)


@hookimpl
def executor() -> list[Plugin]:
    return sample.plugins()


@sample(SimOptions)
class CountsFromOne(SimExecutor):
    """The number of a result is one more than its plan's."""

    def collect(self):
        result = super().collect()
        return replace(result, step=result.step + 1)


@sample(SimOptions)
class NewestFirst(SimExecutor):
    """The plan that came last is collected first."""

    def collect(self):
        self._pending.rotate(1)
        return super().collect()


@sample(SimOptions)
class LastRowLost(SimExecutor):
    """The result has a token less than rows sampled, when there are several."""

    def collect(self):
        result = super().collect()
        if len(result.token_ids) < 2:
            return result
        return replace(result, token_ids=result.token_ids[:-1])


@sample(SimOptions)
class WideTokens(SimExecutor):
    """Tokens are floating point numbers."""

    def collect(self):
        result = super().collect()
        return replace(result, token_ids=result.token_ids.astype(np.float64))


@sample(SimOptions)
class InOrderOfRows(SimExecutor):
    """Tokens come in the order of the row numbers, not in that of the plan."""

    def collect(self):
        order = np.argsort(self._pending[0].rows, kind="stable")
        result = super().collect()
        return replace(result, token_ids=result.token_ids[order])


@sample(SimOptions)
class MasksIgnored(SimExecutor):
    """Rows that wait for masks sample whatever they like."""

    def provide(self, masks):
        super().provide(replace(masks, bits=np.full_like(masks.bits, -1)))


@sample(SimOptions)
class SeedsIgnored(SimExecutor):
    """All requests have the same random numbers."""

    def submit(self, plan):
        super().submit(replace(plan, new=[replace(new, seed=0) for new in plan.new]))


@sample(SimOptions)
class SiblingsAlike(SimExecutor):
    """All samples of a prompt are equal."""

    def submit(self, plan):
        super().submit(replace(plan, new=[replace(new, sample_index=0) for new in plan.new]))


@sample(SimOptions)
class NeighboursDecide(SimExecutor):
    """Tokens depend on how many rows sample in the step."""

    def collect(self):
        result = super().collect()
        count = len(result.token_ids)
        bound = self._rule._vocab_size
        return replace(result, token_ids=(result.token_ids + count) % np.int32(bound))


@sample(SimOptions)
class RowsDecide(SimExecutor):
    """Tokens depend on the row that a request happens to be in."""

    def submit(self, plan):
        super().submit(replace(plan, new=[replace(n, seed=n.seed ^ n.row) for n in plan.new]))


@sample(SimOptions)
class StandsStill(SimExecutor):
    """It claims virtual time, and never moves the engine's clock: no request takes any time."""

    def __init__(self, options, config):
        super().__init__(options, replace(config, clock=VirtualClock(config.clock.now())))


@sample(SimOptions)
class ClosesOnce(SimExecutor):
    """A second `close` fails, though closing is to be idempotent."""

    def close(self):
        if self._closed:
            raise RuntimeError("it is closed already")
        super().close()


@sample(SimOptions)
class OutsideTheVocabulary(SimExecutor):
    """Some tokens are the vocabulary's size, which is the first number that is not a token."""

    def __init__(self, options, config):
        super().__init__(options, config)
        self._bound = config.spec.vocab_size

    def collect(self):
        result = super().collect()
        outside = np.where(result.token_ids % 5 == 0, self._bound, result.token_ids)
        return replace(result, token_ids=outside.astype(np.int32))


@sample(SimOptions)
class PromisesMore(SimExecutor):
    """It says that it takes one step in flight more than it does."""

    def capacity(self):
        found = super().capacity()
        return replace(found, max_in_flight=found.max_in_flight + 1)


@sample(SimOptions)
class TwiceTheBlocks(SimExecutor):
    """It says that it has twice the blocks that the configuration gives it."""

    def capacity(self):
        found = super().capacity()
        return replace(found, num_blocks=2 * found.num_blocks)


@sample(SimOptions)
class BlocksOfItsOwn(SimExecutor):
    """Its blocks have another size than the one that was resolved."""

    def capacity(self):
        found = super().capacity()
        return replace(found, block_size=2 * found.block_size)


@sample(SimOptions)
class RowsOfTheClass(SimExecutor):
    """Keys of rows are kept on the class: two engines of a process overwrite each other's."""

    everybody: ClassVar[Any] = None

    def __init__(self, options, config):
        super().__init__(options, config)
        if self.everybody is None or len(self.everybody) < len(self._keys):
            type(self).everybody = self._keys
        vars(self)["_keys"] = self.everybody


@sample(SimOptions)
class TimeBackwards(SimExecutor):
    """A step took less than no time."""

    def collect(self):
        return replace(super().collect(), seconds=-1.0)


@sample(SimOptions)
class KeepsPlans(SimExecutor):
    """Every plan is kept for ever."""

    def submit(self, plan):
        vars(self).setdefault("plans", []).append((plan.step, plan.rows.copy(), plan.starts.copy()))
        super().submit(plan)


@sample(SimOptions)
class NothingWithoutTokens(SimExecutor):
    """A step in which no row samples has no result."""

    def collect(self):
        result = super().collect()
        return result if len(result.token_ids) else None


@sample(SimOptions)
class WritesThePlan(SimExecutor):
    """It overwrites arrays of a plan that it has read, and others look at them after it."""

    def submit(self, plan):
        super().submit(plan)
        for array in (plan.starts, plan.block_ids, plan.block_positions):
            if array.flags.writeable:
                array[:] = -5
