"""`nanofw compare` shows what each paper claims: the experiments of the folder `claims`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from nanofw_policies.manifest import POLICIES

CLAIMS = Path(__file__).parents[1] / "claims"
SHORT = ("prefix_batching",)


def test_there_is_one_for_each_policy():
    assert {path.stem for path in CLAIMS.glob("*.yaml")} == set(POLICIES)


@pytest.mark.parametrize(
    "name",
    [name if name in SHORT else pytest.param(name, marks=pytest.mark.slow) for name in POLICIES],
)
def test_claim(name, tmp_path):
    output = tmp_path / "result.json"
    command = [sys.executable, "-m", "nanofw", "compare", str(CLAIMS / f"{name}.yaml")]
    done = subprocess.run(
        [*command, f"compare.output={output}", "compare.processes=1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert "better" in [row["verdict"] for row in rows]
