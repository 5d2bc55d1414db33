"""Who serves what, and what becomes of the requests of a replica that is gone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nanofw.contracts.outputs import Admitted, RequestOutput, StepOutput, StepReport, TokenDelta
from nanofw.contracts.requests import FinishReason, Request, SamplingParams
from nanofw.contracts.router import ReplicaView
from nanofw.contracts.views import RequestView
from nanofw.replicas.ledger import MAX_TRIES, Ledger, RoutedRequest


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


def enter(ledger: Ledger, name: str, num_tokens: int, n: int = 1) -> RoutedRequest:
    made = request(name, n)
    return ledger.enter(made, RequestView(made), num_tokens)


def test_a_router_is_shown_what_each_replica_has() -> None:
    ledger = Ledger(2)
    for name, size, number in (("a", 100, 0), ("b", 10, 1), ("c", 50, 0)):
        ledger.assign(enter(ledger, name, size), number)
    started = Admitted(id="a", sample_index=0, arrival=1.0, scheduled=2.0)
    ledger.take(0, StepOutput(report=report(started)))
    assert shown(ledger, 0) == (150, 1, 1)
    assert shown(ledger, 1) == (10, 0, 1)
    ledger.take(1, StepOutput(report=report(started)))  # which it does not have
    assert shown(ledger, 1) == (10, 0, 1)
    ledger.take(0, StepOutput(finished=[end("a")]))
    assert shown(ledger, 0) == (50, 0, 1)
    ledger.lose(0, "it died", now=3.0)
    assert shown(ledger, 0) == (0, 0, 0)


def shown(ledger: Ledger, number: int) -> tuple[int, int, int]:
    view = ReplicaView(number)
    ledger.fill(view)
    return view.num_tokens, view.num_running, view.num_waiting


def report(*admitted: Admitted) -> StepReport:
    counts = dict.fromkeys(
        ("step", "num_prefill_tokens", "num_decode_tokens", "num_rows", "num_running",
         "num_waiting", "num_used_blocks", "num_preemptions", "num_waits"), 0,
    )  # fmt: skip
    return StepReport(**counts, planned=1.0, committed=2.0, admitted=admitted)


def test_what_was_not_handed_out_starts_again_and_what_was_ends_with_its_tokens() -> None:
    ledger = Ledger(2)
    for name in ("unseen", "streamed", "half", "aborted"):
        ledger.assign(enter(ledger, name, 10, n=2 if name == "half" else 1), 0)
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
    routed = enter(ledger, "poison", 10)
    for number in range(MAX_TRIES):
        assert "poison" in ledger
        ledger.assign(routed, number)
        output = ledger.lose(number, "it died", now=1.0)
    assert [item.id for item in output.finished] == ["poison"]
    assert len(ledger) == 0


@given(st.lists(st.tuples(st.sampled_from(["add", "end", "lose"]), st.integers(0, 2)), max_size=60))
def test_outstanding_tokens_are_those_of_what_is_served(events: list[tuple[str, int]]) -> None:
    ledger, number = Ledger(3), 0
    for kind, replica in events:
        mine = [s for s in map(ledger.get, map(str, range(number))) if s and s.replica == replica]
        if kind == "add":
            ledger.assign(enter(ledger, str(number), number + 1), replica)
            number += 1
        elif kind == "end" and mine:
            ledger.take(replica, StepOutput(finished=[end(mine[0].request.id)]))
        elif kind == "lose":
            ledger.lose(replica, "it died", 0.0)
            for routed in ledger.unassigned():
                ledger.assign(routed, (replica + 1) % 3)
        live = [s for s in map(ledger.get, map(str, range(number))) if s is not None]
        assert len(live) == len(ledger)
        for one in range(3):
            expected = sum(s.num_tokens for s in live if s.replica == one)
            assert ledger.outstanding(one) == expected
