"""Executors that are right and odd."""

from __future__ import annotations

from collections import deque

import numpy as np

from nanofw.plugins import Capacity, Executor, ExecutorFacts, Plugin, StepResult, hookimpl
from nanofw.sim.executor import SimExecutor
from nanofw.sim.options import SimOptions
from tests.mutants.broken.executors import CLAIMS
from tests.mutants.collection import Collection

sample = Collection("executor/2", CLAIMS)


@hookimpl
def executor() -> list[Plugin]:
    return sample.plugins()


class OneOptions(SimOptions):
    max_in_flight: int = 1


class FourOptions(SimOptions):
    max_in_flight: int = 4


@sample(OneOptions)
class OneInFlight(SimExecutor):
    """It takes a step only when the one before was collected."""


@sample(FourOptions)
class FourInFlight(SimExecutor):
    """It takes four steps before the first is collected."""


@sample(SimOptions)
class RefusesSiblings(SimExecutor):
    """It refuses requests for several samples."""

    def check(self, request):
        if request.sampling.n > 1:
            raise ValueError("n must be 1")


@sample(needs=(), virtual_time=False)
class Counting(Executor):
    """It computes nothing: a token follows from seed, sample and position; steps take no time."""

    def __init__(self, options, config):
        self.config, self.pending = config, deque()
        self.rows, self.ends = {}, sorted(config.spec.eos_token_ids)

    def capacity(self):
        config = self.config
        full = config.max_num_seqs * -(-config.max_model_len // config.block_size)
        return Capacity(
            num_blocks=config.num_blocks or full, block_size=config.block_size, max_in_flight=2
        )

    def submit(self, plan):
        for new in plan.new:
            self.rows[new.row] = 31 * new.seed + 17 * new.sample_index
        ends = (plan.starts + plan.num_tokens)[plan.samples]
        places = zip(plan.sampled_rows.tolist(), ends.tolist(), strict=True)
        self.pending.append((plan, [self.token(*place) for place in places]))

    def token(self, row, position, allowed=None):
        if allowed is None:
            allowed = np.delete(np.arange(self.config.spec.num_sampled_ids), self.ends)
        return allowed[(self.rows[row] + 7 * position) % len(allowed)]

    def provide(self, masks):
        plan, tokens = self.pending[-1]
        ends = dict(zip(plan.rows.tolist(), (plan.starts + plan.num_tokens).tolist(), strict=True))
        places = {row: i for i, row in enumerate(plan.sampled_rows.tolist())}
        for row, bits in zip(plan.host_rows.tolist(), masks.bits, strict=True):
            flags = np.unpackbits(np.ascontiguousarray(bits).view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(flags[: self.config.spec.num_sampled_ids])
            tokens[places[row]] = self.token(row, ends[row], allowed)

    def collect(self):
        plan, tokens = self.pending.popleft()
        return StepResult(step=plan.step, token_ids=np.array(tokens, np.int32))


@sample(SimOptions)
class MadeWhenNeeded(SimExecutor):
    """What it keeps of rows is made by the first step; it tells of itself in `facts`."""

    num_steps = 0

    def submit(self, plan):
        self.num_steps += 1
        super().submit(plan)

    def facts(self):
        return ExecutorFacts(graph_steps={"eager": self.num_steps})
