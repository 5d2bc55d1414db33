"""Calibration: what is recorded, how well it is fitted, and what the file is good for."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanofw.assembly import Selection, select
from nanofw.bench.calibrate import Design, MeasuredStep, fit, record, table
from nanofw.cli.main import main
from nanofw.config.load import load_config
from nanofw.errors import ConfigError
from nanofw.sim.fitted import FEATURES, Fit
from nanofw.sim.work import StepWork

TRUE = {"step": 3e-3, "token": 2e-5, "token<=16": 1e-4, "key": 1e-7, "pair": 1e-9}


def work(rng: np.random.Generator) -> StepWork:
    rows = int(rng.integers(1, 32))
    prefills = int(rng.integers(0, 3))
    tokens = rows + int(rng.integers(0, 300)) * (prefills > 0)
    keys = tokens + int(rng.integers(0, 8000))
    return StepWork(rows + prefills, prefills, tokens, rows, keys, keys + tokens * 50)


def steps(num: int, noise: float, seed: int = 0) -> list[MeasuredStep]:
    rng = np.random.default_rng(seed)
    made = Fit(coefficients=TRUE, about={})
    works = [work(rng) for _ in range(num)]
    factors = np.exp(rng.normal(0, noise, num))
    return [MeasuredStep(w, made.seconds(w) * f, 1) for w, f in zip(works, factors, strict=True)]


def simulated(**engine: Any) -> Selection:
    values = {
        "model": {"path": "shape:qwen3-0.6b"},
        "engine": {"max_num_seqs": 8, "max_model_len": 256, "overlap": False, **engine},
        "executor": {"name": "sim", "cost_model": {"name": "constant", "seconds_per_token": 1e-3}},
    }
    return select(load_config(None, values=values))


class TestFit:
    def test_finds_the_coefficients_that_made_the_times(self) -> None:
        made, errors = fit(steps(400, noise=0.0))
        assert errors.p90 < 1e-3
        unseen = steps(50, noise=0.0, seed=9)
        assert [made.seconds(s.work) for s in unseen] == pytest.approx(
            [s.seconds for s in unseen], rel=1e-3
        )

    def test_noise_and_hiccups_do_not_move_it(self) -> None:
        noisy = steps(600, noise=0.1)
        noisy[100] = MeasuredStep(noisy[100].work, 5.0, 1)
        made, errors = fit(noisy)
        assert errors.total < 0.2
        assert 0.05 < errors.median < 0.12
        unseen = steps(200, noise=0.0, seed=9)
        predicted = sum(made.seconds(s.work) for s in unseen)
        assert predicted == pytest.approx(sum(s.seconds for s in unseen), rel=0.03)

    def test_more_work_never_takes_less(self) -> None:
        made, _ = fit(steps(200, noise=0.4))
        assert all(value > 0 for value in made.coefficients.values())

    def test_too_few_steps_are_refused(self) -> None:
        with pytest.raises(ValueError, match="49 steps are too few to fit; at least 50"):
            fit(steps(49, noise=0.0))

    def test_the_table_covers_all_steps(self) -> None:
        every = steps(100, noise=0.0)
        lines = table(every, Fit(coefficients=TRUE, about={}))
        assert sum(line[1] for line in lines) == 100
        assert all(line[2] == pytest.approx(line[3]) for line in lines)


class TestRecord:
    @pytest.mark.parametrize("overlap", [False, True])
    def test_steps_take_what_the_device_takes(self, overlap: bool) -> None:
        found = record(simulated(overlap=overlap), Design(max_users=4, requests_per_user=2))
        expected = [0.01 + 1e-3 * step.work.num_tokens for step in found]
        assert [step.seconds for step in found] == pytest.approx(expected)
        assert {step.work.num_rows for step in found} >= {1, 2, 4}
        assert any(step.work.num_prefills for step in found)

    def test_what_was_fitted_is_what_is_simulated(self, tmp_path: Path) -> None:
        made, _ = fit(record(simulated(), Design(max_users=4)))
        made.write(tmp_path / "cost.json")
        values = {
            "model": {"path": "shape:qwen3-0.6b"},
            "engine": {"max_num_seqs": 8, "max_model_len": 256, "overlap": False},
            "executor": {
                "name": "sim",
                "cost_model": {"name": "fitted", "file": str(tmp_path / "cost.json")},
            },
        }
        again = record(select(load_config(None, values=values)), Design(max_users=4, seed=5))
        expected = [0.01 + 1e-3 * step.work.num_tokens for step in again]
        assert [step.seconds for step in again] == pytest.approx(expected, rel=1e-3)

    def test_the_time_of_the_host_is_found_and_simulated(self, tmp_path: Path) -> None:
        """It is longer than the device's where prompts are computed, and shorter elsewhere."""
        path, host = tmp_path / "cost.json", {"step": 2e-3, "prefill step": 9e-3}
        Fit(coefficients={"step": 5e-3, "token": 1e-5}, about={}, host=host).write(path)
        values = {
            "model": {"path": "shape:qwen3-0.6b"},
            "engine": {"max_num_seqs": 8, "max_model_len": 256, "overlap": True},
            "executor": {"name": "sim", "cost_model": {"name": "fitted", "file": str(path)}},
        }
        found = record(select(load_config(None, values=values)), Design(max_users=4))
        made, errors = fit(found)
        assert errors.p90 < 1e-3
        unseen = [step.work for step in found[::7]]
        expected = [2e-3 + 9e-3 * (work.num_prefills > 0) for work in unseen]
        assert [made.host_seconds(work) for work in unseen] == pytest.approx(expected, rel=0.02)

    def test_without_overlap_the_host_is_part_of_a_step(self) -> None:
        found = record(simulated(), Design(max_users=2))
        assert all(step.host_seconds is None for step in found)
        made, _ = fit(found)
        assert made.host == {}

    def test_progress_is_told_loop_by_loop(self) -> None:
        told: list[tuple[int, int, str]] = []
        record(
            simulated(),
            Design(max_users=2, requests_per_user=5, waves=3),
            report=lambda *what: told.append(what),
        )
        assert told == [
            (0, 34, "warm-up, 2 users"),
            (10, 34, "loop, 1 user"),
            (18, 34, "loop, 2 users"),
            (28, 34, "waves, 2 users"),
            (34, 34, ""),
        ]


class TestFile:
    def test_written_and_read_again(self, tmp_path: Path) -> None:
        made = Fit(coefficients=TRUE, about={"device": "cpu"}, host={"row": 1e-5})
        made.write(tmp_path / "cost.json")
        assert Fit.read(tmp_path / "cost.json") == made
        assert set(TRUE) <= set(FEATURES)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "is not a fitted cost model"),
            ("[]", "is not a fitted cost model"),
            (json.dumps({"coefficients": {"frob": 1.0}}), "unknown features frob"),
        ],
    )
    def test_other_files_are_refused(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "cost.json"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            Fit.read(path)
        with pytest.raises(ConfigError, match="cannot be read"):
            Fit.read(tmp_path / "gone.json")


@pytest.mark.parametrize("watched", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_progress_is_shown_where_somebody_watches(tmp_path: Path, watched: bool) -> None:
    terminal, inside = pty.openpty()
    words = ("calibrate", "engine.max_num_seqs=2", "calibrate.max_output=16", "engine.device=cpu")
    process = subprocess.Popen(
        [sys.executable, "-m", "nanofw", *words],
        stdout=subprocess.DEVNULL,
        stderr=inside if watched else subprocess.PIPE,
        cwd=tmp_path,
    )
    os.close(inside)
    stream = os.fdopen(terminal, "rb", buffering=0) if watched else process.stderr
    assert stream is not None
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while part := stream.read(4096):
            shown += part
    stream.close()
    if not watched:
        os.close(terminal)
    assert process.wait(60) == 0
    assert (tmp_path / "cost.json").exists()
    assert (b"38/38" in shown) == watched
    assert watched or shown == b""


def test_the_command_refuses_a_simulated_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "sim", "model.path=shape:qwen3-0.6b"]) == 2
    assert "has no times to measure" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_told_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanofw.bench.calibrate.record", lambda *_: pytest.fail("it was measured"))
    assert main(["calibrate", "--output", str(tmp_path)]) == 2
    assert f"--output: cannot write {tmp_path}: Is a directory" in capsys.readouterr().err
    run = tmp_path / "run.yaml"
    run.write_text("base: qwen3-demo\n", encoding="utf-8")
    assert main(["calibrate", str(run), "--output", str(run)]) == 2
    assert "--output: would overwrite" in capsys.readouterr().err
    assert run.read_text(encoding="utf-8") == "base: qwen3-demo\n"


def test_a_setting_that_does_not_exist_is_told_with_its_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["calibrate", "calibrate.repeatz=2"]) == 2
    assert "calibrate.repeatz: no such key; did you mean 'repeats'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "record",
    [
        {"coefficients": {"step": float("nan")}}, {"coefficients": {"step": float("inf")}},
        {"coefficients": {"step": -1e-3}}, {"coefficients": {"step": "1e-3"}},
        {"coefficients": {"step": True}}, {"coefficients": {}}, {"coefficients": [1]},
        {"coefficients": {"step": 1e-3}, "host": {"row": float("nan")}},
        {"coefficients": {"step": 1e-3}, "host": {"row": -1}}, [], 5, None,
    ],
)  # fmt: skip
def test_a_file_whose_times_are_none_is_no_cost_model(tmp_path: Path, record: object) -> None:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cost\.json: is not a fitted cost model"):
        Fit.read(path)
    path.write_text(json.dumps({"coefficients": {"step": 0, "row": 1e-3}}), encoding="utf-8")
    assert Fit.read(path).coefficients == {"step": 0.0, "row": 1e-3}
