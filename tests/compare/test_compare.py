"""Experiments from file to verdict, on the simulated executor."""

from __future__ import annotations

import gc
import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import yaml

from nanofw.assembly import build, build_workload, select
from nanofw.cli.main import main
from nanofw.compare.analysis import Analysis, analyse
from nanofw.compare.experiment import AA, load_experiment
from nanofw.compare.report import as_json
from nanofw.compare.results import Results
from nanofw.compare.run import measure, run_once
from nanofw.compare.runner import run_experiment
from nanofw.errors import ConfigError

SMALL_POOL = {
    "engine": {"max_model_len": None},
    "kv_allocator": {"num_blocks": 8, "block_size": 16},
}
"""A pool for fewer tokens than a request may have, which cuts the model's length."""
BASE: dict[str, Any] = {
    "config": {
        "model": {"path": "shape:qwen3-0.6b"},
        "engine": {"max_num_seqs": 2, "max_model_len": 1024},
        "executor": {"name": "sim", "cost_model": {"name": "roofline"}},
    },
    "arms": {"fcfs": {}, "sjf": {"scheduler": {"name": "shortest_job_first", "by": "output"}}},
    "workload": {
        "name": "poisson", "num_requests": 80, "guess_noise": 0.0, "prompt": 64,
        "output": {"distribution": "lognormal", "mean": 16, "sigma": 1.2, "high": 100},
    },
    "loads": [1.1],
    "repeats": 3,
    "processes": 1,
}  # fmt: skip


def with_policy(folder: Path, name: str, *, key: str) -> dict[str, Any]:
    """The configuration, with a local policy of that name and expression of a request's key."""
    text = (
        "from nanofw.plugins import Plugin, Policy, hookimpl\n"
        "@hookimpl\n"
        "def scheduler():\n"
        f"    return Plugin({name!r}, ':Local', api='scheduler/2')\n"
        "class Local(Policy):\n"
        "    def key(self, request, view):\n"
        f"        return {key}\n"
    )
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return {**BASE["config"], "plugins": {"load": [f"./{name}.py"]}}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump({**BASE, **changes}), encoding="utf-8")
    return path


CAPACITY = 130.0
"""Requests a second that `BASE` serves, about; what it serves is found by bursts of requests, which
take as long as the runs."""


def compare(folder: Path, *overrides: str, **changes: Any) -> tuple[Results, Analysis]:
    """Run an experiment; its capacity is given where the machine, the work and the arms are those
    of `BASE`, unless a test asks by `capacity=None`."""
    if not {"config", "workload", "arms", "rates", "base"} & set(changes):
        changes = {"capacity": CAPACITY, **changes}
    results = run_experiment(load_experiment(write(folder, **changes), overrides))
    return results, analyse(results)


class TestRuns:
    def test_arms_get_the_same_work_and_a_a_gets_other(self, tmp_path: Path) -> None:
        results, _ = compare(tmp_path)
        fcfs, sjf, again = (results.runs[(1.1, arm)] for arm in ("fcfs", "sjf", AA))
        assert [r.checksum for r in fcfs] == [r.checksum for r in sjf]
        assert all(a.checksum != b.checksum for a, b in zip(fcfs, again, strict=True))
        assert len({r.checksum for r in fcfs}) == 3
        assert {r.num_requests for r in fcfs} == {80}
        assert all(50 <= r.num_measured <= 76 for r in fcfs)

    def test_loads_are_of_the_capacity_that_was_found(self, tmp_path: Path) -> None:
        results, _ = compare(tmp_path, loads=[0.2, 3.0], repeats=1, capacity=None)
        assert results.capacity is not None
        (slow,), (fast,) = results.runs[(0.2, "fcfs")], results.runs[(3.0, "fcfs")]
        assert slow.num_requests / slow.seconds == pytest.approx(0.2 * results.capacity, rel=0.3)
        assert fast.num_requests / fast.seconds < 1.1 * results.capacity
        assert fast.overloaded
        assert not slow.overloaded

    def test_B108_every_run_starts_with_an_empty_cache(self, tmp_path: Path) -> None:
        """Two runs of one seed, one after the other in one process: the second is the first."""
        results, _ = compare(tmp_path, arms={"a": {}, "b": {}}, aa=False)
        for first, second in zip(*results.runs.values(), strict=True):
            assert first == second
            assert first.values["cache.hit_rate"] == 0.0

    def test_B108_hits_of_random_traffic_are_said(self, tmp_path: Path) -> None:
        """The same traffic twice through one engine measures the cache, and the report says so."""
        experiment = load_experiment(write(tmp_path))
        selection = select(experiment.load("fcfs"))
        notes = []
        with build(selection) as engine:
            for _ in range(2):
                workload = build_workload(selection, start=engine.clock.now())
                notes.append(measure(engine, workload, experiment.options).notes)
        assert notes[0] == ()
        assert "the cache was not empty at the start" in notes[1][0]

    def test_a_request_that_ended_is_kept_as_a_few_numbers(self, tmp_path: Path) -> None:
        """Not with its prompt of 8 KB, nor with its tokens: a million of them must fit."""
        workload = {"name": "poisson", "num_requests": 400, "prompt": 2000, "output": 4}
        config = {
            **BASE["config"],
            "engine": {"max_num_seqs": 2, "max_model_len": 2048},
            "kv_allocator": {"name": "paged"},  # a prefix cache fills up meanwhile
        }
        peaks: list[int] = []
        for num in (200, 200, 600):  # the first pays for what is made once
            path = write(tmp_path, config=config, workload={**workload, "num_requests": num})
            experiment = load_experiment(path)
            selection = select(experiment.load("fcfs"))
            gc.collect()
            tracemalloc.start()
            run_once(selection, experiment.options, seed=0, time_scale=1.0)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        # Some 400 to 900, by when cycles are collected; a prompt that is kept adds 8,000.
        assert (peaks[2] - peaks[1]) / 400 < 2000

    def test_processes_change_nothing(self, tmp_path: Path) -> None:
        alone, _ = compare(tmp_path, repeats=1)
        together, _ = compare(tmp_path, repeats=1, processes=2)
        assert alone.runs == together.runs

    def test_real_arms_take_turns_on_the_same_traffic(self, tmp_path: Path) -> None:
        config = {
            "model": {"path": "embedded:demo", "dtype": "float32"},
            "engine": {"device": "cpu", "max_num_seqs": 4, "max_model_len": 64},
            "kv_allocator": {"name": "paged_prefix", "num_blocks": 32},
        }
        workload = {"name": "poisson", "num_requests": 12, "prompt": 8, "output": 4}
        results, analysis = compare(
            tmp_path, base="qwen3-demo", config=config, workload=workload, loads=None,
            rates=[200.0], repeats=2,
        )  # fmt: skip
        assert not results.virtual
        assert [task.arm for task in results.order] == ["fcfs", "sjf", AA, AA, "sjf", "fcfs"]
        fcfs, sjf, again = (results.runs[(200.0, arm)] for arm in ("fcfs", "sjf", AA))
        assert [r.checksum for r in fcfs] == [r.checksum for r in sjf]
        assert [r.checksum for r in fcfs] == [r.checksum for r in again]
        assert fcfs[0].within == {}  # so few requests do not know their own mean
        assert any("only" in text for text in analysis.warnings)

    def test_a_closed_loop_has_no_loads(self, tmp_path: Path) -> None:
        workload = {"name": "closed_loop", "num_requests": 40}
        with pytest.raises(ConfigError, match=r"input\.workload: has no arrival rate"):
            compare(tmp_path, workload=workload)
        results, _ = compare(tmp_path, workload=workload, loads=None, repeats=1)
        assert results.points == (None,)


class TestVerdicts:
    def test_shortest_first_is_better_under_load_and_nothing_at_low_load(
        self, tmp_path: Path
    ) -> None:
        results, analysis = compare(tmp_path, loads=[0.1, 1.1], repeats=5)
        assert analysis.row(1.1, "sjf", "e2e.mean").verdict == "better"
        assert analysis.row(0.1, "sjf", "e2e.mean").verdict == "negligible"
        assert "Holm's correction for 2 verdicts" in analysis.rule
        assert results.points == (0.1, 1.1)

    def test_only_the_primary_metric_decides(self, tmp_path: Path) -> None:
        _, analysis = compare(tmp_path)
        decided = {row.metric for row in analysis.rows if row.verdict and row.arm != AA}
        assert decided == {"e2e.mean"}

    def test_without_a_primary_all_decide(self, tmp_path: Path) -> None:
        metrics = ["ttft.mean", "e2e.mean", "itl.p99"]
        _, analysis = compare(tmp_path, primary=None, metrics=metrics)
        decided = [row.metric for row in analysis.rows if row.verdict and row.arm != AA]
        assert decided == metrics
        assert "3 verdicts" in analysis.rule

    def test_unequal_work_is_said(self, tmp_path: Path) -> None:
        arms = {"a": {}, "b": {"engine": {"max_model_len": 80}}}
        _, analysis = compare(tmp_path, arms=arms, repeats=1)
        assert any("another number of tokens than a" in text for text in analysis.warnings)
        assert any("cut to max_model_len 80" in text for text in analysis.warnings)

    def test_expectations(self, tmp_path: Path) -> None:
        expect = [
            {"metric": "e2e.mean", "arm": "sjf", "max_ratio": 0.99, "why": "queueing theory"},
            {"metric": "e2e.mean", "arm": "sjf", "min_ratio": 2.0},
            {"metric": "e2e.mean", "arm": "sjf", "load": 1.1, "verdict": "worse"},
            {"metric": "preemptions", "arm": "sjf", "max_difference": 0.0},
        ]
        _, analysis = compare(tmp_path, expect=expect)
        assert [item.met for item in analysis.outcomes] == [True, False, False, True]
        assert "ratio below 2" in analysis.outcomes[1].text
        assert "expected worse" in analysis.outcomes[2].text


class TestFiles:
    def test_short_form_makes_arms_of_lists(self, tmp_path: Path) -> None:
        run = {**BASE["config"], "input": {"workload": BASE["workload"]}}
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(run), encoding="utf-8")
        experiment = load_experiment(
            path,
            [
                "scheduler.name=fcfs,random", "engine.max_num_seqs=4,8", "compare.repeats=2",
                "engine.max_model_len=512",
            ],
        )  # fmt: skip
        assert experiment.arms == ("fcfs, 4", "fcfs, 8", "random, 4", "random, 8")
        config = experiment.load("random, 8").config
        assert (config.scheduler.name, config.engine.max_num_seqs) == ("random", 8)
        assert config.engine.max_model_len == 512
        assert experiment.options.repeats == 2
        with pytest.raises(ConfigError, match="nothing to compare"):
            load_experiment(path, ["engine.max_num_seqs=4"])

    def test_a_preset_is_a_run_too(self) -> None:
        words = ["scheduler.name=fcfs,random", "input.workload.name=poisson"]
        experiment = load_experiment("sim", words)
        assert experiment.load("random").config.executor.name == "sim"
        with pytest.raises(ConfigError, match="no preset 'simm'; did you mean 'sim'"):
            load_experiment("simm", words)

    def test_an_arm_that_changes_the_policy_drops_its_options(self, tmp_path: Path) -> None:
        config = {**BASE["config"], "scheduler": {"name": "fcfs", "watermark": 0.2}}
        experiment = load_experiment(write(tmp_path, config=config))
        assert experiment.load("fcfs").config.scheduler.options == {"watermark": 0.2}
        assert experiment.load("sjf").config.scheduler.options == {"by": "output"}

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"arm": {}}, r"experiment\.yaml:\d+: arm: .*arms"),
            ({"rates": [1.0]}, "give either loads or rates"),
            ({"baseline": "x"}, "baseline: 'x' is not one of the arms: fcfs, sjf"),
            ({"primary": "ttft.mode"}, "no metric 'ttft.mode'"),
            ({"expect": [{"metric": "ttft.mean", "arm": "x"}]}, "'x' is not one of the arms"),
            (
                {"expect": [{"metric": "ttft.mean", "arm": "sjf", "verdict": "better"}]},
                "only the primary metric, e2e.mean, gets a verdict",
            ),
            ({"repeats": 0}, r"experiment\.yaml:\d+: repeats"),
        ],
    )
    def test_errors_say_where(self, tmp_path: Path, changes: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            load_experiment(write(tmp_path, **changes))

    def test_the_experiments_own_keys_may_say_that_they_are(self, tmp_path: Path) -> None:
        path = write(tmp_path)
        options = load_experiment(path, ["compare.loads=[0.5]", "repeats=7"]).options
        assert (options.loads, options.repeats) == ((0.5,), 7)
        with pytest.raises(ConfigError, match="command line: repeatz: no such key"):
            load_experiment(path, ["compare.repeatz=3"])

    def test_missing_traffic_is_told_with_the_file_and_its_key(self, tmp_path: Path) -> None:
        path = write(tmp_path, workload=None)
        with pytest.raises(ConfigError) as caught:
            load_experiment(path)
        assert (caught.value.source, caught.value.key) == (str(path), "workload")
        arms = {"a": {"input": {"workload": {"name": "poisson"}}}, "b": {}}
        with pytest.raises(ConfigError, match="workload: is required for b: "):
            load_experiment(write(tmp_path, workload=None, arms=arms))
        run = tmp_path / "run.yaml"
        run.write_text("base: sim\n", encoding="utf-8")
        with pytest.raises(ConfigError, match=r"run\.yaml: input\.workload: is required"):
            load_experiment(run, ["scheduler.name=fcfs,random"])

    def test_a_base_is_looked_for_beside_the_file_and_missed_in_its_line(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "below.yaml").write_text("engine: {seed: 5}\n", encoding="utf-8")
        experiment = load_experiment(write(tmp_path, base="./below.yaml"))
        assert experiment.load("fcfs").config.engine.seed == 5
        with pytest.raises(ConfigError, match=r"experiment\.yaml:\d+: base: no such file"):
            load_experiment(write(tmp_path, base=["sim", "./gone.yaml"]))

    def test_an_error_in_an_arm_says_its_line(self, tmp_path: Path) -> None:
        arms = {"a": {}, "b": {"engine": {"max_num_seqs": "many"}}}
        experiment = load_experiment(write(tmp_path, arms=arms))
        with pytest.raises(ConfigError, match=r"experiment\.yaml:\d+: engine\.max_num_seqs"):
            experiment.load("b")


class TestReport:
    def test_json_has_all_and_its_provenance(self, tmp_path: Path) -> None:
        results, analysis = compare(tmp_path, repeats=1)
        record = json.loads(json.dumps(as_json(results, analysis, ["x"]), allow_nan=False))
        assert record["provenance"]["arms"]["sjf"]["config"]["scheduler"]["by"] == "output"
        assert "scheduler.fcfs" in record["provenance"]["arms"]["fcfs"]["components"]
        assert {run["arm"] for run in record["runs"]} == {"fcfs", "sjf", AA}
        assert record["provenance"]["seeds"] == [0]
        assert record["metrics"]["e2e.mean"]["compared_by"] == "ratio"

    def test_the_command_prints_tables_and_writes_json(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write(tmp_path, repeats=1, metrics=["ttft.mean"], output="out.json")
        assert main(["compare", str(path)]) == 0
        text = capsys.readouterr().out
        assert "capacity of fcfs" in text
        assert "no evidence" in text
        assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["rows"]

    def test_tables_fit_a_terminal_and_say_where_nothing_varies(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arms = {"fcfs": {}, "shortest_job_first": BASE["arms"]["sjf"]}
        assert main(["compare", str(write(tmp_path, arms=arms))]) == 0
        lines = capsys.readouterr().out.splitlines()
        table = lines[lines.index(next(x for x in lines if x.startswith("metric, arm"))) :]
        rule = next(number for number, line in enumerate(table) if line.startswith("rule:"))
        note = next(line for line in table[:rule] if line.startswith("in every run: "))
        assert "nothing is known of its spread" in note
        assert max(len(line.rstrip()) for line in table[: table.index(note)]) <= 80
        after = lines.index("preemptions".ljust(len(lines[lines.index(table[0])])))
        assert lines[after + 2].split() == ["shortest_job_first", "0", "+0", "in", "every", "run"]
        assert not any("+0.0%" in line for line in lines)

    def test_arms_that_are_the_same_configuration_are_told(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        spelled = {"scheduler": {"name": "fcfs"}, "engine": {"max_num_seqs": 2}}
        changes = {
            "arms": {**BASE["arms"], "spelled": spelled},
            "workload": {**BASE["workload"], "num_requests": 10}, "aa": False, "capacity": 1.0,
            "output": str(tmp_path / "out.json"), "report": str(tmp_path / "out.html"),
        }  # fmt: skip
        assert main(["compare", str(write(tmp_path, **changes))]) == 0
        sentence = "fcfs and spelled are the same configuration, value by value"
        assert f"warning: {sentence}" in " ".join(capsys.readouterr().out.split())
        written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
        assert written["identical_arms"] == [["fcfs", "spelled"]]
        page = (tmp_path / "out.html").read_text(encoding="utf-8")
        assert f"Warning: {sentence}" in page
        assert "the same configuration, so that nothing can differ but by chance: spelled." in page

    def test_a_hair_in_every_run_is_negligible_and_its_ratio_is_shown(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Steps that take 1/25,000 longer: certain, and of no use to anybody."""
        model = {"name": "constant", "seconds_per_step": 0.01}
        config = {**BASE["config"], "executor": {"name": "sim", "cost_model": model}}
        slow = {**model, "seconds_per_step": 0.0100004}
        arms = {"fcfs": {}, "slow": {"executor": {"cost_model": slow}}}
        experiment = write(tmp_path, config=config, arms=arms, repeats=4, aa=False)
        assert main(["compare", str(experiment)]) == 0
        text = capsys.readouterr().out
        row = next(line.split() for line in text.splitlines() if line.startswith(" slow"))
        assert re.fullmatch(r"x1\.000\d+", row[3])
        assert float(row[3][1:]) > 1
        assert float(row[4]) > 1
        assert row[-1] == "negligible"
        assert "negligible: the 95% interval is within 0.1% of the baseline" in text
        assert main(["compare", str(experiment), "margin=0"]) == 0
        text = capsys.readouterr().out
        row = next(line.split() for line in text.splitlines() if line.startswith(" slow"))
        assert row[-1] == "worse"

    @pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
    def test_what_was_finished_before_an_interrupt_is_kept(
        self, tmp_path: Path, processes: int
    ) -> None:
        experiment = load_experiment(write(tmp_path, repeats=4, processes=processes))
        kept: list[Results] = []

        def interrupt(done: int, total: int, what: str) -> None:
            if done == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_experiment(experiment, interrupt, kept.append)
        (results,) = kept
        assert len(results.order) == 3
        assert len(results.missing) == 12 - 3
        record = json.loads(json.dumps(as_json(results, None), allow_nan=False))
        assert not record["complete"]
        assert record["rows"] == record["expectations"] == []
        whole, _ = compare(tmp_path, repeats=4)
        for run in record["runs"]:
            same = whole.runs[(run["point"], run["arm"])][run["repeat"]]
            assert run["checksum"] == same.checksum

    def test_the_command_writes_what_was_finished_and_says_what_is_missing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[int] = []

        def failing(*arguments: Any, **keywords: Any) -> Any:
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return run_once(*arguments, **keywords)

        monkeypatch.setattr("nanofw.compare.task.run_once", failing)
        path = write(tmp_path, output="out.json")
        assert main(["compare", str(path)]) == 130
        said = capsys.readouterr().err
        assert "2 runs were finished and are in" in said
        missing = "A/A at 1.1: runs 1 to 3; sjf at 1.1: runs 2 to 3; fcfs at 1.1: runs 2 to 3"
        assert f"missing: {missing}" in said
        record = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
        assert [(run["arm"], run["repeat"]) for run in record["runs"]] == [("fcfs", 0), ("sjf", 0)]
        assert len(record["missing"]) == 7

    def test_the_command_fails_when_the_shape_is_not_as_expected(self, tmp_path: Path) -> None:
        expect = [{"metric": "e2e.mean", "arm": "sjf", "min_ratio": 5.0}]
        assert main(["compare", str(write(tmp_path, repeats=1, expect=expect))]) == 1

    def test_a_feature_that_auto_makes_other_in_one_arm_is_told(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config = with_policy(tmp_path, "plain", key="0")
        arms = {"fcfs": {}, "plain": {"scheduler": {"name": "plain"}}}
        changes = {"arms": arms, "repeats": 1, "aa": False, "baseline": "fcfs"}
        assert main(["compare", str(write(tmp_path, config=config, **changes))]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "plain: overlap is off (not claimed by scheduler 'plain'), for fcfs it is on" in text
        config["engine"] = {**BASE["config"].get("engine", {}), "overlap": False}
        assert main(["compare", str(write(tmp_path, config=config, **changes))]) == 0
        assert "overlap is off" not in capsys.readouterr().out

    def test_a_process_that_is_killed_ends_the_comparison_and_loses_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config = with_policy(tmp_path, "deadly", key="__import__('os').kill(self.pid(), 9)")
        path = tmp_path / "deadly.py"
        path.write_text(
            path.read_text(encoding="utf-8")
            + "    def pid(self):\n"
            + "        import multiprocessing, os\n"
            + "        assert multiprocessing.parent_process() is not None\n"
            + "        return os.getpid()\n",
            encoding="utf-8",
        )
        arms = {"fcfs": {}, "deadly": {"scheduler": {"name": "deadly"}}}
        output = tmp_path / "result.json"
        changes = {"config": config, "arms": arms, "processes": 2, "aa": False}
        experiment = write(tmp_path, **changes, baseline="fcfs", output=str(output))
        assert main(["compare", str(experiment)]) == 3
        error = " ".join(capsys.readouterr().err.split())
        assert "a process that carried out runs was ended from outside" in error
        assert "compare.processes=1" in error
        assert "BrokenProcessPool" not in error

    def test_a_local_policy_that_fails_is_an_arm_that_serves_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config = with_policy(tmp_path, "broken", key="1 / 0")
        arms = {"fcfs": {}, "broken": {"scheduler": {"name": "broken"}}}
        changes = {"config": config, "arms": arms, "repeats": 1, "processes": 2, "aa": False}
        path = write(tmp_path, **changes, baseline="fcfs")
        assert main(["compare", str(path)]) == 1
        out = capsys.readouterr().out
        assert "key() raised ZeroDivisionError" in out
        assert "(broken.py, line 7)" in " ".join(out.split())  # where to mend it
        assert "undefined" in out
        assert main(["compare", str(write(tmp_path, **changes, baseline="broken"))]) == 2
        assert "baseline: the baseline served nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"primary": "e2e.foo"}, "primary", "no metric 'e2e.foo'"),
        ({"metrics": ["ttft.p99", "nope"]}, "metrics[1]", "no metric 'nope'"),
        ({"baseline": "z"}, "baseline", "'z' is not one of the arms: fcfs, sjf"),
        ({"rates": [1.0]}, "rates", "either loads or rates"),
        ({"loads": []}, "loads", "at least one$"),
        ({"loads": [0.5, 0.7, 0.5]}, "loads[2]", "0.5 is given twice; repeats sets"),
        ({"loads": [0.5, -1]}, "loads[1]", "greater than 0, not -1$"),
        ({"arms": {"fcfs": {}, "A/A": {}}}, "arms.A/A", "the baseline against itself"),
        ({"arms": {"fcfs": {}, "": {}}}, "arms", "an arm needs a name"),
        ({"primary": "goodput.share"}, "primary", "goodput needs a limit"),
        ({"metrics": ["goodput.rate@a"]}, "metrics[0]", "goodput needs a limit"),
        ({"expect": [{"metric": "e2e.mean", "arm": "z"}]}, "expect[0].arm", "not one of the arms"),
        ({"base": "nope"}, "base", "no preset 'nope'"),
        ({"base": "./nope.yaml"}, "base", "no such file"),
    ],
)
def test_what_is_wrong_with_an_experiment_has_its_key_and_line(
    tmp_path: Path, changes: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_experiment(write(tmp_path, **changes))
    path = tmp_path / "experiment.yaml"
    assert f"{path}:" in str(caught.value)
    assert f" {key}: " in str(caught.value)


def test_a_result_that_cannot_be_written_is_told_before_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, output=str(tmp_path))
    assert main(["compare", str(path)]) == 2
    assert "output: cannot write" in capsys.readouterr().err
    before = path.read_bytes()
    assert main(["compare", str(path), f"output={path}"]) == 2
    assert "output: would overwrite" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "change", [{"input": {"prompts": ["x"]}}, {"input": {"file": "prompts.txt"}}]
)
def test_an_arm_without_the_traffic_is_told_before_the_runs(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    stopped: list[Results] = []
    experiment = load_experiment(write(tmp_path, arms={"fcfs": {}, "other": change}))
    with pytest.raises(ConfigError, match=r"experiment\.yaml:\d+: input\.workload: is required"):
        run_experiment(experiment, on_stop=stopped.append)
    assert not stopped


def test_goodput_counts_where_a_limit_is_set(tmp_path: Path) -> None:
    options = load_experiment(write(tmp_path, primary="goodput.rate", slo={"ttft_s": 1})).options
    assert options.primary == "goodput.rate"
    assert "goodput.rate" in load_experiment(write(tmp_path)).options.metrics


def test_a_key_of_the_configuration_is_no_key_of_an_experiment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.scheduler for all arms") as caught:
        load_experiment(write(tmp_path), ["scheduler.name=fcfs,random"])
    assert (caught.value.key, caught.value.source) == ("scheduler", "command line")


def test_effects_are_corrected_for_what_is_judged(tmp_path: Path) -> None:
    """Goodput is among the default metrics, and without limits it is not judged."""
    changes = {"primary": None, "aa": False}
    _, whole = compare(tmp_path, **changes)
    names = list(load_experiment(write(tmp_path, **changes)).options.all_metrics)
    assert "goodput.rate" not in names
    _, named = compare(tmp_path, **changes, metrics=names)
    assert whole == named


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arms": {"a b": {}, "a-B": {}}}, "a b at 1.1 and a-B at 1.1 would write the same files"),
        ({"loads": [0.1234567, 0.1234568]}, "fcfs at 0.1234567 and fcfs at 0.1234568 would write"),
        ({"arms": {"fcfs": {}, "x" * 250: {}}}, "a name that is too long for a file"),
    ],
)
@pytest.mark.parametrize("key", ["records", "decisions"])
def test_runs_that_would_write_one_file_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str, key: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        compare(tmp_path, **{**changes, key: str(tmp_path / "files")})
    assert caught.value.key == key


def test_an_arm_given_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'fcfs' is given twice"):
        load_experiment("sim", ["scheduler.name=fcfs,fcfs"])


class TestSurvivors:
    """Requests that fail or are refused are no fast ones."""

    ARMS = {  # noqa: RUF012
        "all": {},
        "fails": {"executor": {"failure_probability": 0.05}},
        "refuses": {**SMALL_POOL},
    }
    CHANGES = {  # noqa: RUF012
        "arms": ARMS, "loads": None, "rates": [0.5], "primary": None, "slo": {"e2e_s": 1e6},
        "metrics": ["e2e.mean", "goodput.rate", "goodput.share", "throughput.requests"],
        "workload": {
            "name": "poisson", "num_requests": 60, "output": 30,
            "prompt": {"distribution": "uniform", "low": 10, "high": 300},
        },
    }  # fmt: skip

    def test_no_arm_wins_by_serving_less(self, tmp_path: Path) -> None:
        results, analysis = compare(tmp_path, **self.CHANGES)
        for arm in ("fails", "refuses"):
            assert analysis.row(0.5, arm, "e2e.mean").verdict == "no evidence"
            for metric in ("goodput.rate", "goodput.share", "throughput.requests"):
                assert analysis.row(0.5, arm, metric).verdict == "worse"
            assert any(
                w.startswith(f"{arm} at 0.5: served other requests to their end than all in 3 of 3")
                for w in analysis.warnings
            )
        assert {run.num_failed for run in results.runs[(0.5, "all")]} == {0}

    def test_goodput_and_throughput_count_what_was_served(self, tmp_path: Path) -> None:
        results, _ = compare(tmp_path, **self.CHANGES, warm_up=0.0, drain=0.0, repeats=1, aa=False)
        for arm in self.ARMS:
            (run,) = results.runs[(0.5, arm)]
            served = run.num_requests - run.num_refused - run.num_failed
            assert run.num_measured == served
            assert run.values["goodput.share"] == pytest.approx(served / 60)
            whole, share = results.runs[(0.5, "all")][0].values["goodput.rate"], served / 60
            assert run.values["goodput.rate"] == pytest.approx(whole * share)
            assert run.values["throughput.requests"] <= run.values["goodput.rate"]

    def test_an_arm_that_served_nothing_meets_no_expectation(self, tmp_path: Path) -> None:
        """Also where the other arm's value is 0, as that of a queue that nobody waits in."""
        expect = [
            {"metric": metric, "arm": "dead", bound: value}
            for metric in ("queue.mean", "e2e.mean")
            for bound, value in (("min_ratio", 0.5), ("max_ratio", 2.0), ("max_difference", 1.0))
        ]
        arms = {"all": {}, "dead": {"executor": {"failure_probability": 1.0}}}
        changes = {**self.CHANGES, "arms": arms, "expect": expect, "rates": [0.001]}
        results, analysis = compare(tmp_path, **changes, repeats=1, aa=False)
        assert {run.values["queue.mean"] for run in results.runs[(0.001, "all")]} == {0.0}
        assert not any(outcome.met for outcome in analysis.outcomes)
        assert all("undefined: an arm has no value" in item.text for item in analysis.outcomes)

    def test_arms_that_refuse_the_same_are_compared(self, tmp_path: Path) -> None:
        pool = {**SMALL_POOL}
        arms = {"a": pool, "slow": {**pool, "executor": {"cost_model": {"device": "t4"}}}}
        changes = {**self.CHANGES, "arms": arms, "rates": [200.0], "primary": "e2e.mean"}
        results, analysis = compare(tmp_path, **changes)
        assert results.runs[(200.0, "slow")][0].num_refused > 0
        assert analysis.row(200.0, "slow", "e2e.mean").verdict == "worse"
        assert not any("served other requests" in warning for warning in analysis.warnings)


def test_the_detectable_effect_is_that_of_the_corrected_test(tmp_path: Path) -> None:
    """What Holm's correction asks of the smallest p-value decides what can be found at all."""
    alone, many = (
        compare(tmp_path, primary=primary, metrics=["e2e.mean", "ttft.mean", "queue.mean"])[1]
        for primary in ("e2e.mean", None)
    )
    first, other = (found.row(1.1, "sjf", "e2e.mean").effect for found in (alone, many))
    assert first is not None
    assert other is not None
    assert (first.low, first.high, first.p_value) == (other.low, other.high, other.p_value)
    assert other.detectable > first.detectable
    again = [found.row(1.1, AA, "e2e.mean").effect for found in (alone, many)]
    assert again[0] == again[1]  # it does not count as a verdict of the family
