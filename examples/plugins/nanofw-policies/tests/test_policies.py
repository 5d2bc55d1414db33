"""Each policy keeps the contract, and does what its paper says, in a small simulated run."""

from __future__ import annotations

from collections import Counter

import pytest
from nanofw_policies.andes import Andes, AndesOptions
from nanofw_policies.fast_serve import FastServe, FastServeOptions
from nanofw_policies.prefix_batching import PrefixBatching, PrefixBatchingOptions
from nanofw_policies.sarathi import Sarathi, SarathiOptions
from nanofw_policies.slo_admission import SLOAdmission, SLOAdmissionOptions
from nanofw_policies.token_rate import TokenRate, TokenRateOptions
from nanofw_policies.weighted_vtc import WeightedVTC, WeightedVTCOptions

from nanofw.plugins import FinishReason, Policy, Request, SamplingParams
from nanofw.testing import EngineShape, SchedulerChecks, Traffic, construct, serve, simulated_engine

STEP = 0.01  # seconds of a simulated step


class Fifo(Policy):
    def key(self, request, view):
        return request.arrival


class TestWeightedVTC(SchedulerChecks):
    def make(self, config):
        return WeightedVTC(WeightedVTCOptions(weights={"a": 2.0}), config)


class TestFastServe(SchedulerChecks):
    def make(self, config):
        return FastServe(FastServeOptions(quantum=4, max_batch=2, levels=3), config)


class TestSarathi(SchedulerChecks):
    def make(self, config):
        return Sarathi(SarathiOptions(tokens=6), config)


class TestAndes(SchedulerChecks):
    def make(self, config):
        return Andes(AndesOptions(refresh_s=0.02), config)


class TestSLOAdmission(SchedulerChecks):
    def make(self, config):
        return SLOAdmission(SLOAdmissionOptions(ttft_s=0.1), config)


class TestTokenRate(SchedulerChecks):
    def make(self, config):
        return TokenRate(TokenRateOptions(rate=5000.0, burst=200.0), config)


class TestPrefixBatching(SchedulerChecks):
    def make(self, config):
        return PrefixBatching(PrefixBatchingOptions(tokens=4), config)


@pytest.mark.nanofw_plugins("scheduler", distribution="nanofw-policies")
def test_what_is_installed_can_be_made(component):
    assert isinstance(construct(component), Policy)


def request(name, *, prompt: int | list[int] = 3, tokens=4, arrival=0.0, **fields):
    token_ids = list(range(1, prompt + 1)) if isinstance(prompt, int) else prompt
    return Request(
        id=name,
        prompt_token_ids=token_ids,
        sampling=SamplingParams(max_tokens=tokens, ignore_eos=True),
        arrival=arrival,
        **fields,
    )


def wait(output):
    """Seconds from arrival to the first token."""
    assert output.first_token is not None
    return output.first_token - output.arrival


def run(policy, requests, **shape):
    """The outputs by id."""
    engine = simulated_engine(policy, EngineShape(**shape))
    return serve(engine, Traffic(requests=tuple(requests))).outputs


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def test_vtc_serves_a_quiet_client_beside_a_loud_one():
    loud = [request(f"loud{i}", client="loud", tokens=10) for i in range(40)]
    quiet = [request(f"quiet{i}", client="quiet", tokens=10, arrival=0.001) for i in range(4)]
    ends = {}
    for policy in (WeightedVTC(WeightedVTCOptions(), None), Fifo()):
        outputs = run(policy, [*loud, *quiet], max_num_seqs=4)
        ends[type(policy)] = mean(outputs[one.id].finished for one in quiet)
    assert ends[WeightedVTC] < 0.4 * ends[Fifo]


def test_vtc_weights_divide_the_service():
    requests = [request(f"{c}{i}", client=c, tokens=10) for i in range(60) for c in "ab"]
    outputs = run(
        WeightedVTC(WeightedVTCOptions(weights={"a": 3.0}), None), requests, max_num_seqs=4
    )
    first = sorted(outputs.values(), key=lambda output: output.finished)[:40]
    served = Counter(output.id[0] for output in first)
    assert 2.0 < served["a"] / served["b"] < 4.5


def test_fast_serve_lets_short_jobs_pass_long_ones_without_knowing_their_length():
    long = [request(f"long{i}", tokens=150) for i in range(6)]
    short = [request(f"short{i}", tokens=5, arrival=0.2) for i in range(6)]
    ends = {}
    options = FastServeOptions(quantum=16, max_batch=2, levels=4)
    for policy in (FastServe(options, None), Fifo()):
        rows = 12 if isinstance(policy, FastServe) else 2
        shape = {"max_num_seqs": rows, "num_blocks": 400, "max_model_len": 256}
        outputs = run(policy, [*long, *short], **shape)
        ends[type(policy)] = mean(outputs[one.id].finished - 0.2 for one in short)
    assert ends[FastServe] < 0.2 * ends[Fifo]


def test_sarathi_bounds_the_tokens_of_a_step():
    policy = Sarathi(SarathiOptions(tokens=8), None)
    engine = simulated_engine(policy, EngineShape(max_num_seqs=4, max_num_batched_tokens=64))
    for i in range(6):
        engine.add_request(request(str(i), prompt=30, tokens=6))
    most = 0
    while engine.has_unfinished:
        report = engine.step().report
        if report is not None:
            most = max(most, report.num_prefill_tokens + report.num_decode_tokens)
    assert most == 8


def test_andes_serves_readers_before_they_run_dry():
    """With more readers than rows, no reader waits much longer than the reading speed asks for."""
    requests = [request(str(i), tokens=40) for i in range(8)]
    options = AndesOptions(ttft_s=0.2, tokens_per_s=30.0, horizon_s=0.3, refresh_s=0.05)
    last = {}
    for policy in (Andes(options, None), Fifo()):
        outputs = run(policy, requests, max_num_seqs=4, num_blocks=400)
        last[type(policy)] = max(wait(output) for output in outputs.values())
    assert last[Andes] < 0.75 * last[Fifo]


def test_slo_admission_sheds_what_would_be_late_and_the_others_are_in_time():
    requests = [request(str(i), prompt=30, tokens=2, arrival=0.004 * i) for i in range(100)]
    shape = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "prefix_cache": False}
    late = [wait(output) for output in run(Fifo(), requests, **shape).values()]
    assert max(late) > 0.4
    outputs = run(SLOAdmission(SLOAdmissionOptions(ttft_s=0.2), None), requests, **shape)
    served = [o for o in outputs.values() if o.finish_reason is FinishReason.LENGTH]
    assert {o.finish_reason for o in outputs.values()} <= {FinishReason.LENGTH, FinishReason.SHED}
    assert len(served) > 20
    assert sorted(wait(o) for o in served)[int(0.9 * len(served))] < 0.3


def test_token_rate_holds_a_client_to_its_rate_and_the_engine_waits():
    requests = [request(str(i), prompt=10, tokens=10) for i in range(20)]
    outputs = run(TokenRate(TokenRateOptions(rate=100.0, burst=40.0), None), requests)
    ends = max(output.finished for output in outputs.values())
    assert 3.5 < ends < 4.5  # 400 tokens, 40 of them at once, the rest at 100 a second


def test_prefix_batching_computes_each_prefix_once():
    prefixes = [[40 + i] * 32 for i in range(4)]
    requests = [
        request(f"{i}-{j}", prompt=[*prefixes[j], i + 1], tokens=2)
        for i in range(12)
        for j in range(4)
    ]
    cached = {}
    for policy in (PrefixBatching(PrefixBatchingOptions(tokens=32), None), Fifo()):
        shape = {"max_num_seqs": 1, "block_size": 16, "num_blocks": 4, "prefix_cache": True}
        outputs = run(policy, requests, **shape)
        cached[type(policy)] = sum(output.num_cached_tokens for output in outputs.values())
    assert cached[PrefixBatching] > 3 * max(cached[Fifo], 1)


@pytest.mark.parametrize(
    "policy",
    [
        FastServe(FastServeOptions(quantum=2, levels=2), None),
        Andes(AndesOptions(refresh_s=0.02), None),
        SLOAdmission(SLOAdmissionOptions(ttft_s=10.0), None),
        TokenRate(TokenRateOptions(rate=5000.0, burst=200.0), None),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_samples_of_a_request_end_one_by_one(policy, caplog):
    """They share id and index; what is kept of one outlives the end of another."""
    engine = simulated_engine(policy, EngineShape(max_num_seqs=2))
    sampling = SamplingParams(max_tokens=9, n=3, ignore_eos=True)
    with engine:
        engine.add_request(
            Request(id="a", prompt_token_ids=[1, 2, 3], sampling=sampling, arrival=0.0)
        )
        finished = []
        while len(finished) < 3:
            finished += engine.step().finished
    assert {(output.sample_index, len(output.token_ids)) for output in finished} == {
        (index, 9) for index in range(3)
    }
    assert caplog.records == []
