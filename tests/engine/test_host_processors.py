from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.logits_processor import HostProcessor
from nanofw.contracts.requests import FinishReason, Request
from nanofw.engine.host_processors import ALL_ALLOWED, HostProcessors
from tests.engine.sim_engines import VOCAB, make_engine, make_request, run

EVEN, LOW = 0x55555555, 0x0000FFFF


class Allows(HostProcessor):
    """Allows the tokens of a pattern, to requests that ask for it; one may be made to fail."""

    def __init__(self, pattern: int, fails: str = "") -> None:
        self.pattern, self.fails = np.int32(pattern), fails
        self.calls: list[list[str | None]] = []

    def check(self, arguments: Any) -> None:
        pass

    def start(self, request_id: str, arguments: Any, prompt: IntArray) -> bool:
        return arguments is not None

    def advance(self, request_id: str, token_ids: IntArray) -> None:
        pass

    def mask(self, request_id: str, bits: IntArray) -> None:
        self.calls.append([request_id])
        if request_id == self.fails:
            raise RuntimeError("no way on")
        bits &= self.pattern

    def finish(self, request_id: str) -> None:
        pass


class AllowsRows(Allows):
    """The same for a whole step at once."""

    def mask_rows(self, request_ids: Sequence[str | None], bits: IntArray) -> Mapping[int, str]:
        self.calls.append(list(request_ids))
        wanted = [i for i, request_id in enumerate(request_ids) if request_id is not None]
        bits[wanted] &= self.pattern
        return {i: "no way on" for i in wanted if request_ids[i] == self.fails}


def started(processors: dict[str, Allows], **arguments: tuple[str, ...]) -> HostProcessors:
    host = HostProcessors(processors, VOCAB)
    for request_id, names in arguments.items():
        request = Request(id=request_id, prompt_token_ids=[1], arguments=dict.fromkeys(names, 1))
        host.start(request, [request_id], np.array([1], np.int32))
    return host


@pytest.mark.parametrize("kind", [Allows, AllowsRows])
def test_masks_of_several_processors_are_intersected_line_by_line(kind: type[Allows]) -> None:
    host = started({"even": kind(EVEN), "low": Allows(LOW)}, a=("even",), b=("even", "low"), c=())
    bits = host.blank(4)
    assert host.mask_rows(["b", None, "a", "c"], bits) == {}
    expected = [EVEN & LOW, ALL_ALLOWED, EVEN, ALL_ALLOWED]
    assert bits.tolist() == [[word, word] for word in expected]


def test_a_step_is_masked_in_one_call_and_later_processors_skip_failed_lines() -> None:
    even, low = AllowsRows(EVEN, fails="b"), AllowsRows(LOW)
    host = started({"even": even, "low": low}, a=("even", "low"), b=("even", "low"))
    problems = host.mask_rows(["a", "b"], host.blank(2))
    assert problems == {1: "logits_processor 'even': mask_rows() failed: no way on"}
    assert (even.calls, low.calls) == ([["a", "b"]], [["a", None]])


def test_a_call_that_raises_fails_the_lines_it_was_for() -> None:
    class Breaks(AllowsRows):
        def mask_rows(self, request_ids: Sequence[str | None], bits: IntArray) -> Mapping[int, str]:
            raise OverflowError("boom")

    host = started({"even": Breaks(EVEN)}, a=("even",), b=())
    problems = host.mask_rows(["a", "b", None], host.blank(3))
    assert list(problems) == [0]
    assert problems[0].startswith(
        "logits_processor 'even': mask_rows() raised OverflowError: boom (test_host_processors.py, "
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_an_engine_masks_rows_together_and_fails_one_alone(overlap: bool) -> None:
    even = AllowsRows(EVEN, fails="b")
    engine = make_engine(overlap=overlap, host_processors=HostProcessors({"even": even}, VOCAB))
    constrained = [make_request(i, 5, 6, arguments={"even": 1}) for i in ("a", "b", "c")]
    ended = run(engine, *constrained, make_request("free", 5, 6))
    assert ended.outputs["b"].finish_reason is FinishReason.ERROR
    assert all(token % 2 == 0 for i in "ac" for token in ended.tokens()[i])
    assert any(token % 2 for token in ended.tokens()["free"])
    assert max(len([key for key in call if key]) for call in even.calls) == 3
