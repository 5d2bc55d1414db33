"""Every metric's definition, on numbers small enough to check by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nanofw.compare.finished import FinishedRequests
from nanofw.compare.metrics import Metric, RunMeasurement, jain, weighted_statistic
from nanofw.compare.run import checksum
from nanofw.compare.run_curves import over_time
from nanofw.config.slo import Slo
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import FinishReason
from nanofw.measure.latencies import request_latencies


def output(
    request_id: str = "a", tokens: int = 5, arrival: float = 1.0, scheduled: float | None = 2.0,
    first: float | None = 3.0, finished: float = 7.0,
) -> RequestOutput:  # fmt: skip
    return RequestOutput(
        id=request_id, token_ids=np.arange(tokens, dtype=np.int32), num_prompt_tokens=3,
        finish_reason=FinishReason.LENGTH, arrival=arrival, scheduled=scheduled,
        first_token=first, finished=finished,
    )  # fmt: skip


def test_latencies_count_from_the_scheduled_arrival() -> None:
    found = request_latencies([output()])
    assert {name: values.tolist() for name, values in found.items()} == {
        "ttft": [2.0], "tpot": [1.0], "e2e": [6.0], "queue": [1.0],
    }  # fmt: skip


def test_one_token_has_no_tpot_and_an_abort_no_ttft() -> None:
    found = request_latencies([output(tokens=1), output(scheduled=None, first=None)])
    assert math.isnan(found["tpot"][0])
    assert np.isnan(found["ttft"]).tolist() == [False, True]
    assert np.isnan(found["queue"]).tolist() == [False, True]


def test_goodput_needs_every_limit() -> None:
    found = request_latencies([output(), output(first=6.0), output(tokens=1)])
    assert Slo().met_by(found).tolist() == [True, True, True]
    assert Slo(ttft_s=2.0).met_by(found).tolist() == [True, False, True]
    assert Slo(ttft_s=2.0, tpot_s=0.5).met_by(found).tolist() == [False, False, True]
    assert Slo(e2e_s=5.9).met_by(found).tolist() == [False, False, False]


def test_checksum_depends_on_tokens_not_on_order() -> None:
    a, b = output("a", 3), output("b", 4)
    assert checksum([a, b]) == checksum([b, a])
    assert checksum([a, b]) != checksum([output("a", 4), output("b", 3)])


def measured() -> RunMeasurement:
    return RunMeasurement(
        latencies={"ttft": np.array([1.0, 2.0, 3.0, np.nan])},
        clients=["x", "x", "y", "y"],
        itl=np.array([0.1, 0.5]), itl_weights=np.array([98.0, 2.0]),
        whole={"preemptions": 0.5}, shares={"x": 0.75, "y": 0.25},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ttft.mean", 2.0), ("ttft.max", 3.0), ("ttft.p50", 2.0), ("ttft.mean@x", 1.5),
        ("ttft.mean@y", 3.0), ("itl.mean", 0.108), ("itl.max", 0.5), ("itl.p50", 0.1),
        ("itl.p99", 0.5), ("preemptions", 0.5), ("service.share@x", 0.75),
    ],
)  # fmt: skip
def test_values(name: str, value: float) -> None:
    assert measured().value(name) == pytest.approx(value)


def test_nothing_measured_is_undefined() -> None:
    assert math.isnan(measured().value("ttft.mean@z"))
    assert math.isnan(measured().value("service.share@z"))
    assert math.isnan(weighted_statistic("mean", np.empty(0), np.empty(0)))


@pytest.mark.parametrize(
    "name",
    ["ttft", "ttft.p42", "ttfb.mean", "itl.mean@x", "preemptions@x", "service.share"],
)
def test_unknown_metrics_list_the_known(name: str) -> None:
    with pytest.raises(ValueError, match=r"no metric|not kept by client"):
        Metric.parse(name)


def test_directions_and_scales() -> None:
    assert Metric.parse("goodput.rate").higher_is_better
    assert not Metric.parse("ttft.mean").higher_is_better
    assert Metric.parse("ttft.mean").by_ratio
    assert not Metric.parse("cache.hit_rate").by_ratio
    assert not Metric.parse("service.share@x").by_ratio


def test_jain() -> None:
    assert jain(np.array([3.0, 3.0, 3.0])) == pytest.approx(1.0)
    assert jain(np.array([6.0, 0.0, 0.0])) == pytest.approx(1 / 3)
    assert jain(np.zeros(2)) == 1.0


def test_the_queue_over_time_holds_every_second_that_was_waited() -> None:
    done = FinishedRequests()
    for arrival, scheduled, finished in ((0.0, 1.0, 3.0), (1.0, 1.0, 2.0), (2.0, None, 4.0)):
        done.add_output(output(arrival=arrival, scheduled=scheduled, finished=finished), 0)
    curve = over_time(done.table(), 0.0, 6.0)
    stretch = 6.0 / len(curve["time"])
    assert sum(curve["waiting"]) * stretch == pytest.approx(1 + 0 + 2)
    assert sum(curve["running"]) * stretch == pytest.approx(2 + 1 + 0)
    assert curve["waiting"][0] == pytest.approx(1.0)
    assert curve["waiting"][-1] == pytest.approx(0.0)
