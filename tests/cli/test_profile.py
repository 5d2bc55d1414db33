"""`nanofw profile`: tables, JSON and trace, on the embedded model."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from nanofw.bench.least_work import LeastWork
from nanofw.bench.profile import Profile
from nanofw.bench.step_roofline import CardRates
from nanofw.cli.main import main
from nanofw.cli.profile import print_profile
from nanofw.cli.tables import readable_number
from nanofw.measure.host_phases import TOP_PHASES
from nanofw.measure.step_traces import Work
from tests.cli.measuring import SMALL, nanofw, read_record

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
QUICK = ["profile.steps=3", "profile.warm_up=1"]


def span_counts(trace: dict[str, Any]) -> dict[str, int]:
    names = [e["name"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
    return {name: names.count(name) for name in names}


def test_tables_json_and_trace_of_a_cpu(tmp_path: Path) -> None:
    record_path, trace_path = tmp_path / "out.json", tmp_path / "trace.json.gz"
    words = ["engine.device=cpu", "profile.prefill=[32]", "profile.decode=[1,3]"]
    text = nanofw("profile", *SMALL, *QUICK, *words, "--json", str(record_path), "--trace",
                  str(trace_path))  # fmt: skip
    found = read_record(record_path, "profile")["results"]
    assert [(r["kind"], r["batch_size"], r["num_tokens"]) for r in found] == [
        ("prefill", 1, 32), ("decode", 1, 128), ("decode", 3, 128)
    ]  # fmt: skip
    for result in found:
        operators = {work["name"]: work for work in result["work"]}
        assert {work["category"] for work in result["work"]} == {"cpu_op"}
        assert operators["aten::rms_norm"]["count"] == 16  # 5 layers: two norms, q and k; the last
        assert result["idle"] is result["num_kernels"] is result["busy_seconds"] is None
        host = result["host"]
        phases = sum(host[name] for name in TOP_PHASES if name in host)
        assert 0 < phases <= host["step"] <= result["step_seconds"]
        parts = [host[f"submit.{name}"] for name in ("apply", "forward", "sample")]
        assert 0 < sum(parts) <= host["submit"]
        assert f"{1e3 * result['step_seconds']:.3f} ms a step" in text
        read = sum(result["least"][key] for key in ("weight_bytes", "kv_bytes"))
        assert f"at least {readable_number(read / 1e9)} GB of weights and KV" in text
    trace = json.loads(gzip.decompress(trace_path.read_bytes()))
    counts = span_counts(trace)
    assert counts["nanofw.submit"] == counts["nanofw.submit.forward"] == 3 * 3
    assert {"nanofw.step", "nanofw.plan", "nanofw.collect", "nanofw.commit"} <= set(counts)
    operators = [e for e in trace["traceEvents"] if e.get("cat") == "cpu_op"]
    times = [e["ts"] for e in operators]
    assert max(times) > min(times)
    assert sum(e["name"] == "aten::rms_norm" for e in operators) == 3 * 3 * 16
    assert max(map(len, text.splitlines())) <= 80


def test_one_kind_alone(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["profile.prefill=[]", "profile.decode=[2]", "--json", "-"]
    assert main(["profile", *SMALL, *QUICK, *words]) == 0
    found = json.loads(capfd.readouterr().out)["results"]
    assert [result["kind"] for result in found] == ["decode"]


def test_the_profile_of_a_gpu_counts_kernels_of_layers_and_idle_time() -> None:
    long = "void cutlass::device_kernel<at::cuda::detail::Gemm<float, 128>>(int)"
    profile = Profile(
        kind="decode", batch_size=256, num_tokens=128, num_layers=28, num_steps=20,
        step_seconds=4e-3, timed=(4e-3, 4e-3), recorded_step_seconds=5e-3,
        host={"step": 3.9e-3, "plan": 1e-4, "submit": 5e-4, "submit.forward": 4e-4,
              "collect": 3.2e-3},
        work=(
            Work(long, "kernel", 112.0, 2e-3), Work("_decode_kernel", "kernel", 28.0, 1.9e-3),
            Work("n" * 60, "kernel", 1.0, 5e-5), Work("Memcpy DtoH", "gpu_memcpy", 2.0, 1e-5),
        ),
        least=LeastWork(weight_bytes=1.5e9, kv_bytes=0.5e9, flops=4e11, attention_flops=1e11),
        busy_seconds=3.92e-3, graph_steps={"replayed": 20},
        card=CardRates(bytes_per_s=4e12, flops_per_s=5e14),
    )  # fmt: skip
    assert profile.idle == pytest.approx(0.02)
    assert profile.num_kernels == 141.0
    assert profile.kernels_per_layer == 5.0
    file = io.StringIO()
    print_profile(profile, Console(file=file, width=80, highlight=False))
    text = file.getvalue()
    assert "141.0 kernels a step, 5.0 of them in each layer; the device is idle 2.0%" in text
    assert "steps by graphs: replayed 20" in text
    least = "at least 2.00 GB of weights and KV and 400 GFLOP: 500 GB/s, 100,000 GFLOP/s"
    assert least in " ".join(text.split())
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert lines["device_kernel"] == ["112.0", "2.0000", "51.0%"]
    assert lines["attention"] == ["1.9000", "0.2000", "0.500", "263", "100", "52,632"]
    assert lines["products"] == ["2.0000", "0.6000", "1.50", "750", "300", "150,000"]
    assert lines["others"] == ["0.0600"]
    assert lines["the"] == ["card,", "measured", "4,000", "500,000"]
    assert lines["forward"] == ["0.4000", "10.0%"]
    assert lines["between"] == ["them", "0.2000", "5.0%"]
    assert "…" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["profile.decode=[5]"], "profile.decode: a batch of 5 is above engine.max_num_seqs, 4"),
        (["profile.prefill=[256]"], "profile.prefill: a prompt of 256 tokens and 1 token of "
         "output do not fit in engine.max_model_len, 256"),
        (["profile.prefill=[40]", "engine.max_num_batched_tokens=32"], "profile.prefill: a prompt "
         "of 40 tokens is more than one step computes, 32"),
        (["profile.steps=100"], "profile.context_tokens: a prompt of 128 tokens and 306 tokens"),
        (["profile.decode=[4]", "kv_allocator.num_blocks=8"], "profile.decode: 4 requests of"),
        (["profile.decode=[]", "profile.prefill=[]"], "profile.decode: there is nothing"),
        (["profile.step=1"], "profile.step: no such key; did you mean 'steps'"),
        (["executor.name=sim"], "executor.name: a simulated run has no times"),
        (["engine.tensor_parallel_size=2"], "engine.tensor_parallel_size: kernels of other "
         "processes are not recorded"),
        (["--trace", "/proc/nanofw/trace.json"], "--trace: cannot write /proc/nanofw/trace.json"),
        (["--json", "x.json", "--trace", "x.json"], "--trace: would overwrite x.json"),
    ],
)  # fmt: skip
def test_what_cannot_be_profiled_is_told(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *SMALL, *QUICK, *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.gpu
@needs_gpu
def test_kernels_spans_and_idle_time_of_a_gpu(tmp_path: Path) -> None:
    record_path, trace_path = tmp_path / "out.json", tmp_path / "trace.json.gz"
    words = ["engine.device=cuda", "engine.max_num_seqs=8", "profile.decode=[1,8]"]
    text = nanofw("profile", *words, "--json", str(record_path), "--trace", str(trace_path))
    found = read_record(record_path, "profile")["results"]
    assert [result["kind"] for result in found] == ["prefill", "decode", "decode"]
    for result in found:
        assert result["num_kernels"] > result["num_layers"]
        assert result["kernels_per_layer"] < 40
        assert 0 < result["busy_seconds"] < 1.5 * result["step_seconds"]
        assert 0 <= result["idle"] < 1
    assert found[1]["graph_steps"] == {"replayed": 20}
    trace = json.loads(gzip.decompress(trace_path.read_bytes()))
    assert span_counts(trace)["nanofw.submit"] == 3 * 20
    assert any(e.get("cat") == "kernel" for e in trace["traceEvents"])
    assert "the device is idle" in text
