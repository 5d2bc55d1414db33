"""The kit passes what is right and fails what is wrong, and says what it saw."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from nanofw.errors import NanofwError
from nanofw.kv_allocators.paged import PagedAllocator
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.plugins import Allocation, CostModel, Extension, Match, Policy, Refuse, Workload
from nanofw.sim.constant import ConstantCost, ConstantOptions
from nanofw.testing import (
    check_cost_model,
    check_kv_allocator,
    check_scheduler,
    check_workload,
)
from nanofw.workloads.open_loop import OpenLoop, PoissonOptions

WRONG = (AssertionError, NanofwError)


class InOrder(Policy):
    def key(self, request, view):
        return request.arrival


# -- policies -----------------------------------------------------------------------------


class RefusesTheLong(InOrder):
    """On arrival and while they wait."""

    def key(self, request, view):
        if request.num_prompt_tokens > 30:
            return Refuse("too long")
        return request.arrival

    def admit(self, request, view):
        return Refuse("it waited too long") if view.now - request.arrival > 0.2 else True


class KnowsSomeClients(InOrder):
    """A dictionary by client, and groups whose keys grow."""

    def __init__(self, options=None, config=None):
        super().__init__(options, config)
        self.weights = {"client 1": 2.0}
        self.served = Counter()
        self.clients = {}

    def group(self, request):
        return request.client

    def group_key(self, group, view):
        return self.served[group]

    def on_start(self, row, request, view):
        self.clients[row] = request.client

    def on_progress(self, rows, num_tokens, num_decodes, view):
        for row, num in zip(rows.tolist(), num_tokens.tolist(), strict=True):
            client = self.clients[row]
            self.served[client] += num / self.weights.get(client, 1.0)


@pytest.mark.parametrize("right", [RefusesTheLong, KnowsSomeClients])
def test_F023_right_policies_pass(right) -> None:
    check_scheduler(lambda config: right(None, config))


class ServesTheServed(KnowsSomeClients):
    def group_key(self, group, view):
        return -self.served[group]


class OrdersByHash(InOrder):
    def key(self, request, view):
        return hash(request.client)


class OrdersByASet(InOrder):
    def __init__(self, options=None, config=None):
        super().__init__(options, config)
        self.clients = set()

    def key(self, request, view):
        self.clients.add(request.client)
        return list(self.clients).index(request.client)


class CountsInTheClass(InOrder):
    served = Counter()  # noqa: RUF012

    def key(self, request, view):
        return self.served[request.client]

    def on_start(self, row, request, view):
        self.served[request.client] += 1


class MisspeltHook(InOrder):
    def on_arival(self, request, view):
        pass


class MisshapenHook(InOrder):
    def admit(self, request):
        return True


class HoardsThePreempted(InOrder):
    def __init__(self, options=None, config=None):
        super().__init__(options, config)
        self.preempted = []

    def on_preempt(self, row, request, view):
        self.preempted.append((view.now, request.id))


class KeepsThePreemptedOut(InOrder):
    def admit(self, request, view):
        return request.num_preemptions == 0


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        (ServesTheServed, r"group_key\('client \d'\) was -?\d.* and -\d"),
        (OrdersByHash, r"other hashes .* differ.*: step \d+ was "),
        pytest.param(
            OrdersByASet, r"other hashes .* differ.*: step \d+ was ", marks=pytest.mark.slow
        ),
        (CountsInTheClass, r"CountsInTheClass\.served was .* and became Counter"),
        (MisspeltHook, "did you mean on_arrival"),
        (MisshapenHook, r"admit\(self, request\) cannot be called as"),
        (HoardsThePreempted, r"\d+ preemptions in all, the policy keeps \d+ bytes more"),
        (KeepsThePreemptedOut, "nothing can ever change"),
    ],
)
def test_F024_wrong_policies_fail_with_what_was_seen(wrong, seen) -> None:
    with pytest.raises(WRONG, match=seen):
        check_scheduler(lambda config: wrong(None, config))


# -- allocators ---------------------------------------------------------------------------


class ListsInMatches(PagedPrefixAllocator):
    def match(self, token_ids, salt=0):
        found = super().match(token_ids, salt)
        return Match(found.num_tokens, found.block_ids.tolist())

    def acquire(self, row, token_ids, match, salt=0):
        return super().acquire(row, token_ids, super().match(token_ids[:-1], salt), salt)


class ListsInTables(PagedAllocator):
    def acquire(self, row, token_ids, match, salt=0):
        found = super().acquire(row, token_ids, match, salt)
        return found and Allocation(found.block_ids.tolist())


class WideIntegers(PagedAllocator):
    def extend(self, rows, num_tokens):
        found = super().extend(rows, num_tokens)
        return found and Extension(
            found.rows.astype("int64"), found.positions, found.block_ids, found.copies
        )


class CountsNoHits(PagedPrefixAllocator):
    def stats(self):
        return replace(super().stats(), num_hits=0)


class IgnoresSalts(PagedPrefixAllocator):
    def match(self, token_ids, salt=0):
        return super().match(token_ids)

    def acquire(self, row, token_ids, match, salt=0):
        return super().acquire(row, token_ids, match)


class CachesInTheClass(PagedPrefixAllocator):
    calls = [0]  # noqa: RUF012

    def match(self, token_ids, salt=0):
        self.calls[0] += 1
        return super().match(token_ids, salt)


class MisspeltMethod(PagedAllocator):
    def num_cached_token(self, token_ids, salt=0):
        return 0


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        (ListsInMatches, r"match gave block_ids as \[.*\]; it must be a numpy array int32"),
        (ListsInTables, r"acquire gave block_ids as \[.*\]; it must be a numpy array int32"),
        (WideIntegers, r"extend gave rows as int64\[\d+\]"),
        (CountsNoHits, r"acquire took \d+ blocks from matches .*num_hits=0"),
        (IgnoresSalts, "salt"),
        (CachesInTheClass, r"CachesInTheClass\.calls was \[\d+\] and became"),
        (MisspeltMethod, "did you mean num_cached_tokens"),
    ],
)
def test_F024_wrong_allocators_fail_with_what_was_seen(wrong, seen) -> None:
    capabilities = {"prefix_cache": issubclass(wrong, PagedPrefixAllocator)}
    with pytest.raises(WRONG, match=seen):
        check_kv_allocator(lambda config: wrong(None, config), capabilities=capabilities)


# -- workloads ----------------------------------------------------------------------------


class Requests(OpenLoop):
    def __init__(self, config):
        values = {"num_requests": 30, "rate": 5.0, "prompt": 20, "output": 8}
        super().__init__(PoissonOptions.model_validate(values), config)
        self.config = config


class Doubles(Requests):
    def initial(self):
        for request in super().initial():
            yield replace(request, id=str(int(request.id) // 2))


class Backwards(Requests):
    def initial(self):
        yield from list(super().initial())[::-1]


class TooLong(Requests):
    def initial(self):
        for request in super().initial():
            yield replace(request, sampling=replace(request.sampling, max_tokens=1000))


class ForeignTokens(Requests):
    def initial(self):
        for request in super().initial():
            yield replace(request, prompt_token_ids=[1, 2, self.config.vocab_size])


class FloatTokens(Requests):
    def initial(self):
        for request in super().initial():
            yield replace(request, prompt_token_ids=[1.0, 2.0])


class IgnoresTheSeed(Requests):
    def __init__(self, config):
        super().__init__(replace(config, seed=0))


class IgnoresTheScale(Requests):
    def __init__(self, config):
        super().__init__(replace(config, time_scale=1.0))


class SaysAnotherRate(Requests):
    @property
    def rate(self):
        return 0.5


class PromisesMore(Requests):
    @property
    def num_requests(self):
        return 31


class MisspeltFollow(Requests):
    def folow(self, output):
        return ()


class NumbersInTheClass(Requests):
    number = 0

    def initial(self):
        for request in super().initial():
            type(self).number += 1
            yield replace(request, id=f"{self.number}")


def test_F023_right_workloads_pass() -> None:
    check_workload(Requests)
    check_workload(IgnoresTheSeed, depends_on_seed=False)


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        (Doubles, "two requests have the id '0'|ids must be unique"),
        (Backwards, r"arrives at [\d.]+, after [\d.]+ s|arrivals must not fall"),
        (TooLong, "20 prompt tokens and max_tokens 1000, and the model's length is 256"),
        (ForeignTokens, r"token ids from 1 to 64; the vocabulary has 64|were not served.*64"),
        (FloatTokens, r"the prompt is float64\[2\]|were not served.*integer"),
        (IgnoresTheSeed, "two seeds gave the same 30 requests"),
        (IgnoresTheScale, r"arrives at [\d.]+ s under time_scale"),
        (SaysAnotherRate, r"rate is 0\.5 a second, and 30 requests came at \d"),
        (PromisesMore, "31 requests were promised, and 30 came"),
        (MisspeltFollow, "did you mean follow"),
        (NumbersInTheClass, r"NumbersInTheClass\.number was \d+ and became|request 0 is .*and"),
    ],
)
def test_F024_wrong_workloads_fail_with_what_was_seen(wrong, seen) -> None:
    assert issubclass(wrong, Workload)
    with pytest.raises(WRONG, match=seen):
        check_workload(wrong)


# -- cost models --------------------------------------------------------------------------


class Plain(ConstantCost):
    def __init__(self, config):
        super().__init__(ConstantOptions(seconds_per_token=0.001), config)


class RunsBackwards(Plain):
    def seconds(self, plan):
        return -super().seconds(plan)


class AnswersWithAList(Plain):
    def seconds(self, plan):
        return [super().seconds(plan)]


class KeepsThePlan(Plain):
    before = None

    def __init__(self, config):
        super().__init__(config)
        self.before = None

    def seconds(self, plan):
        more = 0.0 if self.before is None else float(self.before.starts.sum())
        self.before = plan
        return super().seconds(plan) + more


class ChangesThePlan(Plain):
    def seconds(self, plan):
        seconds = super().seconds(plan)
        plan.num_tokens[:] = 1
        return seconds


class WarmsUpInTheClass(Plain):
    steps = 0

    def seconds(self, plan):
        type(self).steps += 1
        return super().seconds(plan) + 1.0 / self.steps


class MisspeltBytes(Plain):
    def kv_byte(self):
        return 0


def test_F023_right_cost_models_pass() -> None:
    check_cost_model(Plain)


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        (RunsBackwards, r"seconds\(\) returned -0\.\d"),
        (AnswersWithAList, r"seconds\(\) returned \[0\.\d"),
        (KeepsThePlan, r"plan \d+ takes .* and .* when the plans before it were overwritten"),
        (ChangesThePlan, r"num_tokens of plan \d+ was \[.*\] and became \[1"),
        (WarmsUpInTheClass, r"plan \d+ takes .* s"),
        (MisspeltBytes, "did you mean kv_bytes"),
    ],
)
def test_F024_wrong_cost_models_fail_with_what_was_seen(wrong, seen) -> None:
    assert isinstance(wrong(None), CostModel)
    with pytest.raises(WRONG, match=seen):
        check_cost_model(wrong)
