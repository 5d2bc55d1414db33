"""Requests that finish at odd moments: each is reported once, whatever fails on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.logits_processor import HostProcessor
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import FinishReason
from nanofw.contracts.scheduler import RequestView, SchedulerView
from nanofw.engine.engine import Engine
from nanofw.engine.host_processors import HostProcessors
from nanofw.errors import PolicyError, RequestError
from tests.engine.sim_engines import EOS, VOCAB, FirstCome, Run, make_engine, make_request, run
from tests.engine.test_machine import check_idle

BOTH = pytest.mark.parametrize("overlap", [False, True])


class Fails(FirstCome):
    """One hook fails from its call number `after` on; keeps who came and who went."""

    def __init__(self, hook: str, after: int) -> None:
        self.hook, self.left = hook, after
        self.arrived: list[RequestView] = []
        self.ended: list[RequestView] = []

    def _call(self, hook: str) -> None:
        if hook == self.hook:
            self.left -= 1
            if self.left < 0:
                raise LookupError("no")

    def key(self, request: RequestView, view: SchedulerView) -> float:
        self._call("key")
        return request.arrival

    def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
        self._call("on_arrival")
        self.arrived.append(request)

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        self.ended.append(request)
        self._call("on_finish")


def after_steps(engine: Engine, num_steps: int) -> list[RequestOutput]:
    return [output for _ in range(num_steps) for output in engine.step().finished]


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("num_steps", [0, 1, 3])
@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("hook", ["key", "on_arrival"])
def test_a_policy_that_fails_on_siblings_ends_each_once(
    hook: str, after: int, num_steps: int, abort: bool
) -> None:
    policy = Fails(hook, after)
    engine = make_engine(policy)
    engine.add_request(make_request("a", 5, 6, n=4))
    outputs = after_steps(engine, num_steps)
    if abort:
        assert engine.abort_request("a")
    outputs += Run(engine).collect()
    assert sorted(output.sample_index for output in outputs) == [0, 1, 2, 3]
    assert {id(view) for view in policy.ended} == {id(view) for view in policy.arrived}
    assert len(policy.ended) == len(policy.arrived)
    check_idle(engine)


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_policy_that_fails_on_an_end_loses_no_sample(
    num_steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(Fails("on_finish", 0))
    engine.add_request(make_request("a", 5, 20, n=3))
    outputs = after_steps(engine, num_steps)
    known = 3 if num_steps else 1
    assert engine.abort_request("a")
    outputs += Run(engine).collect()
    assert [(o.finish_reason, o.error) for o in outputs] == [(FinishReason.ABORT, None)] * 3
    assert caplog.text.count("Fails: on_finish() raised LookupError: no") == known
    other = run(engine, make_request("b", 5, 6)).outputs["b"]
    assert (len(other.token_ids), other.finish_reason) == (6, FinishReason.LENGTH)
    check_idle(engine)


def test_samples_that_wait_are_not_queued_only_to_be_aborted() -> None:
    policy = Fails("nothing", 0)
    engine = make_engine(policy)
    engine.add_request(make_request("a", 5, 6, n=4))
    engine.abort_request("a")
    assert len(Run(engine).collect()) == 4
    assert len(policy.arrived) == 1


class Even(HostProcessor):
    """Allows even tokens, for one live request of each key."""

    def __init__(self) -> None:
        self.live: set[str] = set()

    def check(self, arguments: Any) -> None:
        """Anything goes."""

    def start(self, request_id: str, arguments: Any, prompt: IntArray) -> bool:
        assert request_id not in self.live
        self.live.add(request_id)
        return True

    def advance(self, request_id: str, token_ids: IntArray) -> None:
        assert request_id in self.live

    def mask(self, request_id: str, bits: IntArray) -> None:
        assert request_id in self.live
        bits &= np.int32(0x55555555)

    def finish(self, request_id: str) -> None:
        self.live.remove(request_id)


@BOTH
@pytest.mark.parametrize("how", ["abort", "finish"])
def test_B038_an_id_is_free_when_its_output_was_handed_out(overlap: bool, how: str) -> None:
    """Two outputs of one id in one step could not be told apart, nor their processors' states."""
    even = Even()
    engine = make_engine(overlap=overlap, host_processors=HostProcessors({"even": even}, VOCAB))
    engine.add_request(make_request("a", 5, 20))
    after_steps(engine, 4)
    assert (
        engine.abort_request("a")
        if how == "abort"
        else engine.finish_request("a", 2, FinishReason.STOP)
    )
    with pytest.raises(RequestError, match="not handed out"):
        engine.add_request(make_request("a", 5, 8))
    Run(engine).collect()
    again = run(engine, make_request("a", 5, 8)).outputs["a"]
    assert (len(again.token_ids), again.error) == (8, None)
    assert not (again.token_ids % 2).any()
    assert not even.live
    check_idle(engine)


def test_an_id_cannot_be_that_of_anothers_sample() -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match="must not contain"):
        engine.add_request(make_request("a\x1f1", 5, 8))


@BOTH
@pytest.mark.parametrize("num_tokens", [-1, -30])
def test_a_request_cannot_be_cut_within_its_prompt(num_tokens: int, overlap: bool) -> None:
    engine = make_engine(overlap=overlap)
    engine.add_request(make_request("a", 5, 8))
    after_steps(engine, 4)
    with pytest.raises(ValueError, match="at least 0"):
        engine.finish_request("a", num_tokens, FinishReason.STOP)
    assert len(Run(engine).to_end().tokens()["a"]) == 8


@pytest.mark.parametrize("hook", ["key", "on_arrival"])
def test_processors_forget_whom_the_policy_refused(hook: str) -> None:
    even = Even()
    processors = HostProcessors({"even": even}, VOCAB)
    engine = make_engine(Fails(hook, 0), host_processors=processors)
    with pytest.raises(RequestError, match=hook):
        engine.add_request(make_request("a", 5, 8, n=3))
    assert not even.live
    check_idle(engine)


def test_an_end_is_told_before_the_run_cannot_go_on() -> None:
    class AdmitsNobody(FirstCome):
        def admit(self, request: RequestView, view: SchedulerView) -> bool:
            return False

    engine = make_engine(AdmitsNobody())
    engine.add_request(make_request("a", 5, 8))
    engine.add_request(make_request("b", 5, 8))
    engine.abort_request("a")
    assert [output.id for output in engine.step().finished] == ["a"]
    with pytest.raises(PolicyError, match="nothing can ever change"):
        engine.step()


@BOTH
def test_an_end_token_at_the_last_allowed_place_is_a_stop(overlap: bool) -> None:
    sim = {"eos_probability": 0.3}
    tokens = run(make_engine(sim=sim), make_request("a", 4, 40, seed=5)).tokens()["a"]
    assert tokens[-1] == EOS
    assert len(tokens) > 1
    for max_tokens, reason in ((len(tokens), "stop"), (len(tokens) - 1, "length")):
        request = make_request("a", 4, max_tokens, seed=5)
        output = run(make_engine(sim=sim, overlap=overlap), request).outputs["a"]
        assert (len(output.token_ids), output.finish_reason) == (max_tokens, reason)


@BOTH
def test_finish_keeps_no_more_than_there_is(overlap: bool) -> None:
    engine = make_engine(overlap=overlap)
    engine.add_request(make_request("a", 5, 20, seed=1))
    after_steps(engine, 4)
    assert engine.finish_request("a", 12, FinishReason.STOP)
    tokens = Run(engine).to_end().tokens()["a"]
    alone = run(make_engine(), make_request("a", 5, 20, seed=1)).tokens()["a"]
    assert 1 <= len(tokens) <= 4
    assert tokens == alone[: len(tokens)]


@BOTH
@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_siblings_go_on_when_the_first_sample_is_ended(num_steps: int, overlap: bool) -> None:
    engine = make_engine(overlap=overlap)
    engine.add_request(make_request("a", 9, 6, n=3, seed=2))
    after_steps(engine, num_steps)
    assert engine.finish_request("a", 0, FinishReason.STOP)
    outputs = {output.sample_index: output for output in Run(engine).collect()}
    assert [len(outputs[i].token_ids) for i in range(3)] == [0, 6, 6]
    check_idle(engine)
