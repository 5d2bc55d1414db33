"""Experiments that ship: every one loads, and all have the published shapes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nanofw.assembly import build_workload, select
from nanofw.compare.analysis import analyse
from nanofw.compare.experiment import load_experiment
from nanofw.compare.runner import run_experiment
from nanofw.config.load import load_config

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "compare").glob("*.yaml"))
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_there_are_six_at_least_and_the_readme_names_them() -> None:
    readme = (ROOT / "examples" / "compare" / "README.md").read_text(encoding="utf-8")
    assert len(EXAMPLES) >= 6
    assert all(f"`{path.name}`" in readme for path in EXAMPLES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_loads(path: Path) -> None:
    experiment = load_experiment(path)
    for arm in experiment.arms:
        selection = select(experiment.load(arm))
        assert build_workload(selection).num_requests >= 400
    assert experiment.options.expect


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_has_the_published_shape(path: Path) -> None:
    analysis = analyse(run_experiment(load_experiment(path, ["aa=false"])))
    assert [outcome.text for outcome in analysis.outcomes if not outcome.met] == []


@pytest.mark.parametrize("page", ["simulation", "workloads", "compare"])
def test_yaml_of_the_pages_loads(page: str, tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    assert blocks
    for block in blocks:
        path = tmp_path / f"{page}.yaml"
        path.write_text(block, encoding="utf-8")
        if page == "compare":
            experiment = load_experiment(path)
            if "endpoint:" not in block:  # servers compute there
                assert all(select(experiment.load(arm)).virtual_time for arm in experiment.arms)
        else:
            loaded = load_config(path, ["model.path=shape:qwen3-0.6b", "executor.name=sim"])
            assert build_workload(select(loaded)).num_requests > 0


def test_every_policy_and_workload_is_documented() -> None:
    from nanofw.schedulers.manifest import scheduler
    from nanofw.sim.manifest import cost_model
    from nanofw.workloads.manifest import workload

    for page, plugins in (
        ("schedulers", scheduler()), ("workloads", workload()), ("simulation", cost_model()),
    ):  # fmt: skip
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert [p.name for p in plugins if f"`{p.name}`" not in text] == []
