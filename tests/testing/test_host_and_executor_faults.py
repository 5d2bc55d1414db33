"""Host processors and executors: right ones pass, wrong ones are caught with what was seen."""

from __future__ import annotations

import numpy as np
import pytest

from nanofw.errors import NanofwError
from nanofw.plugins import HostProcessor
from nanofw.sim.executor import SimExecutor
from nanofw.sim.options import SimOptions
from nanofw.testing import (
    ExecutorChecks,
    HostProcessorChecks,
    check_names,
    construct,
    load_component,
    score,
)


class Counts(HostProcessor):
    """Allows a token and those after it, up to a number that a request brings; then all."""

    def __init__(self, options, config):
        super().__init__(options, config)
        self.live = {}

    def check(self, arguments):
        if arguments is not None and not (type(arguments) is int and arguments > 0):
            raise ValueError(f"arguments are a number from 1, not {arguments!r}")

    def start(self, request_id, arguments, prompt):
        if arguments is not None:
            self.live[request_id] = [arguments, 0]
        return arguments is not None

    def advance(self, request_id, token_ids):
        self.live[request_id][1] += len(token_ids)

    def mask(self, request_id, bits):
        most, count = self.live[request_id]
        if count < most:
            bits[0] &= np.int32(1 << (1 + count))
            bits[1:] = 0

    def finish(self, request_id):
        self.live.pop(request_id, None)


class SetsBits(Counts):
    def mask(self, request_id, bits):
        most, count = self.live[request_id]
        if count < most:
            bits[:] = 0
            bits[0] = 1 << (1 + count)


class MovesInMask(Counts):
    def mask(self, request_id, bits):
        super().mask(request_id, bits)
        self.live[request_id][1] += 1


class CountsCalls(Counts):
    def advance(self, request_id, token_ids):
        self.live[request_id][1] += 1


class NeverFinishes(Counts):
    def finish(self, request_id):
        pass


class KeepsTheCount(Counts):
    def start(self, request_id, arguments, prompt):
        if arguments is not None:
            self.live[request_id] = [arguments, self.live.get(request_id, [0, 0])[1]]
        return arguments is not None

    def finish(self, request_id):
        pass


class OneStateForAll(Counts):
    count = 0

    def advance(self, request_id, token_ids):
        type(self).count += len(token_ids)
        self.live[request_id][1] = type(self).count % 7


class EndsInNothing(Counts):
    def mask(self, request_id, bits):
        if self.live[request_id][1] == 3:
            bits[:] = 0


class MasksTheWrongLine(Counts):
    def mask_rows(self, request_ids, bits):
        return super().mask_rows([*request_ids[1:], None], bits)


class SaysNothing(Counts):
    def start(self, request_id, arguments, prompt):
        super().start(request_id, arguments, prompt)


class ChecksOfCounts(HostProcessorChecks):
    name = "counts"
    arguments = (None, 2, 5)
    wrong_arguments = (0, "a", [1])
    wrong = Counts

    def make(self, config):
        return self.wrong(None, config)


def failures(checks):
    results = [score(checks, name) for name in check_names(checks)]
    return [result for result in results if result.outcome == "failed"]


def test_a_right_host_processor_passes():
    assert failures(ChecksOfCounts()) == []


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        (SetsBits, "are allowed when others forbid half"),
        (MovesInMask, "in a row differ"),
        (CountsCalls, "at once the mask differs"),
        (NeverFinishes, "bytes more; finish() drops"),
        (KeepsTheCount, "which had the same id and ended"),
        (OneStateForAll, "beside other"),
        (EndsInNothing, "no token is allowed after"),
        (MasksTheWrongLine, "line whose request is None"),
        (SaysNothing, "start() returned None"),
    ],
)
def test_wrong_host_processors_are_caught_with_what_was_seen(wrong, seen):
    checks = type("Checks", (ChecksOfCounts,), {"wrong": wrong})()
    assert seen in " | ".join(result.seen for result in failures(checks))


class ChecksOfSim(ExecutorChecks):
    capabilities = {"needs": ("cost_model",), "virtual_time": True}  # noqa: RUF012
    seeds = range(1)
    wrong = SimExecutor

    def make(self, config):
        return self.wrong(SimOptions(max_in_flight=2), config)


class LooksAtTheBatch(SimExecutor):
    def collect(self):
        result = super().collect()
        result.token_ids[:] = (result.token_ids + len(result.token_ids)) % 60
        return result


class AnswersLate(SimExecutor):
    def collect(self):
        result = super().collect()
        before = getattr(self, "before", result)
        self.before = result
        return before


class SharesItsRows(SimExecutor):
    rows = np.zeros(32, np.uint64)

    def __init__(self, options, config):
        super().__init__(options, config)
        self._keys = SharesItsRows.rows


class Hoards(SimExecutor):
    def submit(self, plan):
        self.seen = [*getattr(self, "seen", []), *(new.token_ids for new in plan.new)]
        super().submit(plan)


class IgnoresMasks(SimExecutor):
    def provide(self, masks):
        masks.bits[:] = -1
        super().provide(masks)


class HalvesThePool(SimExecutor):
    def capacity(self):
        import dataclasses

        found = super().capacity()
        return dataclasses.replace(found, num_blocks=found.num_blocks // 2)


@pytest.mark.parametrize(
    ("wrong", "check", "seen"),
    [
        (LooksAtTheBatch, "test_tokens_depend_on_the_request_alone", "with room for everybody"),
        (AnswersLate, "test_tokens_depend_on_the_request_alone", "step of collect"),
        (SharesItsRows, "test_two_executors_share_nothing", "share"),
        (Hoards, "test_finished_requests_are_forgotten", "bytes more"),
        (IgnoresMasks, "test_masks_of_the_host_are_kept", "which were forbidden"),
        (HalvesThePool, "test_the_capacity_is_what_was_asked_for", "were asked for"),
    ],
)
def test_wrong_executors_are_caught_with_what_was_seen(wrong, check, seen):
    result = score(type("Checks", (ChecksOfSim,), {"wrong": wrong})(), check)
    assert result.outcome == "failed"
    assert seen in result.seen or "another executor beside it" in result.seen


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sim", "torch"])
def test_built_in_executors_pass(name):
    component = load_component("executor", name)

    class Checks(ExecutorChecks):
        capabilities = component.plugin.capabilities

        def make(self, config):
            return construct(component, config)

    assert failures(Checks()) == []


def test_the_built_in_host_processor_passes():
    pytest.importorskip("llguidance")
    component = load_component("logits_processor", "structured")

    class Checks(HostProcessorChecks):
        name = "structured"
        arguments = (None, {"regex": "[a-z]{3,9}"}, {"choice": ["red", "green"]})
        wrong_arguments = ({"regex": "["}, 3)

        def make(self, config):
            return construct(component, config)

    assert failures(Checks()) == []
    with pytest.raises(NanofwError):
        load_component("logits_processor", "structred")
