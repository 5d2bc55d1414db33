from __future__ import annotations

from pathlib import Path

import pytest

from nanofw.plugins.discovery import discover
from tests.plugins.packages import Install, manifest, write_dist_info
from tests.spawn import run_python


def test_entries_come_from_metadata_without_import(install: Install, site: Path) -> None:
    install("outside", {"scheduler.deadline": "outside_manifest"})  # no such module
    found = discover([str(site)])
    (entry,) = found.entries
    assert (entry.kind, entry.name, entry.provider, entry.version) == (
        "scheduler",
        "deadline",
        "outside",
        "1.0",
    )
    assert not entry.is_builtin
    assert found.searched == ("outside 1.0",)


def test_malformed_entry_points_are_noted_and_the_others_found(
    install: Install, site: Path
) -> None:
    install(
        "outside",
        {"deadline": "m", "shceduler.x": "m", "sampler.y": "m:attribute", "scheduler.z": "m"},
    )
    found = discover([str(site)])
    assert [entry.id for entry in found.entries] == ["scheduler.z"]
    notes = "\n".join(found.notes)
    assert "'deadline' is not of the form KIND.NAME" in notes
    assert "did you mean 'scheduler'" in notes
    assert "must name the manifest module alone" in notes


def test_a_name_may_contain_dots(install: Install, site: Path) -> None:
    install("outside", {"scheduler.a.b": "m"})
    assert discover([str(site)]).entries[0].name == "a.b"


def test_B090_a_leftover_dist_info_in_the_same_folder_is_passed_over(site: Path) -> None:
    write_dist_info(site, "outside", "0.9", {"scheduler.old": "old"})
    write_dist_info(site, "outside", "0.10", {"scheduler.new": "new"})
    found = discover([str(site)])
    assert [entry.id for entry in found.entries] == ["scheduler.new"]
    assert len(found.notes) == 1
    assert "outside 0.9" in found.notes[0]
    assert "outside 0.10" in found.notes[0]
    assert str(site) in found.notes[0]


def test_B090_equal_copies_of_one_package_are_no_duplicate(site: Path, tmp_path: Path) -> None:
    write_dist_info(site, "outside", "1.0", {"scheduler.x": "m"})
    other = tmp_path / "checkout"
    write_dist_info(other, "Outside", "1.0", {"scheduler.x": "m"}, suffix="egg-info")
    found = discover([str(other), str(site)])
    assert [entry.id for entry in found.entries] == ["scheduler.x"]
    assert found.notes == ()


def test_a_folder_earlier_on_the_path_wins_as_for_imports(site: Path, tmp_path: Path) -> None:
    write_dist_info(site, "outside", "2.0", {"scheduler.x": "m"})
    first = tmp_path / "first"
    write_dist_info(first, "outside", "1.0", {"scheduler.x": "m"})
    found = discover([str(first), str(site)])
    assert [entry.version for entry in found.entries] == ["1.0"]
    assert "outside 2.0" in found.notes[0]


def test_discovery_imports_no_manifest(install: Install, site: Path) -> None:
    install("outside", {"scheduler.x": "loud"}, loud="raise SystemExit('imported')")
    code = (
        "import sys; from nanofw.plugins import build_registry;"
        "r = build_registry();"
        "assert 'x' in r.names('scheduler'), r.names('scheduler');"
        "assert 'loud' not in sys.modules and 'torch' not in sys.modules"
    )
    run_python("-c", code, environment={"PYTHONPATH": str(site), "PATH": ""})


def test_manifest_helper_is_valid_python() -> None:
    compile(manifest("x", summary="'one'"), "manifest", "exec")


@pytest.mark.parametrize(
    "content",
    [b"[nanofw]\nscheduler.x\n", b"[nanofw]\nscheduler.x = \n", b"[nanofw]\nscheduler.x = ???\n",
     b"[nanofw]\n\xff\xfe = a\n"],
)  # fmt: skip
def test_broken_metadata_is_noted_and_keeps_nobody_away(
    install: Install, site: Path, content: bytes
) -> None:
    info = install("broken", {"scheduler.x": "m"})
    (info / "entry_points.txt").write_bytes(content)
    install("good", {"scheduler.y": "n"})
    found = discover([str(site)])
    assert [entry.id for entry in found.entries] == ["scheduler.y"]
    assert any("broken" in note for note in found.notes)


def test_metadata_without_a_version_is_noted(install: Install, site: Path) -> None:
    info = install("broken", {"scheduler.x": "m"})
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\n", encoding="utf-8")
    found = discover([str(site)])
    assert not found.entries
    assert "no name or no version" in found.notes[0]
