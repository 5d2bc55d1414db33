"""Numbers of a run."""

from __future__ import annotations

import pytest

from nanofw.cli.summary import Summary
from nanofw.contracts.outputs import StepReport
from nanofw.contracts.requests import FinishReason
from nanofw.llm.progress import Throughput
from nanofw.llm.results import Completion, RequestResult, Timings, refused

STATS = {
    "blocks": {"num_blocks": 100},
    "num_prompt_tokens": 200,
    "num_cached_tokens": 50,
    "num_preemptions": 3,
}


def step(number: int, at: float, prefill: int = 0, decode: int = 0, used: int = 0) -> StepReport:
    return StepReport(
        step=number,
        num_prefill_tokens=prefill,
        num_decode_tokens=decode,
        num_rows=1,
        num_running=1,
        num_waiting=0,
        num_used_blocks=used,
        num_preemptions=0,
        num_waits=0,
        planned=at - 0.5,
        committed=at,
    )


def result(first_token: float, finished: float, num_tokens: int) -> RequestResult:
    timings = Timings(
        arrival=0.0,
        scheduled=0.5,
        first_token=first_token,
        finished=finished,
        num_output_tokens=num_tokens,
    )
    completion = Completion(token_ids=(1,) * num_tokens, finish_reason=FinishReason.LENGTH)
    return RequestResult(request_id="x", outputs=[completion], timings=timings)


def test_a_run_in_numbers() -> None:
    summary = Summary()
    summary.add_step(step(0, 10.5, prefill=80, used=7))
    summary.add_step(step(1, 12.0, decode=2, used=40))
    for number in range(99):
        summary.add(result(1.0 + number / 100, 4.0, 4))
    summary.add(refused("y", "why"))
    lines = "\n".join(summary.lines(STATS, virtual=False))
    assert "requests    100: 99 length, 1 refused" in lines
    assert "steps       2 in 2.00 s\n" in lines
    assert "49.5 requests/s, prefill 40.0 tokens/s, output 198 tokens/s" in lines
    assert "TTFT        p50 1,490.0 ms" in lines
    assert "at most 40 of 100 blocks (40%)" in lines
    assert "preemptions 3" in lines
    assert "prefix hits 50 of 200 prompt tokens (25%)" in lines


def test_tokens_of_requests_that_have_not_ended_count_in_the_rate() -> None:
    summary = Summary()
    summary.add_step(step(0, 10.5, prefill=80))
    summary.add_step(step(1, 12.0, decode=2))
    lines = "\n".join(summary.lines(STATS, virtual=False, num_unfinished_tokens=30))
    assert "0 requests/s, prefill 40.0 tokens/s, output 15.0 tokens/s" in lines
    summary.add(result(1.0, 2.0, 10))
    lines = "\n".join(summary.lines(STATS, virtual=False, num_unfinished_tokens=30))
    assert "output 20.0 tokens/s" in lines


def test_small_shares_and_rates_are_no_zeros_and_lines_fit_a_terminal() -> None:
    summary = Summary()
    summary.add_step(step(0, 1e2, prefill=1, used=2))
    summary.add_step(step(1, 2e2, prefill=1, used=2))
    summary.add(result(90.0, 2e2, 4))
    stats = {**STATS, "blocks": {"num_blocks": 100_000}, "num_prompt_tokens": 999_999}
    lines = summary.lines(stats, virtual=True)
    assert "at most 2 of 100000 blocks (<1%)" in "\n".join(lines)
    assert "(<1%)" in lines[-1]
    assert "prefill 0.0199 tokens/s" in "\n".join(lines)
    assert max(map(len, lines)) <= 80


def test_a_run_without_a_step() -> None:
    lines = Summary().lines({**STATS, "num_prompt_tokens": 0}, virtual=True)
    assert "requests    0: none" in lines
    assert "steps       0 in 0 virtual s" in lines
    assert not any(line.startswith("throughput") for line in lines)


def test_throughput_is_that_of_the_last_seconds() -> None:
    throughput = Throughput(window_s=2.0)
    assert throughput.rates() == (0.0, 0.0)
    for number in range(100):
        throughput.add(step(number, number * 0.1, prefill=3, decode=5 if number >= 50 else 0))
    prefill, decode = throughput.rates()
    assert prefill == pytest.approx(30)
    assert decode == pytest.approx(50)
