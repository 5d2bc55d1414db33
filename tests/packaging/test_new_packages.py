"""From an empty folder: `nanofw plugins new`, install, its tests, its card, a run, a comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanofw.scaffold import KINDS_OFFERED, names_of
from tests.packaging.environment import Environment, build_wheel

QUICK = "cost_model"
"""The kind whose package is tried in every run of the tests."""
COMPARED = {"scheduler", "kv_allocator", "cost_model", "workload", "router"}


def ran(environment: Environment, *command: str, cwd: Path) -> str:
    done = environment.run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (kind, ()) if kind == QUICK else pytest.param(kind, (), marks=pytest.mark.slow)
        for kind in KINDS_OFFERED
    ]
    + [pytest.param("logits_processor", ("--host",), marks=pytest.mark.slow)],
)
def test_a_new_package_is_green_at_once(
    kind: str, words: tuple[str, ...], environment: Environment, tmp_path: Path
) -> None:
    name = "TryForCausalLM" if kind == "model" else f"try_{kind}{'_host' * len(words)}"
    ran(environment, "nanofw", "plugins", "new", kind, name, *words, cwd=tmp_path)
    folder = tmp_path / names_of(kind, name).distribution
    environment.install(build_wheel(folder))
    assert "passed" in ran(
        environment, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=folder
    )
    card = json.loads(
        ran(environment, "nanofw", "plugins", "test", kind, name, "--json", cwd=folder)
    )
    assert (card["failed"], card["origin"]) == (0, f"{folder.name} 0.1.0")
    assert card["passed"] > 2
    ran(environment, "nanofw", "config", "validate", "run.yaml", cwd=folder)
    assert name in ran(environment, "nanofw", "explain", "run.yaml", cwd=folder)
    ran(environment, "nanofw", "run", "run.yaml", cwd=folder)
    assert (folder / "compare.yaml").exists() == (kind in COMPARED)
    if kind in COMPARED:
        assert name in ran(environment, "nanofw", "compare", "compare.yaml", cwd=folder)
