"""Who serves what, and what becomes of the requests of a replica that is gone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nanofw.contracts.outputs import RequestOutput, StepOutput, TokenDelta
from nanofw.contracts.requests import FinishReason, Request, SamplingParams
from nanofw.replicas.ledger import MAX_TRIES, Ledger


def request(name: str, n: int = 1) -> Request:
    return Request(id=name, prompt_token_ids=[1, 2], sampling=SamplingParams(n=n), arrival=1.0)


def end(name: str, sample_index: int = 0) -> RequestOutput:
    return RequestOutput(
        id=name,
        token_ids=np.array([7], np.int32),
        finish_reason=FinishReason.LENGTH,
        num_prompt_tokens=2,
        sample_index=sample_index,
    )


def test_a_request_goes_where_the_fewest_tokens_are_outstanding() -> None:
    ledger = Ledger(3)
    sizes = {"a": 100, "b": 10, "c": 50, "d": 20, "e": 1}
    places = {
        name: ledger.assign(ledger.enter(request(name), size), [0, 1, 2])
        for name, size in sizes.items()
    }
    assert places == {"a": 0, "b": 1, "c": 2, "d": 1, "e": 1}
    ledger.take(0, StepOutput(finished=[end("a")]))
    assert [ledger.outstanding(number) for number in range(3)] == [0, 31, 50]
    assert ledger.assign(ledger.enter(request("f"), 5), [1, 2]) == 1  # 0 is not there


def test_what_was_not_handed_out_starts_again_and_what_was_ends_with_its_tokens() -> None:
    ledger = Ledger(2)
    for name in ("unseen", "streamed", "half", "aborted"):
        ledger.assign(ledger.enter(request(name, n=2 if name == "half" else 1), 10), [0])
    ledger.take(0, StepOutput(deltas=[TokenDelta("streamed", np.array([4, 5], np.int32))]))
    ledger.take(0, StepOutput(deltas=[TokenDelta("streamed", np.array([6], np.int32))]))
    ledger.take(0, StepOutput(finished=[end("half")]))
    aborted = ledger.get("aborted")
    assert aborted is not None
    aborted.is_aborted = True
    output = ledger.lose(0, "it died", now=9.0)
    ends = {item.id: item for item in output.finished}
    assert ends.keys() == {"streamed", "half", "aborted"}
    assert ends["streamed"].token_ids.tolist() == [4, 5, 6]
    assert ends["streamed"].finish_reason is FinishReason.ERROR
    assert ends["streamed"].error == "it died"
    assert ends["half"].sample_index == 1
    assert ends["aborted"].finish_reason is FinishReason.ABORT
    assert [routed.request.id for routed in ledger.unassigned()] == ["unseen"]
    assert ledger.outstanding(0) == 0
    # what a replica that is gone still says is not heard
    assert not ledger.take(0, StepOutput(finished=[end("unseen")])).finished


def test_a_request_that_may_be_the_cause_is_not_started_for_ever() -> None:
    ledger = Ledger(MAX_TRIES + 1)
    routed = ledger.enter(request("poison"), 10)
    for number in range(MAX_TRIES):
        assert "poison" in ledger
        ledger.assign(routed, [number])
        output = ledger.lose(number, "it died", now=1.0)
    assert [item.id for item in output.finished] == ["poison"]
    assert len(ledger) == 0


@given(st.lists(st.tuples(st.sampled_from(["add", "end", "lose"]), st.integers(0, 2)), max_size=60))
def test_outstanding_tokens_are_those_of_what_is_served(events: list[tuple[str, int]]) -> None:
    ledger, number = Ledger(3), 0
    for kind, replica in events:
        mine = [s for s in map(ledger.get, map(str, range(number))) if s and s.replica == replica]
        if kind == "add":
            ledger.assign(ledger.enter(request(str(number)), number + 1), [replica])
            number += 1
        elif kind == "end" and mine:
            ledger.take(replica, StepOutput(finished=[end(mine[0].request.id)]))
        elif kind == "lose":
            ledger.lose(replica, "it died", 0.0)
            for routed in ledger.unassigned():
                ledger.assign(routed, [(replica + 1) % 3])
        live = [s for s in map(ledger.get, map(str, range(number))) if s is not None]
        assert len(live) == len(ledger)
        for one in range(3):
            expected = sum(s.num_tokens for s in live if s.replica == one)
            assert ledger.outstanding(one) == expected
