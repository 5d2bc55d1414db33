"""The fidelity benchmark: engines on one executor, and what it finds where nothing is off."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.sim.fidelity import Bench, parser, run_turns
from benchmarks.sim.fidelity_lines import Turn, lines_of
from benchmarks.sim.lent import RealEngines
from nanofw.assembly import build, select
from nanofw.config.load import load_config
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.engine.engine import Engine


def generate(engine: Engine, seed: int) -> list[list[int]]:
    """Three requests, the last of which is aborted before its end."""
    rng, found = np.random.default_rng(seed), {}
    for i in range(3):
        sampling = SamplingParams(max_tokens=6 + i, seed=i, ignore_eos=True)
        prompt = rng.integers(0, 200, 9 + i).tolist()
        engine.add_request(Request(id=str(i), prompt_token_ids=prompt, sampling=sampling))
    for number in range(30):
        if number == 3:
            engine.abort_request("2")
        found |= {output.id: output.token_ids.tolist() for output in engine.step().finished}
    return [found[str(i)] for i in range(3)]


def test_no_row_stays_behind() -> None:
    """The pool in numbers refuses a new request in a row that was not removed."""
    words = ["engine.max_num_seqs=2", "executor.check_context=true", "model.path=shape:qwen3-0.6b"]
    selection = select(load_config("sim", words))
    engines = RealEngines(selection, None)
    try:
        for seed in (1, 2, 3):
            engines.engine(selection)  # one that runs nothing
            with engines.engine(selection) as engine, build(selection) as fresh:
                assert generate(engine, seed) == generate(fresh, seed)
    finally:
        engines.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_engines_on_one_executor_answer_as_new_ones(overlap: bool) -> None:
    words = ["engine.max_num_seqs=4", "engine.max_model_len=128", f"engine.overlap={overlap}"]
    selection = select(load_config("qwen3-demo", words))
    engines = RealEngines(selection, None)
    try:
        for seed in (1, 2, 1):
            with engines.engine(selection) as engine, build(selection) as fresh:
                assert generate(engine, seed) == generate(fresh, seed)
    finally:
        engines.close()


def options(path: Path, *words: str) -> argparse.Namespace:
    return parser().parse_args(
        ["--seconds=300", "--run-seconds=0.6", "--repeats=2", f"--json={path}", *words]
    )


def test_where_the_real_run_is_a_simulation_the_figures_agree(tmp_path: Path) -> None:
    """Steps take what a roofline says, and no fit has seen its corners."""
    words = [
        "model.path=shape:qwen3-0.6b", "executor.name=sim", "executor.cost_model.name=roofline",
        "engine.overlap=true",
    ]  # fmt: skip
    bench = Bench(options(tmp_path / "f.json", "--loads=0.7", "--calibrations=1", *words), tmp_path)
    try:
        bench.calibrate()
        cells = bench.cells(bench.virtual())
        run_turns(bench, cells)
        lines = bench.save(cells)
    finally:
        bench.engines.close()
    assert len(lines) == 2 * 13
    firm = [line for line in lines if line["arm"] == "fcfs" and line["metric"].endswith("mean")]
    assert all(abs(line["error"]) < 0.02 for line in firm), firm
    # Tails of a hundred requests, and who is shortest, move when two of them change places.
    assert all(abs(line.get("error", 0.0)) < 0.2 for line in lines), lines
    spreads = [line[side] for line in lines for side in ("aa_low", "aa_high") if side in line]
    assert spreads == pytest.approx([0.0] * 48, abs=1e-9)
    assert (tmp_path / "f.json").is_file()


def values(e2e: float) -> dict[str, float]:
    return {f"{name}.{s}": e2e for name in ("ttft", "tpot", "e2e") for s in ("mean", "p90")}


def turn(seed: int, again: float, simulated: float) -> Turn:
    real = {"fcfs": values(1.0), "A/A": values(again), "shortest": values(0.8)}
    return Turn(seed, real, {"fcfs": values(simulated), "shortest": values(0.8)})


def test_a_line_is_void_where_runs_of_one_arm_may_differ_by_more_than_a_tenth() -> None:
    close = lines_by_name([turn(i, 1.0 + 0.08 * (-1) ** i, 1.04) for i in range(12)])
    wide = lines_by_name([turn(i, 1.0 + 0.08 * (-1) ** i, 1.04) for i in range(3)])
    assert -0.1 < close["fcfs", "e2e.mean"]["aa_low"] < 0 < close["fcfs", "e2e.mean"]["aa_high"]
    assert not close["fcfs", "e2e.mean"]["void"]
    assert wide["fcfs", "e2e.mean"]["void"]
    assert lines_by_name([turn(0, 1.0, 1.0)])["fcfs", "e2e.mean"]["void"]


def test_errors_of_means_and_tails_have_their_limits() -> None:
    lines = lines_by_name([turn(i, 1.0 + 0.01 * (-1) ** i, 1.08) for i in range(4)])
    assert lines["fcfs", "e2e.mean"]["error"] == pytest.approx(0.08, abs=1e-3)
    assert not lines["fcfs", "e2e.mean"]["met"]
    assert lines["fcfs", "e2e.p90"]["met"]
    assert lines["shortest", "e2e.mean"]["met"]
    assert lines["shortest", "ranking"]["measured"] == pytest.approx(0.8, abs=0.01)
    assert lines_of([]) == []


def lines_by_name(turns: list[Turn]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(line["arm"], line["metric"]): line for line in lines_of(turns)}
