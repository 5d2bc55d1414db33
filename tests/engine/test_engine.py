"""The engine through its public methods, over the simulated executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.logits_processor import HostProcessor
from nanofw.contracts.requests import FinishReason, Request, SamplingParams
from nanofw.contracts.scheduler import Policy, RequestView, SchedulerView
from nanofw.engine.host_processors import HostProcessors
from nanofw.engine.request_state import derive_seed
from nanofw.errors import ExecutorError, NanofwError, PolicyError, RequestError
from tests.engine.policies import SOUND, UrgentPreempts
from tests.engine.sim_engines import EOS, VOCAB, Run, make_engine, make_request, run
from tests.engine.test_machine import check_idle

BOTH = pytest.mark.parametrize("overlap", [False, True])


def test_equal_prompts_without_a_seed_differ_and_repeat() -> None:
    def samples(**options: Any) -> list[list[int]]:
        engine = make_engine(**options)
        ended = run(engine, *(make_request(f"r{i}", [1, 2, 3], 6) for i in range(64)))
        return [ended.tokens()[f"r{i}"] for i in range(64)]

    first = samples()
    assert len({tuple(tokens) for tokens in first}) == 64
    assert samples() == first
    for policy in SOUND.values():
        assert samples(policy=policy(), overlap=True, num_blocks=12) == first
    assert samples(seed=1) != first


def test_seeds_depend_on_engine_seed_and_index_alone() -> None:
    seeds = {derive_seed(seed, index) for seed in range(20) for index in range(200)}
    assert len(seeds) == 20 * 200
    assert all(0 <= seed < 1 << 64 for seed in seeds)


def test_overlap_keeps_a_step_in_flight_and_drops_the_surplus() -> None:
    requests = [make_request(f"r{i}", 4 + i, 30, seed=i) for i in range(6)]
    sim = {"eos_probability": 0.15}
    plain = run(make_engine(sim=sim), *requests)
    engine = make_engine(sim=sim, overlap=True)
    for request in requests:
        engine.add_request(request)
    assert engine.step().report is None  # the first step is still in flight
    overlapped = Run(engine).to_end()
    assert overlapped.tokens() == plain.tokens()
    counters = engine.scheduler.counters
    assert counters.num_output_tokens == sum(len(t) for t in plain.tokens().values())
    assert any(output.finish_reason is FinishReason.STOP for output in plain.outputs.values())
    assert sum(r.num_decode_tokens for r in overlapped.reports) > sum(
        r.num_decode_tokens for r in plain.reports
    )


def test_nothing_is_planned_past_max_tokens() -> None:
    engine = make_engine(overlap=True)
    ended = run(engine, make_request("a", 4, 5))
    assert sum(report.num_decode_tokens for report in ended.reports) == 4
    assert len(ended.reports) == 5


def test_overlap_waits_for_the_step_in_flight_before_giving_up_a_row() -> None:
    requests = [make_request(f"r{i}", 9, 16, seed=i) for i in range(4)]
    plain = run(make_engine(num_blocks=12), *requests)
    engine = make_engine(num_blocks=12, overlap=True)
    overlapped = run(engine, *requests)
    assert overlapped.tokens() == plain.tokens()
    assert engine.scheduler.counters.num_waits > 0
    waited = [i for i, report in enumerate(overlapped.reports) if report.num_waits]
    assert waited
    for i in waited:
        assert overlapped.reports[i].planned >= overlapped.reports[i - 1].committed


@BOTH
def test_finish_cuts_the_output_and_counts_no_more(overlap: bool) -> None:
    engine = make_engine(overlap=overlap)
    engine.add_request(make_request("a", 4, 30, seed=1, stream=True))
    ended = Run(engine)
    while len(ended.deltas) < 7:
        ended.step()
    assert engine.finish_request("a", 5, FinishReason.STOP)
    output = ended.to_end().outputs["a"]
    expected = run(make_engine(), make_request("a", 4, 30, seed=1)).tokens()["a"][:5]
    assert output.token_ids.tolist() == expected
    assert output.finish_reason is FinishReason.STOP
    assert engine.scheduler.counters.num_output_tokens == 5
    assert not engine.finish_request("a", 1, FinishReason.STOP)
    check_idle(engine)


@BOTH
def test_stop_token_ids_and_ignore_eos(overlap: bool) -> None:
    sim = {"eos_probability": 0.3}
    base = make_request("a", 4, 40, seed=5, ignore_eos=True)
    tokens = run(make_engine(sim=sim), base).tokens()["a"]
    assert len(tokens) == 40
    first_eos = tokens.index(EOS)
    ended = run(make_engine(sim=sim, overlap=overlap), make_request("a", 4, 40, seed=5))
    assert ended.tokens()["a"] == tokens[: first_eos + 1]
    stop = tokens[first_eos + 2]
    request = make_request("a", 4, 40, seed=5, ignore_eos=True, stop_token_ids=(stop,))
    output = run(make_engine(sim=sim, overlap=overlap), request).outputs["a"]
    assert output.token_ids.tolist() == tokens[: tokens.index(stop) + 1]
    assert output.finish_reason is FinishReason.STOP


@BOTH
def test_failed_rows_end_alone_and_share_nothing(overlap: bool) -> None:
    sim = {"failure_probability": 0.05}
    engine = make_engine(sim=sim, overlap=overlap, num_blocks=40)
    ended = run(engine, *(make_request(f"r{i}", 9, 16, seed=i) for i in range(24)))
    reasons = {output.finish_reason for output in ended.outputs.values()}
    assert reasons == {FinishReason.ERROR, FinishReason.LENGTH}
    failed = [o for o in ended.outputs.values() if o.finish_reason is FinishReason.ERROR]
    assert all("not finite" in (output.error or "") for output in failed)
    assert engine.scheduler.counters.num_failed_rows == len(failed)
    plain = run(make_engine(), *(make_request(f"r{i}", 9, 16, seed=i) for i in range(24)))
    for name, output in ended.outputs.items():
        assert plain.tokens()[name][: len(output.token_ids)] == output.token_ids.tolist()
    check_idle(engine)


@BOTH
def test_a_more_urgent_request_takes_the_place_of_a_running_one(overlap: bool) -> None:
    engine = make_engine(UrgentPreempts(), num_blocks=8, max_num_seqs=1, overlap=overlap)
    engine.add_request(make_request("slow", 8, 20, seed=1, priority=5))
    ended = Run(engine)
    for _ in range(6):
        ended.step()
    engine.add_request(make_request("urgent", 8, 3, seed=2, priority=0))
    ended.to_end()
    assert list(ended.outputs) == ["urgent", "slow"]
    assert ended.outputs["slow"].num_preemptions == 1
    alone = run(make_engine(), make_request("slow", 8, 20, seed=1)).tokens()["slow"]
    assert ended.tokens()["slow"] == alone


@BOTH
def test_tokens_of_unfinished_requests_are_known_at_every_step(overlap: bool) -> None:
    """Running, preempted, or not yet started."""
    engine = make_engine(num_blocks=12, max_num_seqs=4, overlap=overlap)
    for number in range(8):
        engine.add_request(make_request(f"r{number}", 9, 20, seed=number, stream=True))
    ended = Run(engine)
    while engine.has_unfinished:
        ended.step()
        live = sum(len(d.token_ids) for d in ended.deltas if d.id not in ended.outputs)
        assert engine.stats()["num_unfinished_tokens"] == live
    assert engine.scheduler.counters.num_preemptions > 0
    assert engine.stats()["num_unfinished_tokens"] == 0


def test_times_come_from_one_clock_in_order() -> None:
    engine = make_engine(max_num_seqs=2)
    ended = run(engine, *(make_request(f"r{i}", 6, 5) for i in range(6)))
    for output in ended.outputs.values():
        assert output.scheduled is not None
        assert output.first_token is not None
        assert output.arrival <= output.scheduled < output.first_token < output.finished


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 2.5}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"stop_token_ids": (VOCAB,)}, "stop_token_ids"),
        ({"min_p": 1.01}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": "high"}, "frequency_penalty"),
        ({"logit_bias": {999_999: 5}}, "logit_bias key"),
        ({"logit_bias": {-1: 5}}, "logit_bias key"),
        ({"logit_bias": {"x": 5}}, "logit_bias key"),
        ({"logit_bias": {1: 101.0}}, "logit_bias of 1"),
        ({"bad_words": ((1, VOCAB),)}, "bad_words"),
        ({"min_tokens": 4}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"n": None}, "n"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 65}, "prompt_logprobs"),
        ({"deadline": float("inf")}, "deadline"),
        ({"priority": "high"}, "priority"),
        ({"expected_output_tokens": 0}, "expected_output_tokens"),
        ({"deadline": 10**400}, "deadline"),
        ({"arrival": 10**400}, "arrival"),
        ({"temperature": 10**400}, "temperature"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop_token_ids": None}, "stop_token_ids"),
        ({"stop_token_ids": np.array([1, 2])}, "stop_token_ids"),
        ({"bad_words": None}, "bad_words"),
        ({"bad_words": (5,)}, "a word of bad_words"),
        ({"arguments": None}, "arguments"),
        ({"ignore_eos": "no"}, "ignore_eos"),
    ],
)
def test_values_outside_their_range_are_refused_alone(fields: dict[str, Any], problem: str) -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match=f"{problem} is .*must be|{problem} is .*it must"):
        engine.add_request(make_request("bad", 4, 3, **fields))
    assert len(run(engine, make_request("good", 4, 3)).tokens()["good"]) == 3
    assert engine.stats()["num_finished"]["refused"] == 1
    with pytest.raises(RequestError, match=f"{problem} is .*must be|{problem} is .*it must"):
        engine.add_request(make_request("like the good one", 4, 3, **fields))


@pytest.mark.parametrize(
    ("field", "value"),
    [("sampling", None), ("sampling", {"max_tokens": 3}), ("client", None), ("client", 5)],
)
def test_fields_of_another_kind_are_refused_alone(field: str, value: object) -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match=f"{field} is .*; it must be"):
        engine.add_request(replace(make_request("bad", 4, 3), **{field: value}))
    assert len(run(engine, make_request("good", 4, 3)).tokens()["good"]) == 3


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ([1, VOCAB], "outside the vocabulary"),
        ([-1], "outside the vocabulary"),
        ([1, -(1 << 70)], "token id -1180591620717411303424 is outside the vocabulary"),
        (np.array([1, -1, VOCAB]), "token id -1 is outside the vocabulary"),
        (np.array([1, -1], np.int32), "token id -1 is outside the vocabulary"),
        (np.array([1, 1 << 63], np.uint64), "outside the vocabulary"),
        (np.arange(-2, 6)[::-3], "token id -1 is outside the vocabulary"),
        ([1.5, 2.0], "flat sequence of integers"),
        ([[1, 2], [3, 4]], "flat sequence of integers"),
        ([True, False], "flat sequence of integers"),
        (["a"], "flat sequence of integers"),
        ([[1], [2, 3]], "flat sequence of integers"),
        (None, "flat sequence of integers"),
        (np.array(3), "flat sequence of integers"),
        ((token for token in (1, 2)), "flat sequence of integers"),
    ],
)
def test_prompts_that_are_no_token_ids_are_refused(prompt: Any, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        make_engine().add_request(Request(id="a", prompt_token_ids=prompt))


def test_parameters_that_requests_share_are_checked_where_they_can_change() -> None:
    words: Any = [[1, 2]]
    biases = {1: 5.0}
    for sampling in (SamplingParams(bad_words=words), SamplingParams(logit_bias=biases)):
        engine = make_engine()
        engine.add_request(Request(id="a", prompt_token_ids=[1], sampling=sampling))
        words.append([VOCAB])
        biases[VOCAB] = 1.0
        with pytest.raises(RequestError, match="token id"):
            engine.add_request(Request(id="b", prompt_token_ids=[1], sampling=sampling))
        del biases[VOCAB]
    engine, fixed, wrong = make_engine(), SamplingParams(), SamplingParams(top_p=2.0)
    for i, sampling in enumerate((fixed, wrong, wrong, fixed, fixed, wrong)):
        request = Request(id=str(i), prompt_token_ids=[1], sampling=sampling)
        if sampling is fixed:
            engine.add_request(request)
            continue
        with pytest.raises(RequestError, match="top_p is 2.0"):
            engine.add_request(request)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_integers_of_any_width_mean_their_number(kind: Any) -> None:
    most = kind(min(np.iinfo(kind).max, 2**31 - 1))
    engine = make_engine(max_model_len=250)
    ended = run(
        engine,
        make_request("to_the_end", 130, most),
        make_request("short", 9, kind(5), seed=kind(3), min_tokens=kind(2), priority=kind(1)),
    )
    assert len(ended.tokens()["to_the_end"]) == min(int(most), 250 - 130)
    plain = run(make_engine(), make_request("short", 9, 5, seed=3))
    assert ended.tokens()["short"] == plain.tokens()["short"]


def test_a_failed_step_keeps_what_was_finished_and_ends_the_engine() -> None:
    class BreaksLate(UrgentPreempts):
        def on_progress(
            self, rows: IntArray, num_tokens: IntArray, num_decodes: int, view: SchedulerView
        ) -> None:
            if len(rows) == 1:
                raise OverflowError("boom")

    engine = make_engine(BreaksLate())
    engine.add_request(make_request("short", 4, 2))
    engine.add_request(make_request("long", 4, 9))
    steps = Run(engine)
    with pytest.raises(PolicyError, match=r"BreaksLate: on_progress\(\) raised OverflowError"):
        steps.to_end()
    assert [*steps.outputs, *(output.id for output in engine.take_finished())] == ["short"]
    with pytest.raises(ExecutorError, match="failed before"):
        engine.step()


class OnlyEven(HostProcessor):
    """Allows even tokens, then insists on what it was told; counts the tokens it saw."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = {}
        self.ended: list[str] = []

    def check(self, arguments: Any) -> None:
        if arguments not in (None, "even", "break"):
            raise ValueError("must be 'even' or 'break'")

    def start(self, request_id: str, arguments: Any, prompt: IntArray) -> bool:
        self.seen[request_id] = []
        return arguments is not None

    def advance(self, request_id: str, token_ids: IntArray) -> None:
        self.seen[request_id] += token_ids.tolist()

    def mask(self, request_id: str, bits: IntArray) -> None:
        if len(self.seen[request_id]) == 3 and request_id == "broken":
            raise RuntimeError("no way on")
        bits &= np.int32(0x55555555)

    def finish(self, request_id: str) -> None:
        self.ended.append(request_id)


@BOTH
@pytest.mark.parametrize("num_blocks", [64, 10])
def test_host_masks_come_late_and_never_see_a_surplus_token(overlap: bool, num_blocks: int) -> None:
    processor = OnlyEven()
    engine = make_engine(
        overlap=overlap,
        num_blocks=num_blocks,
        host_processors=HostProcessors({"even": processor}, VOCAB),
        sim={"eos_probability": 0.05},
    )
    requests = [
        make_request(f"r{i}", 7, 14, seed=i, arguments={"even": "even"} if i % 2 else {})
        for i in range(6)
    ]
    ended = run(engine, *requests)
    for i in range(6):
        tokens = ended.tokens()[f"r{i}"]
        if i % 2:
            assert all(token % 2 == 0 for token in tokens)
            assert processor.seen[f"r{i}"] == tokens[: len(processor.seen[f"r{i}"])]
            assert len(processor.seen[f"r{i}"]) in (len(tokens), len(tokens) - 1)
        else:
            assert any(token % 2 for token in tokens)
    assert sorted(processor.ended) == ["r1", "r3", "r5"]
    check_idle(engine)


@BOTH
def test_a_failing_host_processor_fails_its_request_alone(overlap: bool) -> None:
    engine = make_engine(
        overlap=overlap, host_processors=HostProcessors({"even": OnlyEven()}, VOCAB)
    )
    requests: Sequence[Any] = [
        make_request("broken", 7, 14, arguments={"even": "even"}),
        make_request("fine", 7, 14, arguments={"even": "even"}),
    ]
    ended = run(engine, *requests)
    assert ended.outputs["broken"].finish_reason is FinishReason.ERROR
    assert (
        "logits_processor 'even': mask_rows() failed: RuntimeError: no way on (test_engine.py, line"
        in (ended.outputs["broken"].error or "")
    )
    assert len(ended.tokens()["fine"]) == 14
    with pytest.raises(RequestError, match="logits_processor 'even': must be 'even' or 'break'"):
        engine.add_request(make_request("odd", 7, 14, arguments={"even": "odd"}))


def test_arguments_for_a_processor_that_is_not_chosen_are_refused() -> None:
    with pytest.raises(RequestError, match="which this run does not use"):
        make_engine().add_request(make_request("a", 4, 3, arguments={"grammar": "x"}))


@BOTH
@pytest.mark.parametrize("num_blocks", [64, 12])
def test_samples_share_the_prompts_blocks_and_differ(overlap: bool, num_blocks: int) -> None:
    engine = make_engine(overlap=overlap, num_blocks=num_blocks)
    ended = Run(engine)
    engine.add_request(make_request("a", 10, 6, seed=7, n=4))
    assert engine.scheduler.num_requests == engine.scheduler.num_waiting == 4
    outputs = ended.collect()
    assert [output.sample_index for output in sorted(outputs, key=lambda o: o.sample_index)] == [
        0, 1, 2, 3,
    ]  # fmt: skip
    assert len({tuple(output.token_ids.tolist()) for output in outputs}) == 4
    cached = {output.sample_index: output.num_cached_tokens for output in outputs}
    assert cached == {0: 0, 1: 8, 2: 8, 3: 8}
    single = run(make_engine(), make_request("a", 10, 6, seed=7)).tokens()["a"]
    assert outputs[0].token_ids.tolist() == single
    check_idle(engine)


@BOTH
@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_abort_ends_every_sample(overlap: bool, steps: int) -> None:
    engine = make_engine(overlap=overlap, max_num_seqs=2)
    engine.add_request(make_request("a", 10, 20, n=4))
    ended = Run(engine)
    for _ in range(steps):
        engine.step()
    assert engine.abort_request("a")
    assert {output.finish_reason for output in ended.collect()} == {FinishReason.ABORT}
    assert not engine.scheduler.has_request("a")
    check_idle(engine)


def test_finishing_one_sample_leaves_the_others() -> None:
    engine = make_engine()
    engine.add_request(make_request("a", 10, 8, n=3, stream=True))
    ended = Run(engine)
    for _ in range(5):
        engine.step()
    assert engine.finish_request("a", 2, FinishReason.STOP, sample_index=1)
    lengths = {output.sample_index: len(output.token_ids) for output in ended.collect()}
    assert lengths == {0: 8, 1: 2, 2: 8}


def test_prompt_logprobs_take_no_cache_hits() -> None:
    engine = make_engine()
    prompt = list(range(1, 10))
    for name in ("a", "b"):
        output = run(engine, make_request(name, prompt, 1, prompt_logprobs=0)).outputs[name]
        assert output.num_cached_tokens == 0


@pytest.mark.parametrize(
    "odd",
    [
        None, float("nan"), np.float32("nan"), (0, float("nan")), np.array([1, 2]), {}, object(),
        1j, (np.float64("nan"), 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["key", "group_key"])
def test_a_key_without_an_order_refuses_the_first_request_already(odd: Any, name: str) -> None:
    class Odd(Policy):
        def key(self, request: RequestView, view: SchedulerView) -> Any:
            return odd if name == "key" else 0

        def group(self, request: RequestView) -> str:
            return request.client

        def group_key(self, group: Any, view: SchedulerView) -> Any:
            return odd if name == "group_key" else 0

    engine = make_engine(Odd())
    with pytest.raises(NanofwError, match=rf"Odd: {name}\(\) returned .* which has no order"):
        run(engine, make_request("first", 4, 3))


@pytest.mark.parametrize("name", ["window", "skip_ahead"])
@pytest.mark.parametrize("value", [None, "3", -1, 1.5, True])
def test_what_a_policy_declares_is_checked_at_the_start(name: str, value: Any) -> None:
    policy = UrgentPreempts()
    setattr(policy, name, value)
    with pytest.raises(PolicyError, match=rf"UrgentPreempts: {name} is .*; it must be an integer"):
        make_engine(policy)
