"""Experiments that stop when their intervals are narrow enough: error rates under looks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanofw.cli.main import main
from nanofw.compare.experiment import ExperimentOptions
from nanofw.compare.looks import FEWEST, Looks
from nanofw.compare.statistics import paired_effect
from tests.compare.test_compare import compare, write

NUM = 200
LOOKS = Looks((5, 10, 20, 40))


def options(**values: object) -> ExperimentOptions:
    return ExperimentOptions.model_validate({"arms": {"a": {}, "b": {}}, **values})


@given(st.integers(1, 2000))
def test_looks_spend_alpha_once(repeats: int) -> None:
    looks = Looks.planned(options(repeats=repeats, until=0.05))
    assert looks.numbers[-1] == repeats
    assert list(looks.numbers) == sorted(set(looks.numbers))
    assert len(looks.numbers) == 1 or looks.numbers[0] >= FEWEST
    assert sum(map(looks.share, looks.numbers)) == pytest.approx(1)
    assert Looks.planned(options(repeats=repeats)).numbers == (repeats,)


def test_there_are_no_other_looks() -> None:
    assert LOOKS.share(20) == 0.25
    with pytest.raises(
        ValueError, match="there are 7 runs, and looks were planned after 5, 10, 20, 40"
    ):
        LOOKS.share(7)


def effects(rng: np.random.Generator, *, spent: bool) -> list[tuple[float, float, float, float]]:
    """At each look of an experiment without effect: p-value, half width, and the interval."""
    logs = rng.normal(0.0, 0.2, LOOKS.numbers[-1])
    found = [
        paired_effect(
            [1.0] * num, list(np.exp(logs[:num])), by_ratio=True, alpha=0.05,
            share=LOOKS.share(num) if spent else 1.0,
        )
        for num in LOOKS.numbers
    ]  # fmt: skip
    return [(effect.p_value, effect.half_width, effect.low, effect.high) for effect in found]


def test_stopping_at_the_first_liked_verdict_is_paid_for() -> None:
    """Without it, more than one in ten experiments without effect would find one."""
    rates = []
    for spent in (True, False):
        rng = np.random.default_rng(5)
        wrong = sum(
            min(p for p, *_ in effects(rng, spent=spent)) < 0.05 for _ in range(NUM)
        )  # fmt: skip
        rates.append(wrong / NUM)
    assert rates[0] <= 0.05
    assert rates[1] > 0.1


def test_intervals_that_stopped_by_their_width_cover() -> None:
    rng, covered, early = np.random.default_rng(6), 0, 0
    for _ in range(NUM):
        looks = effects(rng, spent=True)
        stop = next((look for look in looks if look[1] <= 0.12), looks[-1])
        early += stop is not looks[-1]
        covered += stop[2] <= 1 <= stop[3]
    assert covered / NUM >= 0.95
    assert 0.2 * NUM < early < NUM


QUICK = {
    "workload": {
        "name": "poisson", "num_requests": 20, "guess_noise": 0.0, "prompt": 64,
        "output": {"distribution": "lognormal", "mean": 8, "sigma": 1.2, "high": 40},
    },
    "capacity": 100.0,
    "aa": False,
}  # fmt: skip


def test_a_load_stops_when_its_effect_is_known_well_enough(tmp_path: Path) -> None:
    loads = [0.1, 2.0]
    results, analysis = compare(tmp_path, **QUICK, loads=loads, repeats=10, until=0.03)
    nums = {name: len(runs) for name, runs in results.runs.items()}
    assert nums == {(0.1, "fcfs"): 5, (0.1, "sjf"): 5, (2.0, "fcfs"): 10, (2.0, "sjf"): 10}
    quiet, busy = (analysis.row(load, "sjf", "e2e.mean").effect for load in loads)
    assert quiet is not None
    assert busy is not None
    assert quiet.half_width <= 0.03 < busy.half_width
    assert "looks after 5 and 10 runs" in analysis.rule
    told = [text for text in analysis.warnings if "until is 0.03" in text]
    assert len(told) == 1
    assert told[0].startswith("sjf at 2: after all 10 runs")


def test_the_same_runs_say_less_where_they_could_have_been_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five runs of at most ten spend half of alpha, so their interval is wider than of five."""
    _, fixed = compare(tmp_path, **QUICK, loads=[2.0], repeats=5)
    path = write(
        tmp_path, **QUICK, loads=[2.0], repeats=10, until=0.9, output=str(tmp_path / "out.json")
    )
    assert main(["compare", str(path)]) == 0
    assert "5 of at most 10 runs per arm" in capsys.readouterr().out
    data = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (data["looks"], data["provenance"]["seeds"]) == ([5, 10], [0, 1, 2, 3, 4])
    unsure = next(
        row["effect"] for row in data["rows"] if (row["arm"], row["metric"]) == ("sjf", "e2e.mean")
    )
    sure = fixed.row(2.0, "sjf", "e2e.mean").effect
    assert sure is not None
    assert unsure["estimate"] == sure.estimate
    assert unsure["half_width"] > 1.1 * sure.half_width
    assert unsure["p_value"] == pytest.approx(min(1.0, 2 * sure.p_value))
