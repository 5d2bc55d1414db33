"""A simulated machine with callers: its answers come when the modelled machine would send them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from nanofw import AsyncLLM, RequestResult, SamplingParams
from nanofw.assembly import assemble
from nanofw.config.load import load_config
from nanofw.contracts.clock import MAX_LAG_S, PacedClock
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import Request
from nanofw.contracts.workload import Workload
from nanofw.measure.drive import drive

MACHINE = (
    "engine.max_num_seqs=3",
    "engine.max_num_batched_tokens=64",
    "executor.cost_model.name=constant",
    "executor.cost_model.seconds_per_step=0.003",
    "executor.cost_model.seconds_per_token=0.0001",
)
NUM_CALLERS, NUM_TURNS = 5, 4


@dataclass
class Seen:
    """A request, its result, and when its caller saw the first token and the end."""

    prompt: list[int]
    max_tokens: int
    first: float
    end: float
    result: RequestResult


class Recorded(Workload):
    """The same requests at the times at which they came."""

    def __init__(self, seen: list[Seen]) -> None:
        self._seen = seen

    @property
    def num_requests(self) -> int:
        return len(self._seen)

    def initial(self) -> Iterator[Request]:
        for item in self._seen:
            sampling = SamplingParams(max_tokens=item.max_tokens, ignore_eos=True)
            assert item.result.timings is not None
            yield Request(
                id=item.result.request_id,
                prompt_token_ids=item.prompt,
                sampling=sampling,
                arrival=item.result.timings.arrival,
            )


async def call(llm: AsyncLLM, caller: int) -> list[Seen]:
    """A caller who asks again when it was answered."""
    seen: list[Seen] = []
    for turn in range(NUM_TURNS):
        prompt, most = [caller + 1] * (5 + 23 * caller + turn), 1 + 3 * turn
        first, end, result = 0.0, 0.0, None
        async for event in llm.generate(prompt, max_tokens=most, ignore_eos=True):
            end, result = time.monotonic(), event.result
            first = first or end
        assert result is not None
        seen.append(Seen(prompt, most, first, end, result))
    return seen


async def call_all() -> list[Seen]:
    async with AsyncLLM.from_config("sim", *MACHINE) as llm:
        calls = (call(llm, caller) for caller in range(NUM_CALLERS))
        return [item for seen in await asyncio.gather(*calls) for item in seen]


def arrival(seen: Seen) -> float:
    assert seen.result.timings is not None
    return seen.result.timings.arrival


def test_the_times_are_those_of_the_same_requests_in_virtual_time() -> None:
    seen = sorted(asyncio.run(call_all()), key=arrival)
    with assemble(load_config("sim", MACHINE)) as engine:
        steps = drive(engine, Recorded(seen))
        outputs: dict[str, RequestOutput] = {o.id: o for step in steps for o in step.finished}
    num_queued = 0
    for item in seen:
        expected, found = outputs[item.result.request_id], item.result.timings
        assert found is not None
        assert expected.first_token is not None
        assert (found.scheduled, found.first_token, found.finished) == (
            expected.scheduled, expected.first_token, expected.finished,
        )  # fmt: skip
        assert item.first >= expected.first_token, "a token came before it was sampled"
        assert item.end >= expected.finished
        num_queued += expected.scheduled != expected.arrival
    assert num_queued, "no request came while a step ran"


class Machine:
    """The machine's clock, with a host that takes its time."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def wait_until(self, deadline: float) -> None:
        self.time = max(self.time, deadline)


def test_what_the_host_takes_is_caught_up() -> None:
    clock = PacedClock(machine := Machine())
    for step in range(1, 6):
        machine.time += 0.08 if step == 2 else 0.001  # the host's work between two steps
        clock.wait_until(clock.now() + 0.05)
        assert clock.now() == pytest.approx(100 + 0.05 * step)
    assert machine.time == clock.now()


def test_a_host_that_never_catches_up_moves_the_clock(caplog: pytest.LogCaptureFixture) -> None:
    clock = PacedClock(machine := Machine())
    for _ in range(100):
        machine.time += 0.02
        clock.wait_until(clock.now() + 0.01)
        assert machine.time - clock.now() <= MAX_LAG_S
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "times include this machine's" in caplog.text


def test_a_request_may_have_come_before_it_was_encoded() -> None:
    """The modelled machine begins at its arrival: what the host took until then is caught up."""

    async def main() -> RequestResult:
        async with AsyncLLM.from_config("sim", *MACHINE) as llm:
            came = time.monotonic()
            prompt = await llm.encode([1, 2, 3])
            async for events in llm.generate_lists(prompt, arrival=came):
                if (result := events[-1].result) is not None:
                    assert result.timings is not None
                    assert result.timings.arrival == came
                    return result
        raise AssertionError("it did not end")

    timings = asyncio.run(main()).timings
    assert timings is not None
    assert timings.ttft_s == pytest.approx(0.0033)
