"""Rules about imports and names that no type checker sees."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import nanofw
from nanofw.cli.main import COMMANDS
from nanofw.plugins import API_VERSIONS, KINDS, build_registry, hookspecs, load_plugin

ROOT = Path(nanofw.__file__).parent
WITHOUT_TORCH = ["torch", "triton", "transformers", "flash_attn", "flashinfer", "huggingface_hub"]


def python(code: str, *arguments: str, forbidden: list[str] | None = None) -> str:
    """Run code in a fresh interpreter in which some modules cannot be imported."""
    prologue = f"import sys\nfor name in {forbidden or []!r}: sys.modules[name] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", prologue + textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


CALL = """
    from nanofw.cli.main import main
    code = main(sys.argv[1:])
    assert code == 0, code
"""


def test_help_imports_nothing_heavy() -> None:
    code = """
        from nanofw.cli.main import main
        assert main(["--help"]) == 0
        heavy = {"torch", "transformers", "pydantic", "omegaconf", "numpy", "rich", "yaml",
                 "pluggy", "tokenizers", "packaging"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
    """
    assert "usage: nanofw" in python(code)


@pytest.mark.parametrize(
    "arguments",
    [
        ["plugins", "list"],
        ["plugins", "list", "--check"],
        ["plugins", "show", "scheduler", "fcfs"],
        ["config", "show", "--sources"],
        ["config", "validate", "sim"],
        ["explain", "sim", "model.path=shape:qwen3-0.6b"],
    ],
    ids=" ".join,
)
def test_commands_work_without_torch(arguments: list[str]) -> None:
    assert python(CALL, *arguments, forbidden=WITHOUT_TORCH)


def test_a_simulated_engine_works_without_torch() -> None:
    code = """
        from nanofw.assembly import assemble
        from nanofw.config.load import load_config
        from nanofw.plugins import Request

        engine = assemble(load_config("sim"))
        engine.add_request(Request(id="a", prompt_token_ids=[1, 2, 3]))
        finished = []
        while engine.has_unfinished:
            finished += engine.step().finished
        assert len(finished[0].token_ids) == 16
    """
    python(code, forbidden=WITHOUT_TORCH)


def test_the_package_itself_is_light() -> None:
    code = "import nanofw; assert nanofw.__version__; assert 'numpy' not in sys.modules"
    python(code)


def test_every_command_exists() -> None:
    for name, (module, line) in COMMANDS.items():
        assert importlib.util.find_spec(module) is not None, name
        assert callable(importlib.import_module(module).main)
        assert not line.endswith(".")


def test_every_kind_has_a_hook_a_version_and_a_built_in() -> None:
    registry = build_registry(environ={"NANOFW_PLUGINS": ""})
    for kind in KINDS:
        hook = getattr(hookspecs, kind)
        assert f"{kind}/{API_VERSIONS[kind]}" in hook.__doc__
        assert registry.names(kind), f"nothing uses the kind {kind}"


def test_every_kind_is_in_the_docs() -> None:
    docs = ROOT.parent / "docs" / "plugins"
    for page in ("versions.md", "capabilities.md"):
        text = (docs / page).read_text(encoding="utf-8")
        assert not [kind for kind in KINDS if kind not in text], page


def test_every_built_in_manifest_describes_what_its_entry_points_promise() -> None:
    for entry in build_registry(environ={"NANOFW_PLUGINS": ""}).entries:
        plugin = load_plugin(entry)
        assert plugin.summary, entry.id
        assert plugin.name == entry.name


def test_exports_of_the_door_are_sorted_into_groups_and_exist() -> None:
    import nanofw.plugins as door

    assert len(door.__all__) == len(set(door.__all__))
    for name in door.__all__:
        assert hasattr(door, name), name


def test_presets_and_the_type_marker_are_package_data() -> None:
    import tomllib

    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["nanofw"]
    shipped = {path for pattern in patterns for path in ROOT.glob(pattern)}
    wanted = {ROOT / "py.typed", *(ROOT / "config" / "presets").iterdir()}
    wanted |= {path for path in (ROOT / "models" / "embedded").rglob("*") if path.is_file()}
    assert wanted <= shipped
