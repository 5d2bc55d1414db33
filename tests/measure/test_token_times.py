"""The noted times of tokens, against what a stream of tokens shows."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from nanofw.engine.engine import Engine
from nanofw.measure.token_times import TokenTimes
from tests.engine.sim_engines import FirstCome, make_engine, make_request


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("num_blocks", [64, 12])
def test_gaps_are_those_of_the_stream_also_over_preemptions(overlap: bool, num_blocks: int) -> None:
    engine = make_engine(FirstCome(), num_blocks=num_blocks, overlap=overlap)
    for i in range(10):
        engine.add_request(
            make_request(f"r{i}", 3 + i, max_tokens=5 + i, stream=True, ignore_eos=True)
        )
    _, preempted = check_stream(engine)
    assert (preempted > 0) == (num_blocks == 12)


def check_stream(engine: Engine) -> tuple[int, int]:
    """Run to the end: what was watched is what the stream had. Numbers of tokens, preemptions."""
    came: dict[str, list[float]] = defaultdict(list)
    preempted, watch = 0, TokenTimes()
    with engine.observed_by(watch):
        while engine.has_unfinished:
            output = engine.step()
            for delta in output.deltas:
                came[delta.id] += [engine.clock.now()] * len(delta.token_ids)
            preempted += sum(done.num_preemptions for done in output.finished)
    expected = sorted(gap for times in came.values() for gap in np.diff(times).tolist())
    values, weights = watch.gaps(0.0, np.inf)
    seen = sorted(np.repeat(values, weights.astype(int)).tolist())
    assert seen == pytest.approx(expected)
    total = sum(map(len, came.values()))
    assert watch.num_tokens(0.0, np.inf) == total
    return total, preempted


@pytest.mark.parametrize("options", [{"eos_probability": 0.2}, {"failure_probability": 0.1}])
@pytest.mark.parametrize("overlap", [False, True])
def test_tokens_that_reach_no_output_are_not_counted(
    overlap: bool, options: dict[str, float]
) -> None:
    """With overlap an end is seen one step late, and a draw that failed is not a token."""
    engine = make_engine(FirstCome(), num_blocks=64, overlap=overlap, sim=options)
    for i in range(12):
        engine.add_request(make_request(f"r{i}", 3 + i, max_tokens=30, stream=True))
    total, _ = check_stream(engine)
    assert 12 < total < 12 * 30
