"""Faults of comparisons that people found from outside, by their ids."""

from __future__ import annotations

import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from nanofw.cli.main import main
from nanofw.compare.arms import select_arms
from nanofw.compare.experiment import AA, load_experiment
from nanofw.compare.report import as_json, print_report
from nanofw.compare.statistics import holm
from nanofw.errors import ConfigError
from tests.compare.test_compare import BASE, SMALL_POOL, compare, with_policy, write

COMMAND = [sys.executable, "-m", "nanofw"]


def test_F071_files_are_written_before_anything_is_printed(tmp_path: Path) -> None:
    """The reader of the tables ends at once, as `head` does."""
    output = tmp_path / "x.json"
    path = write(tmp_path, repeats=1, output=str(output), capacity=100.0)
    read, held = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, "compare", str(path)], stdout=held, stderr=subprocess.PIPE, check=False
    )
    os.close(held)
    assert done.returncode == 141
    assert json.loads(output.read_text(encoding="utf-8"))["complete"]


def test_F071_a_file_that_cannot_be_written_in_the_end_does_not_hide_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nanofw.compare.report.write_json", full)
    path = write(tmp_path, repeats=1, output="x.json")
    assert main(["compare", str(path)]) == 3
    said = capsys.readouterr()
    assert "capacity of fcfs" in said.out
    assert "No space left on device: " in said.err


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *[pytest.param(s, marks=pytest.mark.slow) for s in (signal.SIGHUP, signal.SIGKILL)],
    ],
)
def test_F026_a_signal_ends_the_workers_and_keeps_what_was_finished(
    tmp_path: Path, number: signal.Signals
) -> None:
    output = tmp_path / "x.json"
    log = tmp_path / "workers"
    (tmp_path / "noted.py").write_text(
        "import os, time\n"
        "from nanofw.plugins import Plugin, Policy, hookimpl\n"
        "@hookimpl\n"
        "def scheduler():\n"
        "    return Plugin('noted', ':Local', api='scheduler/2')\n"
        "class Local(Policy):\n"
        "    def __init__(self, *_):\n"
        f"        open({str(log)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        "    def key(self, request, view):\n"
        "        return request.arrival\n",
        encoding="utf-8",
    )
    config = {**BASE["config"], "plugins": {"load": ["./noted.py"]}}
    path = write(
        tmp_path, config=config, arms={"a": {"scheduler": {"name": "noted"}}, "b": {}},
        processes=2, repeats=1000, output=str(output), aa=False, capacity=5.0,
    )  # fmt: skip
    run = subprocess.Popen(
        [*COMMAND, "compare", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not (log.exists() and len(log.read_text(encoding="utf-8").split()) > 6):
        assert time.monotonic() < deadline
        assert run.poll() is None
        time.sleep(0.1)
    run.send_signal(number)
    run.communicate(timeout=60)  # ends only when no worker holds the pipe
    workers = {int(word) for word in log.read_text(encoding="utf-8").split()} - {run.pid}
    assert workers
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(map(_is_alive, workers)):
        time.sleep(0.05)
    assert not [worker for worker in workers if _is_alive(worker)]
    if number is signal.SIGKILL:
        return
    assert run.returncode == 128 + number
    record = json.loads(output.read_text(encoding="utf-8"))
    assert record["runs"]
    assert not record["complete"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"repeats": 10**9}, "repeats: .*10000"),
        ({"processes": 100_000}, "processes.*1024"),
        ({"repeats": 10_000, "loads": [0.001 * i for i in range(1, 101)]}, "runs; at most"),
        ({"loads": [0.5] * 2000}, "loads: .*1000"),
        ({"arms": {f"a{i}": {} for i in range(2000)}}, "arms: .*1000"),
    ],
)
def test_F027_what_would_never_start_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_experiment(write(tmp_path, **changes))


def test_F027_values_that_make_too_many_arms_are_counted_before_they_are_made() -> None:
    many = ",".join(map(str, range(1, 200)))
    words = [f"engine.{key}={many}" for key in ("max_num_seqs", "seed", "max_model_len")]
    with pytest.raises(ConfigError, match="make 7,880,599 arms; at most 1,000"):
        load_experiment("sim", [*words, "input.workload.name=poisson"])


@pytest.mark.parametrize("name", ["structured"])
def test_F027_threads_are_bounded(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"logits_processors=[{{name: {name}, num_threads: 100000}}]"]
    assert main(["explain", "sim", *words]) == 2
    assert "num_threads" in capsys.readouterr().err


RUN = {**BASE["config"], "input": {"workload": BASE["workload"]}}


def write_run(folder: Path, **changes: Any) -> Path:
    path = folder / "c1.yaml"
    path.write_text(yaml.safe_dump({**RUN, **changes}), encoding="utf-8")
    return path


class TestArms:
    """F025: arms differ in what was varied and in nothing else."""

    def test_F025_an_option_of_the_command_line_reaches_every_arm(self, tmp_path: Path) -> None:
        path = write_run(tmp_path, scheduler={"name": "priority"})
        words = ["scheduler.name=priority,shortest_job_first", "scheduler.ageing=7"]
        arms = select_arms(load_experiment(path, words))
        assert [arm.components["scheduler"].options.ageing for arm in arms.values()] == [7, 7]

    def test_F025_an_option_that_an_arm_cannot_take_names_arm_and_key(self, tmp_path: Path) -> None:
        path = write_run(tmp_path, scheduler={"name": "priority"})
        words = ["scheduler.name=priority,shortest_job_first", "scheduler.preempt=true"]
        message = r"command line: scheduler\.preempt: .*\(arm 'shortest_job_first'\)"
        with pytest.raises(ConfigError, match=message):
            select_arms(load_experiment(path, words))

    def test_F025_an_option_that_only_one_arm_kept_is_an_error(self, tmp_path: Path) -> None:
        path = write_run(tmp_path, scheduler={"name": "priority", "ageing": 7})
        message = (
            r"c1\.yaml:\d+: scheduler\.ageing: is 7 for arm 'priority' and was dropped for arm "
            r"'shortest_job_first', .*has the option, too, and would run with its default, 0\.0"
        )
        experiment = load_experiment(path, ["scheduler.name=priority,shortest_job_first"])
        with pytest.raises(ConfigError, match=message):
            select_arms(experiment)

    def test_F025_an_option_that_the_other_policy_lacks_is_its_own(self, tmp_path: Path) -> None:
        path = write_run(tmp_path, scheduler={"name": "fcfs", "watermark": 0.1})
        arms = select_arms(load_experiment(path, ["scheduler.name=fcfs,shortest_job_first"]))
        assert arms["fcfs"].components["scheduler"].options.watermark == 0.1

    @pytest.mark.parametrize("where", ["file", "command line"])
    def test_F025_a_cost_model_reaches_every_executor_or_is_an_error(
        self, tmp_path: Path, where: str
    ) -> None:
        (tmp_path / "jitter.py").write_text(
            "from nanofw.plugins import Plugin, hookimpl\n"
            "@hookimpl\n"
            "def executor():\n"
            "    return Plugin('jitter_sim', 'nanofw.sim.executor:SimExecutor', api='executor/2',\n"
            "                  options='nanofw.sim.options:SimOptions',\n"
            "                  capabilities=CAPABILITIES)\n"
            "from nanofw.sim import manifest\n"
            "CAPABILITIES = dict(manifest.executor().capabilities)\n",
            encoding="utf-8",
        )
        cost = {"name": "roofline", "device": "t4"}
        executor = {"name": "sim", **({"cost_model": cost} if where == "file" else {})}
        path = write_run(tmp_path, executor=executor, plugins={"load": ["./jitter.py"]})
        words = ["executor.name=sim,jitter_sim"]
        if where == "file":
            with pytest.raises(ConfigError, match="arms whose cost models differ"):
                select_arms(load_experiment(path, words))
            return
        words += ["executor.cost_model.name=roofline", "executor.cost_model.device=t4"]
        arms = select_arms(load_experiment(path, words))
        models = [arm.components["cost_model"].options.device for arm in arms.values()]
        assert models == ["t4", "t4"]

    def test_F025_an_option_for_all_arms_of_a_file_that_one_cannot_take_is_an_error(
        self, tmp_path: Path
    ) -> None:
        path = write(tmp_path, config={**BASE["config"], "scheduler": {"name": "fcfs"}})
        experiment = load_experiment(path, ["config.scheduler.watermark=0.2"])
        with pytest.raises(ConfigError, match=r"scheduler\.watermark: is 0\.2 for arm 'fcfs'"):
            select_arms(experiment)

    def test_F025_a_value_beside_the_values_of_its_key_is_an_error(self) -> None:
        words = [
            "scheduler.name=fcfs,random",
            "scheduler={name: fcfs}",
            "input.workload.name=poisson",
        ]
        with pytest.raises(ConfigError, match="beside the values of scheduler.name"):
            load_experiment("sim", words)


class TestTraffic:
    """Runs with the same traffic are one; arms with other traffic are not compared."""

    SHUFFLED: Any = {  # noqa: RUF012
        "fcfs": {}, **{f"r{i}": {"scheduler": {"name": "random", "seed": i}} for i in range(4)}
    }  # fmt: skip

    @staticmethod
    def replay(folder: Path) -> dict[str, Any]:
        """A workload of 200 rows whose rate rises; 40 of them are replayed."""
        rng = random.Random(7)
        rows = [
            {"arrival": 10 * math.sqrt(i), "prompt_tokens": rng.randint(8, 64),
             "output_tokens": rng.randint(1, 40)}
            for i in range(200)
        ]  # fmt: skip
        path = folder / "trace.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        return {"name": "replay", "file": str(path), "num_requests": 40}

    def test_F063_copies_of_a_run_are_one_observation(self, tmp_path: Path) -> None:
        _, analysis = compare(
            tmp_path, arms=self.SHUFFLED, workload=self.replay(tmp_path), repeats=4
        )
        for arm in self.SHUFFLED:
            row = analysis.row(1.1, arm, "e2e.mean")
            if arm != "fcfs":
                assert (row.verdict, row.effect and row.effect.num_runs) == ("no evidence", 1)
                assert row.reason == "its runs are copies of each other"
        assert any("4 runs are 1 observation: the others had the same arrivals" in text
                   for text in analysis.warnings)  # fmt: skip

    def test_F063_blocks_of_a_trace_are_observations_until_they_come_again(
        self, tmp_path: Path
    ) -> None:
        workload = {**self.replay(tmp_path), "part": "random"}
        results, analysis = compare(
            tmp_path, arms=self.SHUFFLED, workload=workload, repeats=7, aa=False
        )
        row = analysis.row(1.1, "r1", "e2e.mean")
        assert row.effect is not None
        assert row.effect.num_runs == 5
        assert row.reason is None
        assert len({run.traffic.shape for run in results.runs[(1.1, "fcfs")]}) == 5

    def test_F064_every_block_carries_its_own_load(self, tmp_path: Path) -> None:
        workload = {**self.replay(tmp_path), "part": "random"}
        results, analysis = compare(tmp_path, workload=workload, repeats=5, loads=[0.95], aa=False)
        assert results.capacity is not None
        record: Any = as_json(results, analysis)
        for run in record["runs"]:
            assert run["offered_load"] == pytest.approx(0.95)
        assert len({round(run.seconds, 1) for run in results.runs[(0.95, "fcfs")]}) > 1

    def test_F065_arms_with_other_traffic_get_no_verdict(self, tmp_path: Path) -> None:
        changes: dict[str, Any] = {
            "rate": {"rate": 0.8}, "output": {"output": 8}, "prompt": {"prompt": 40},
            "fewer": {"num_requests": 30}, "client": {"clients": {"a": 1.0}},
            "prefix": {"prefix": {"groups": 1, "length": 16}},
        }  # fmt: skip
        shared = {**BASE["workload"], "num_requests": 40}
        arms = {"a": {}} | {
            name: {"input": {"workload": {**shared, **change}}} for name, change in changes.items()
        }
        metrics = ["e2e.mean", "ttft.mean"]
        _, analysis = compare(
            tmp_path, arms=arms, workload=shared, aa=False, primary=None, metrics=metrics,
            capacity=130.0,
        )  # fmt: skip
        for arm in changes:
            for metric in metrics:
                row = analysis.row(1.1, arm, metric)
                assert row.verdict == "no evidence"
                assert row.reason == "its traffic is not the baseline's"
            start = f"{arm} at 1.1: got other traffic than a in 3 of 3 runs ("
            assert sum(text.startswith(start) for text in analysis.warnings) == 1
        assert any("(30 requests at " in text for text in analysis.warnings)
        assert not any("numerics depend" in text for text in analysis.warnings)

    def test_F065_hints_to_a_policy_are_not_traffic(self, tmp_path: Path) -> None:
        arms = {"a": {}, "b": {"input": {"workload": {"guess_noise": 2.0, "deadline_s": 3.0}}}}
        _, analysis = compare(tmp_path, arms=arms, aa=False, capacity=130.0)
        assert not any("other traffic" in text for text in analysis.warnings)


class TestQueues:
    """Overload and short runs are seen, and steady ones are not accused."""

    def test_F067_a_load_above_the_capacity_is_told(self, tmp_path: Path) -> None:
        loads = [0.5, 1.02, 1.05, 1.1]
        _, analysis = compare(tmp_path, loads=loads, aa=False, capacity=130.0, repeats=1)
        told = "load 1.02, 1.05, 1.1: more comes than can be served"
        assert any(text.startswith(told) for text in analysis.warnings)

    def test_F067_overload_is_seen_whoever_is_served_first(self, tmp_path: Path) -> None:
        workload = {**BASE["workload"], "num_requests": 400}
        arms = {"sjf": BASE["arms"]["sjf"], "fcfs": {}}
        results, analysis = compare(
            tmp_path, arms=arms, workload=workload, loads=[1.5], repeats=3, aa=False
        )
        assert all(run.growth > 0 for run in results.runs[(1.5, "sjf")])
        assert any(
            text.startswith("sjf at 1.5") and "the queue was still growing" in text
            for text in analysis.warnings
        )

    def test_F067_six_requests_say_nothing_of_a_queue(self, tmp_path: Path) -> None:
        workload = {**BASE["workload"], "num_requests": 6}
        _, analysis = compare(tmp_path, workload=workload, loads=[0.5], aa=False)
        assert not any("growing" in text for text in analysis.warnings)
        assert any("requests were measured in a run" in text for text in analysis.warnings)

    def test_F074_short_runs_are_told_and_have_no_interval(self, tmp_path: Path) -> None:
        workload = {**BASE["workload"], "num_requests": 300}
        results, analysis = compare(
            tmp_path, workload=workload, loads=[0.95], repeats=2, aa=False, capacity=130.0
        )
        assert any("runs are short: latencies resemble" in text for text in analysis.warnings)
        assert "e2e.mean" not in results.runs[(0.95, "fcfs")][0].within

    def test_F074_long_runs_are_not_called_short(self, tmp_path: Path) -> None:
        workload = {**BASE["workload"], "num_requests": 400}
        results, analysis = compare(
            tmp_path, workload=workload, loads=[0.2], repeats=2, aa=False, capacity=130.0
        )
        assert not any("runs are short" in text for text in analysis.warnings)
        (low, high), mean = (
            results.runs[(0.2, "fcfs")][0].within["e2e.mean"],
            results.runs[(0.2, "fcfs")][0].values["e2e.mean"],
        )
        assert low < mean < high

    def test_F068_the_capacity_has_an_interval_and_says_when_it_is_wide(
        self, tmp_path: Path
    ) -> None:
        heavy = {"distribution": "lognormal", "mean": 16, "sigma": 2.5, "high": 900}
        workload = {**BASE["workload"], "output": heavy, "num_requests": 60}
        results, analysis = compare(tmp_path, workload=workload, repeats=1, aa=False)
        found = results.capacity_found
        assert found is not None
        assert found.low < found.rate == results.capacity < found.high
        assert found.num_bursts == 3
        assert any("the capacity is" in text and "3 bursts" in text for text in analysis.warnings)
        assert as_json(results, analysis)["capacity_interval"] == [found.low, found.high]


class TestHarm:
    """What an arm costs others is told beside what it gains."""

    def test_F070_no_metric_but_goodput_is_judged_where_others_were_served(
        self, tmp_path: Path
    ) -> None:
        metrics = [
            "cache.hit_rate",
            "throughput.requests",
            "e2e.mean",
            "preemptions",
            "goodput.share",
        ]
        arms = {"all": {}, "refuses": {**SMALL_POOL}}
        workload = {
            "name": "poisson", "num_requests": 60, "output": 30,
            "prompt": {"distribution": "uniform", "low": 10, "high": 300},
        }  # fmt: skip
        _, analysis = compare(
            tmp_path, arms=arms, workload=workload, loads=None, rates=[0.5], primary=None,
            metrics=metrics, slo={"e2e_s": 1e6}, aa=False,
        )  # fmt: skip
        rows = [analysis.row(0.5, "refuses", metric) for metric in metrics]
        words = ["no evidence", "worse", "no evidence", "no evidence", "worse"]
        assert [row.verdict for row in rows] == words
        assert {row.reason for row in rows[:4]} == {"it served other requests than the baseline"}

    def test_F070_those_who_starve_are_named_beside_a_better_percentile(
        self, tmp_path: Path
    ) -> None:
        """The longest few per cent wait for all others."""
        config = with_policy(tmp_path, "starves", key="(request.max_tokens > 70, request.arrival)")
        arms = {"fcfs": {}, "starves": {"scheduler": {"name": "starves"}}}
        workload = {**BASE["workload"], "num_requests": 300}
        changes = {
            "config": {**config, "engine": {**BASE["config"]["engine"], "overlap": False}},
            "arms": arms, "workload": workload, "baseline": "fcfs", "primary": "e2e.p50",
            "loads": [1.3], "repeats": 5, "metrics": [], "aa": False,
            "capacity": 130.0,
        }  # fmt: skip
        results, analysis = compare(tmp_path, **changes)
        row = analysis.row(1.3, "starves", "e2e.p50")
        assert row.verdict == "better"
        assert any(harm.startswith("e2e.max x") for harm in row.harms)
        assert any("e2e.p50 is better, and others are worse: " in w for w in analysis.warnings)
        said = io.StringIO()
        print_report(results, analysis, Console(file=said, width=200))
        assert "better, but" in said.getvalue()
        assert "worse: e2e.max x" in said.getvalue()

    def test_F066_another_rule_of_admission_is_told_where_blocks_are_short(
        self, tmp_path: Path
    ) -> None:
        config = {
            **with_policy(tmp_path, "same", key="request.arrival"),
            "engine": {"max_num_seqs": 8, "max_model_len": 512, "overlap": False},
        }
        arms = {"fcfs": {}, "same": {"scheduler": {"name": "same"}},
                "bare": {"scheduler": {"watermark": 0}}}  # fmt: skip
        workload = {**BASE["workload"], "num_requests": 60}
        for num_blocks, told in ((32, ["bare", "same"]), (3000, [])):
            pool = {"num_blocks": num_blocks, "block_size": 16}
            _, analysis = compare(
                tmp_path, config={**config, "kv_allocator": pool}, arms=arms, workload=workload,
                baseline="fcfs", repeats=3, aa=False,
            )  # fmt: skip
            found = [text for text in analysis.warnings if "blocks were short" in text]
            assert [text.partition(":")[0] for text in found] == told
            if found:
                assert "admits what fits, fcfs keeps 1.0% of the blocks free" in found[0]

    def test_F073_a_slow_scheduler_is_told_and_can_be_counted(self, tmp_path: Path) -> None:
        key = "__import__('time').sleep(0.02) or request.arrival"
        config = with_policy(tmp_path, "slow", key=key)
        config["engine"] = {**BASE["config"]["engine"], "overlap": False}
        arms = {"fcfs": {}, "slow": {"scheduler": {"name": "slow"}}}
        changes = {
            "config": config, "arms": arms, "baseline": "fcfs", "loads": [0.5], "repeats": 3,
            "capacity": 130.0,
            "workload": {**BASE["workload"], "num_requests": 40}, "aa": False,
        }  # fmt: skip
        results, analysis = compare(tmp_path, **changes)
        assert all(run.host_s > 0.02 * 40 for run in results.runs[(0.5, "slow")])
        assert any("slow at 0.5: its scheduler took" in text for text in analysis.warnings)
        results, analysis = compare(tmp_path, **changes, host_time=True)
        assert analysis.row(0.5, "slow", "e2e.mean").verdict == "worse"
        assert not any("its scheduler took" in text for text in analysis.warnings)


class TestDefinitions:
    def test_F069_a_clients_percentile_stands_on_its_own_requests(self, tmp_path: Path) -> None:
        workload = {**BASE["workload"], "num_requests": 200, "clients": {"hot": 9.0, "cold": 1.0}}
        _, analysis = compare(
            tmp_path, workload=workload, primary="ttft.p99@cold", metrics=["ttft.p99"], aa=False
        )
        (told,) = [text for text in analysis.warnings if "requests of 'cold' a run" in text]
        assert told.startswith("ttft.p99@cold: 99th percentiles of ")
        assert int(told.split(" of ")[1].split()[0]) < 40

    def test_F069_the_control_is_corrected_with_the_rest(self, tmp_path: Path) -> None:
        metrics = ["e2e.mean", "ttft.mean", "queue.mean"]
        _, analysis = compare(tmp_path, primary=None, metrics=metrics)
        rows = [analysis.row(1.1, AA, metric) for metric in metrics]
        others = [analysis.row(1.1, "sjf", metric) for metric in metrics]
        p_values = [row.effect.p_value for row in (*rows, *others) if row.effect is not None]
        assert [row.p_adjusted for row in rows] == holm(p_values)[:3]

    def test_F075_a_client_without_requests_is_refused_before_anything_runs(
        self, tmp_path: Path
    ) -> None:
        message = (
            r"metrics: 'ttft\.p99@nobody': no request is of a client 'nobody'; the traffic has ''"
        )
        with pytest.raises(ConfigError, match=message):
            compare(tmp_path, metrics=["ttft.p99@nobody"])

    def test_F075_a_limit_shows_goodput(self, tmp_path: Path) -> None:
        path = write(tmp_path, slo={"ttft_s": 0.5}, metrics=["ttft.p99", "throughput.tokens"])
        assert "goodput.rate" in load_experiment(path).options.reported

    def test_F075_expectations_use_the_effect_that_is_shown(self, tmp_path: Path) -> None:
        expect = [{"metric": "e2e.mean", "arm": "sjf", "max_ratio": 9.0}]
        _, analysis = compare(tmp_path, expect=expect, aa=False)
        effect = analysis.row(1.1, "sjf", "e2e.mean").effect
        assert effect is not None
        assert f"ratio {effect.estimate:.3g}" in analysis.outcomes[0].text

    def test_F075_zeros_and_undefined_runs_are_told(self, tmp_path: Path) -> None:
        workload = {**BASE["workload"], "num_requests": 40, "output": 1}
        arms = {"a": {}, "b": {"engine": {"max_num_seqs": 40}}}
        _, analysis = compare(
            tmp_path, arms=arms, workload=workload, loads=[0.4], metrics=["queue.p50", "tpot.mean"],
            aa=False,
        )  # fmt: skip
        zeros = "queue.p50 is 0 in a run: compared by difference and not by ratio"
        assert any(text.endswith(zeros) for text in analysis.warnings), analysis.warnings

    def test_F075_a_sentence_whose_numbers_differ_by_run_is_told_once(self, tmp_path: Path) -> None:
        output = {"distribution": "uniform", "low": 1, "high": 2000}
        workload = {**BASE["workload"], "output": output, "num_requests": 12}
        _, analysis = compare(
            tmp_path, workload=workload, aa=False, rates=[0.5], repeats=4, loads=None
        )
        (cut,) = [text for text in analysis.warnings if "outputs were cut" in text]
        assert cut.endswith("(and similarly in 3 other runs)")

    def test_F075_the_same_sentence_is_told_once(self, tmp_path: Path) -> None:
        arms = {f"a{i}": {"engine": {"max_model_len": 80}} for i in range(5)}
        _, analysis = compare(
            tmp_path, arms=arms, loads=[0.3, 0.6], aa=False, capacity=130.0, repeats=1
        )
        told = [text for text in analysis.warnings if "cut to max_model_len" in text]
        assert told
        assert all(" and " in text.partition(":")[0] for text in told)
        assert len({text.partition(": ")[2] for text in told}) == len(told)
