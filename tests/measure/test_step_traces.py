"""What is read from a profiler's trace: a small one of a GPU, written by hand, and real ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nanofw.errors import ExecutorError
from nanofw.measure.step_traces import (
    busy_seconds,
    device_work,
    joined,
    operator_work,
    record,
    short_name,
    write,
)


def event(category: str, name: str, ts: float, dur: float, tid: int = 7) -> Any:
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": tid}


GPU: Any = {
    "baseTimeNanoseconds": 5_000_000_000,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "ts": 0, "pid": 0, "args": {"name": "python"}},
        event("user_annotation", "nanofw.step", 0, 100),
        event("gpu_user_annotation", "nanofw.step", 5, 90),  # no work of its own
        event("cuda_runtime", "cudaGraphLaunch", 1, 3),
        event("kernel", "gemm", 10, 20),
        event("kernel", "attention", 25, 15, tid=8),  # beside the product, on another stream
        event("kernel", "gemm", 60, 20),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 85, 5),
        {"ph": "i", "name": "Record Window End", "ts": 101},
    ],
}


def test_kernels_and_copies_of_a_step() -> None:
    found = {w.name: (w.category, w.count, w.seconds) for w in device_work(GPU, num_steps=2)}
    assert found == {
        "gemm": ("kernel", 1.0, pytest.approx(20e-6)),
        "attention": ("kernel", 0.5, pytest.approx(7.5e-6)),
        "Memcpy DtoH (Device -> Pinned)": ("gpu_memcpy", 0.5, pytest.approx(2.5e-6)),
    }
    assert next(w.name for w in device_work(GPU, 2)) == "gemm"


def test_a_kernel_that_waits_for_the_one_before_counts_from_its_end() -> None:
    """As dependent launches do: the times of a stream add up to the time that it is busy."""
    chain = [
        event("kernel", "product", 0, 10),
        event("kernel", "norm", 2, 11),  # in place at 2, at work from 10 on
        event("kernel", "product", 3, 17),
        event("kernel", "norm", 30, 1),
        event("kernel", "gather", 0, 12, tid=8),  # another stream: beside them
    ]
    found = {w.name: w.seconds for w in device_work({"traceEvents": chain}, num_steps=1)}
    assert found == {
        "product": pytest.approx(17e-6),
        "norm": pytest.approx(4e-6),
        "gather": pytest.approx(12e-6),
    }


def test_a_trace_without_kernels_is_no_idle_device() -> None:
    host_only: Any = {"traceEvents": [event("cuda_runtime", "cudaGraphLaunch", 1, 3)]}
    with pytest.raises(ExecutorError, match="has recorded no kernels"):
        device_work(host_only, num_steps=1)


def test_what_overlaps_on_the_device_counts_once() -> None:
    assert busy_seconds(GPU) == pytest.approx((30 + 20 + 5) * 1e-6)


def test_operators_count_without_those_that_they_call() -> None:
    trace: Any = {
        "traceEvents": [
            event("cpu_op", "linear", 0, 10),
            event("cpu_op", "mm", 2, 5),
            event("cpu_op", "copy", 3, 1),
            event("cpu_op", "mm", 10, 4),
            event("cpu_op", "mm", 3, 2, tid=9),  # another thread: inside of nothing
        ]
    }
    found = {w.name: (w.count, w.seconds) for w in operator_work(trace, 1)}
    assert found == {
        "linear": (1.0, pytest.approx(5e-6)),
        "mm": (3.0, pytest.approx(10e-6)),
        "copy": (1.0, pytest.approx(1e-6)),
    }


def test_joined_traces_keep_their_order_in_time() -> None:
    later: Any = {
        "baseTimeNanoseconds": 6_000_000_000,
        "traceEvents": [event("cpu_op", "mm", 3, 1)],
    }
    events = joined([GPU, later])["traceEvents"]
    assert len(events) == len(GPU["traceEvents"]) + 1
    assert events[-1]["ts"] == pytest.approx(1_000_003)
    assert later["traceEvents"][0]["ts"] == 3


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_written_as_its_name_says(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write(GPU, path)
    content = path.read_bytes()
    text = gzip.decompress(content) if name.endswith(".gz") else content
    assert json.loads(text) == GPU


def test_a_real_trace_has_operators_and_their_time() -> None:
    left = torch.randn(64, 64)

    def run() -> None:
        for _ in range(3):
            torch.mm(left, left)

    found = {work.name: work for work in operator_work(record(run), 3)}
    assert found["aten::mm"].count == 1.0
    assert found["aten::mm"].seconds > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_kernels_of_replayed_graphs_are_recorded_again_and_again() -> None:
    """Several traces in one process, each of a graph: the profiler is set up once."""
    x = torch.zeros(1024, device="cuda")
    x.add_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(5):
            x.add_(1)
    for _ in range(3):
        trace = record(lambda: [graph.replay() for _ in range(4)], "cuda")
        assert sum(w.count for w in device_work(trace, 4) if w.category == "kernel") == 5.0
        assert 0 < busy_seconds(trace) < 1.0


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("_decode_kernel", "_decode_kernel"),
        ("aten::mm", "mm"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD "),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<long>, "
            "std::array<char*, 1ul> >(int, at::native::FillFunctor<long>, std::array<char*, 1ul>)",
            "vectorized_elementwise_kernel",
        ),
        (
            "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long>(int)",
            "indexSelectLargeIndex",
        ),
        ("nvjet_tst_128x64_64x8_2x1_v_bz_TNT", "nvjet_tst_128x64_64x8_2x1_v_bz_TNT"),
    ],
)
def test_names_are_shortened_to_what_tells_kernels_apart(name: str, short: str) -> None:
    assert short_name(name) == short
