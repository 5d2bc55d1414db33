"""`nanofw bench`: what it prints and writes, on the embedded model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nanofw.assembly import select
from nanofw.bench import latency
from nanofw.bench.throughput import ThroughputOptions, make_workload
from nanofw.cli.main import main
from nanofw.config.load import load_config
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from tests.cli.measuring import SMALL, nanofw, read_record

Number = int | float
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def spread(seconds: list[float]) -> None:
    assert all(value > 0 for value in seconds)


class TestLatency:
    WORDS = ("bench.batch_sizes=[1,3]", "bench.output_tokens=9", "bench.first_token=[20]")

    def test_tables_and_json_say_the_same(self, tmp_path: Path) -> None:
        path = tmp_path / "out.json"
        text = nanofw(
            "bench", "latency", *SMALL, *self.WORDS, "bench.repeats=2", "--json", str(path)
        )
        record = read_record(path, "bench latency")
        assert record["complete"]
        assert record["options"]["repeats"] == 2
        found = record["results"]
        shapes = [(r["kind"], r["batch_size"], r["prompt_tokens"], r["output_tokens"])
                  for r in found]  # fmt: skip
        assert shapes == [("decode", 1, 128, 9), ("decode", 3, 128, 9), ("first_token", 1, 20, 1)]
        for result in found:
            assert len(result["seconds"]) == 2
            assert f"{1e3 * result['median_s']:.3f}" in text
        spread(found[-1]["seconds"])
        assert "demo: float32 on cpu, attention by sdpa\n" in text
        assert max(map(len, text.splitlines())) <= 80

    def test_lengths_that_are_not_given_fit_the_model(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[tuple[int, int]] = []

        def step_seconds(generate: Any, prompts: Any, batch: int, prompt: int, num: int) -> float:
            seen.append((prompt, num))
            return 1.0

        monkeypatch.setattr(latency, "step_seconds", step_seconds)
        words = ["bench.first_token=[]", "bench.warm_up=0", "bench.repeats=1"]
        assert main(["bench", "latency", *SMALL, *words]) == 0
        assert seen == [(128, 128)]  # of 256; batches of 8 and more are above max_num_seqs
        assert "1,000.000" not in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["bench.batch_sizes=[1,9]"], "bench.batch_sizes: a batch of 9 is above "
             "engine.max_num_seqs, 4; set engine.max_num_seqs=9"),
            (["bench.prompt_tokens=250", "bench.output_tokens=7"], "bench.prompt_tokens: a prompt "
             "of 250 tokens and 7 tokens of output do not fit in engine.max_model_len, 256"),
            (["bench.first_token=[256]"], "bench.first_token: a prompt of 256 tokens and 1 token "
             "of output do not fit"),
            (["bench.batch_sizes=[4]", "kv_allocator.num_blocks=8"], "bench.batch_sizes: 4 "
             "requests of 256 tokens need 32 blocks of KV, there are 8"),
            (["bench.repeats=0"], "bench.repeats: should be greater than 0"),
            (["bench.repeat=1"], "bench.repeat: no such key; did you mean 'repeats'"),
            (["bench.batch_sizes=[0]"], "bench.batch_sizes[0]: should be greater"),
            (["executor.name=sim"], "executor.name: a simulated run has no times to measure"),
            (["--json", "/proc/nanofw/out.json"], "--json: cannot write /proc/nanofw/out.json"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_measured_is_told(
        self, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["bench", "latency", *SMALL, *words]) == 2
        assert message in capsys.readouterr().err

    def test_a_command_that_fails_leaves_no_file_and_takes_none_away(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "out" / "new.json"
        words = ["bench.batch_sizes=[9]", "--json"]
        assert main(["bench", "latency", *SMALL, *words, str(path)]) == 2
        assert not path.exists()
        path.write_text("{}", encoding="utf-8")
        assert main(["bench", "latency", *SMALL, *words, str(path)]) == 2
        assert path.read_text(encoding="utf-8") == "{}"
        run = tmp_path / "run.yaml"
        run.write_text("base: qwen3-demo\n", encoding="utf-8")
        assert main(["bench", "latency", str(run), "--json", str(run)]) == 2
        assert "--json: would overwrite" in capsys.readouterr().err

    def test_an_interrupt_keeps_what_was_measured(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def first_only(*arguments: Any) -> Iterator[Any]:
            yield latency.Timing(
                kind="decode", batch_size=1, prompt_tokens=8, output_tokens=4, seconds=(0.25, 0.5)
            )
            raise KeyboardInterrupt

        monkeypatch.setattr(latency, "latencies", first_only)
        path = tmp_path / "out.json"
        assert main(["bench", "latency", *SMALL, "--json", str(path)]) == 130
        record = read_record(path, "bench latency")
        assert not record["complete"]
        assert [result["median_s"] for result in record["results"]] == [0.375]
        said = capsys.readouterr()
        assert "375.000" in said.out
        assert "the rest was not measured" in said.err

    @pytest.mark.gpu
    @needs_gpu
    def test_on_a_gpu_steps_are_replayed(self, tmp_path: Path) -> None:
        path = tmp_path / "out.json"
        words = ["engine.device=cuda", "engine.max_num_seqs=8", "bench.output_tokens=65"]
        nanofw("bench", "latency", *words, "bench.batch_sizes=[1,8]", "--json", str(path))
        found = read_record(path, "bench latency")["results"]
        assert all(0 < result["median_s"] < 0.1 for result in found)


class TestThroughput:
    WORDS = ("bench.num_requests=6", "bench.prompt_tokens=12", "bench.output_tokens=5")

    def test_passes_serve_the_same_requests(self, tmp_path: Path) -> None:
        path = tmp_path / "out.json"
        text = nanofw("bench", "throughput", *SMALL, *self.WORDS, "bench.passes=2",
                      "--json", str(path))  # fmt: skip
        cold, steady = read_record(path, "bench throughput")["results"]
        for found in (cold, steady):
            assert found["num_requests"] == 6
            assert found["num_prompt_tokens"] == 72
            assert found["num_output_tokens"] == 30
            assert found["num_cached_tokens"] == found["num_failed"] == 0
            assert found["output_tokens_per_s"] == pytest.approx(30 / found["seconds"])
            for name in ("ttft", "tpot", "itl", "e2e"):
                values = found["latencies"][name]
                assert 0 < values["p50"] <= values["p99"] <= values["max"] <= found["seconds"]
        assert "1 (cold)" in text
        assert f"{steady['output_tokens_per_s']:,.0f}" in text
        assert "TTFT and E2E include the wait" in text
        assert max(map(len, text.splitlines())) <= 80

    def test_a_workload_of_the_run_comes_at_once_or_in_its_time(self, tmp_path: Path) -> None:
        workload = (
            "input.workload={name: fixed, requests: [{prompt_tokens: 8, output_tokens: 3}, "
            "{prompt_tokens: 9, output_tokens: 2, arrival: 0.5}]}"
        )
        words = [*SMALL, workload, "input.prompts=null", "bench.passes=2"]
        path = tmp_path / "out.json"
        late = ["bench.at_once=false", "--json", str(path)]
        assert main(["bench", "throughput", *words, *late]) == 0
        last = read_record(path, "bench throughput")["results"][-1]
        assert (last["num_requests"], last["num_output_tokens"]) == (2, 5)
        assert last["seconds"] > 0.5
        selection = select(load_config("qwen3-demo", words[:-1]))
        for at_once, arrivals in ((True, [7.0, 7.0]), (False, [7.0, 7.5])):
            options = ThroughputOptions(at_once=at_once)
            made = make_workload(selection, options, options.kind(selection), [])
            made.start = 7.0
            assert [request.arrival for request in made.initial()] == arrivals

    def test_B108_a_cache_that_was_not_empty_is_said(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Passes serve the same prompts: only an empty cache makes them equal work."""
        words = ["bench.num_requests=2", "bench.prompt_tokens=100", "bench.output_tokens=2"]
        assert main(["bench", "throughput", *SMALL, *words, "bench.passes=2"]) == 0
        text = capsys.readouterr().out
        assert "in the prefix cache" not in text
        assert "note:" not in text
        monkeypatch.setattr(PagedPrefixAllocator, "reset", lambda self: None)
        assert main(["bench", "throughput", *SMALL, *words, "bench.passes=2"]) == 0
        text = capsys.readouterr().out
        assert "pass 2: 96% of the prompt tokens were in the prefix cache" in text
        assert "note: 192 prompt tokens were found in the prefix cache" in text

    def test_prompts_of_a_file(self, tmp_path: Path) -> None:
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text('{"prompt": "In the beginning", "max_tokens": 4, "ignore_eos": true}\n'
                           '{"prompt_token_ids": [5, 6, 7], "max_tokens": 3, "ignore_eos": true}\n',
                           encoding="utf-8")  # fmt: skip
        path = tmp_path / "out.json"
        words = [f"input.file={prompts}", "input.prompts=null", "bench.passes=2"]
        assert main(["bench", "throughput", *SMALL, *words, "--json", str(path)]) == 0
        for found in read_record(path, "bench throughput")["results"]:
            assert (found["num_requests"], found["num_output_tokens"]) == (2, 7)
            assert found["num_cached_tokens"] == 0

    def test_a_request_that_is_refused_is_told_and_is_no_success(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        prompts = tmp_path / "prompts.jsonl"
        lines = [{"prompt_token_ids": [5] * 300}, {"prompt_token_ids": [5, 6], "max_tokens": 2}]
        prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        words = [f"input.file={prompts}", "input.prompts=null", "bench.passes=1"]
        assert main(["bench", "throughput", *SMALL, *words]) == 1
        assert "note: 1 requests failed, the first with: " in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["input.prompts=null", "bench.traffic=own"], "bench.traffic: the configuration has "
             "no requests of its own"),
            (["bench.passes=0"], "bench.passes: should be greater"),
            (["bench.traffic=all"], "bench.traffic: "),
            (["bench.prompt_tokens=0"], "bench.prompt_tokens"),
            (["executor.name=sim"], "a simulated run has no times to measure"),
            (["input.prompts=[{text: x}]", "bench.traffic=own"], "input.prompts[0]: unknown key "
             "'text'"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_measured_is_told(
        self, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["bench", "throughput", *SMALL, *words]) == 2
        assert message in capsys.readouterr().err

    def test_lengths_that_do_not_fit_are_said(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["engine.max_model_len=16", "bench.num_requests=2", "bench.passes=1"]
        assert main(["bench", "throughput", *SMALL, *words]) == 0
        assert "note: 2 of 2 prompts were cut to max_model_len 16" in capsys.readouterr().out

    def test_random_traffic_is_that_of_the_peers_benchmark_by_default(self) -> None:
        options = ThroughputOptions()
        assert options.num_requests == 256
        for lengths in (options.prompt_tokens, options.output_tokens):
            assert lengths.model_dump() == {"distribution": "uniform", "low": 100, "high": 1024}

    @pytest.mark.gpu
    @needs_gpu
    def test_on_a_gpu(self, tmp_path: Path) -> None:
        path = tmp_path / "out.json"
        words = ["engine.device=cuda", "bench.num_requests=64", "--json", str(path)]
        nanofw("bench", "throughput", *words)
        found = read_record(path, "bench throughput")["results"]
        assert found[-1]["output_tokens_per_s"] > 100


class TestStartup:
    def test_phases_add_up_to_the_first_token(self, tmp_path: Path) -> None:
        path = tmp_path / "out.json"
        text = nanofw("bench", "startup", *SMALL, "bench.repeats=1", "--json", str(path))
        found = read_record(path, "bench startup")["results"]
        assert [result["state"] for result in found] == ["cold", "warm"]
        for result in found:
            phases = result["phases"]
            assert list(phases) == [
                "Python", "imports", "configuration", "engine: weights", "engine: memory profile",
                "engine: KV pool", "engine: rest", "first token",
            ]  # fmt: skip
            assert sum(value[0] for value in phases.values()) == pytest.approx(result["median_s"])
            assert phases["imports"][0] > 0.01
            spread(result["second_request_s"])
        assert "engine: weights" in text
        assert max(map(len, text.splitlines())) <= 80

    def test_a_process_that_fails_is_told_with_what_it_said(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plugin = tmp_path / "broken.py"
        plugin.write_text(
            "from nanofw.plugins import Plugin, Policy, hookimpl\n"
            "class Broken(Policy):\n"
            "    def __init__(self, options, config):\n"
            "        raise ValueError('no such thing')\n"
            "    def key(self, request, view):\n"
            "        return 0\n"
            "@hookimpl\n"
            "def scheduler():\n"
            "    return Plugin('broken', ':Broken', api='scheduler/2')\n",
            encoding="utf-8",
        )
        words = [f"plugins.load=[{plugin}]", "scheduler.name=broken", "bench.states=[kernels_cold]"]
        assert main(["bench", "startup", *SMALL, *words]) == 3
        said = capsys.readouterr().err
        assert "a process that was started to be measured failed" in said
        assert "no such thing" in said

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["bench.states=[hot]"], "bench.states[0]: "),
            (["bench.prompt_tokens=256"], "bench.prompt_tokens: a prompt of 256 tokens and 1 "),
            (["executor.name=sim"], "a simulated run has no times to measure"),
        ],
    )
    def test_what_cannot_be_measured_is_told(
        self, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["bench", "startup", *SMALL, *words]) == 2
        assert message in capsys.readouterr().err

    @pytest.mark.gpu
    @needs_gpu
    def test_on_a_gpu_graphs_are_a_phase(self, tmp_path: Path) -> None:
        path = tmp_path / "out.json"
        words = ["engine.device=cuda", "engine.max_num_seqs=8", "bench.repeats=1"]
        nanofw("bench", "startup", *words, "--json", str(path))
        found = {r["state"]: r for r in read_record(path, "bench startup")["results"]}
        assert list(found) == ["cold", "kernels_cold", "warm"]
        assert all(result["phases"]["engine: graphs"][0] > 0 for result in found.values())
        assert found["kernels_cold"]["median_s"] > found["warm"]["median_s"]


def test_latency_with_nothing_to_measure_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = ["bench.batch_sizes=[]", "bench.first_token=[]"]
    assert main(["bench", "latency", "model.path=embedded:demo", *nothing]) == 2
    assert "bench.batch_sizes: there is nothing to measure" in capsys.readouterr().err
