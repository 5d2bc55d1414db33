from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanofw.cli import tables
from nanofw.cli.main import main
from nanofw.plugins import KINDS
from tests.plugins.packages import manifest, write_dist_info


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def broken_package(site: Path) -> None:
    write_dist_info(site, "broken", "0.1", {"scheduler.bad": "broken_cli_manifest"})
    source = "def fail():\n    raise ImportError('no libfoo')\nfail()\n"
    (site / "broken_cli_manifest.py").write_text(source, encoding="utf-8")


def test_list_names_every_built_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "list"]) == 0
    text = capsys.readouterr().out
    for name in ("fcfs", "shortest_job_first", "paged_prefix", "sim"):
        assert name in text


def test_every_built_in_loads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "list", "--check", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["plugins"]
    ours = [item for item in listed if item["distribution"] == "nanofw"]
    assert len(ours) > 10
    assert {item["state"] for item in ours} <= {"ok", "missing requirement"}
    assert all(item["summary"] and item["api"] == KINDS[item["kind"]].api for item in ours)


def test_B088_a_broken_package_leaves_the_command_usable(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_package(site)
    assert main(["plugins", "list"]) == 0
    assert "bad" in capsys.readouterr().out
    assert main(["config", "validate", "sim"]) == 0  # a run that does not use it
    capsys.readouterr()
    assert main(["plugins", "list", "--check", "--json"]) == 3
    listed = json.loads(capsys.readouterr().out)["plugins"]
    (item,) = [item for item in listed if item["distribution"] == "broken"]
    assert item["state"] == "failed"
    assert "no libfoo" in item["error"]
    assert "in fail" in item["error"]
    assert all(other["state"] != "failed" for other in listed if other is not item)
    assert main(["plugins", "list", "--check"]) == 3
    assert "in fail" in capsys.readouterr().out
    assert main(["config", "validate", "sim", "scheduler.name=bad"]) == 3  # named: its own cause
    assert "broken 0.1 failed to import: ImportError('no libfoo')" in capsys.readouterr().err


def test_duplicates_and_what_was_left_out_are_shown(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dist_info(site, "outside", "0.1", {"scheduler.fcfs": "outside_manifest"})
    (site / "outside_manifest.py").write_text(manifest("fcfs"), encoding="utf-8")
    assert main(["plugins", "list", "--json"]) == 0
    states = {
        item["distribution"]: item["state"]
        for item in json.loads(capsys.readouterr().out)["plugins"]
        if item["name"] == "fcfs"
    }
    assert states == {"nanofw": "duplicate", "outside": "duplicate"}
    monkeypatch.setenv("NANOFW_PLUGINS", "")
    assert main(["plugins", "list"]) == 0
    text = capsys.readouterr().out
    assert "left out" in text
    assert "by NANOFW_PLUGINS" in text


@pytest.fixture
def with_mine(tmp_path: Path) -> Path:
    """A configuration that loads a local policy, `mine`."""
    (tmp_path / "mine.py").write_text(manifest("mine", summary="'my own'"), encoding="utf-8")
    file = tmp_path / "run.yaml"
    file.write_text("plugins: {load: [mine.py]}", encoding="utf-8")
    return file


def test_a_configuration_brings_its_local_files(
    with_mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "list", str(with_mine), "--check"]) == 0
    text = capsys.readouterr().out
    assert "my own" in text
    assert "sha256:" in text


def test_no_name_is_cut_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "WIDTH_OF_A_FILE", 80)
    for command in (["plugins", "list", "--check"], ["doctor"]):
        main(command)
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text


def test_a_default_that_is_made_anew_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "scheduler", "fair_share"]) == 0
    assert "weights: object = {}" in capsys.readouterr().out


def test_show_prints_options_with_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "executor", "sim"]) == 0
    text = capsys.readouterr().out
    assert "executor/2" in text
    assert "seconds_per_step: number = 0.01" in text
    assert main(["plugins", "show", "--json", "executor", "sim"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["target"] == "nanofw.sim.executor:SimExecutor"
    assert main(["plugins", "show", "executor", "simm"]) == 2
    assert "did you mean 'sim'" in capsys.readouterr().err


def test_show_finds_the_local_files_of_a_configuration(
    with_mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "show", "scheduler", "mine", str(with_mine)]) == 0
    assert "my own" in capsys.readouterr().out
    words = ["sim", f"plugins.load=[{with_mine.with_name('mine.py')}]", "--json"]
    assert main(["plugins", "show", "scheduler", "mine", *words]) == 0
    assert json.loads(capsys.readouterr().out)["summary"] == "my own"
    assert main(["plugins", "show", "scheduler", "mine"]) == 2
    assert "mine" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["plugins", "show", "scheduler"])
    assert capsys.readouterr().err.endswith("the following arguments are required: NAME\n")
