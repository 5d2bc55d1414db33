"""Rules about imports and names that no type checker sees."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

import nanofw
import nanofw.plugins
from nanofw import contracts
from nanofw.cli.main import COMMANDS
from nanofw.errors import NanofwError
from nanofw.plugins import KINDS, build_registry, load_plugin
from nanofw.plugins.hookspecs import HOOKS
from tests.public import PACKAGES
from tests.spawn import run_python

ROOT = Path(nanofw.__file__).parent
WITHOUT_TORCH = ["torch", "triton", "transformers", "flash_attn", "flashinfer", "huggingface_hub"]


def python(code: str, *arguments: str, forbidden: list[str] | None = None) -> str:
    """Run code in a fresh interpreter in which some modules cannot be imported."""
    prologue = f"import sys\nfor name in {forbidden or []!r}: sys.modules[name] = None\n"
    return run_python("-c", prologue + textwrap.dedent(code), *arguments)


CALL = """
    from nanofw.cli.main import main
    code = main(sys.argv[1:])
    assert code == 0, code
"""


def test_help_imports_nothing_heavy() -> None:
    code = """
        from nanofw.cli.main import main
        assert main(["--help"]) == 0
        heavy = {"torch", "transformers", "pydantic", "numpy", "rich", "yaml",
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


def test_a_simulated_engine_works_without_torch_and_imports_nothing_for_a_request() -> None:
    code = """
        from nanofw.assembly import assemble
        from nanofw.config.load import load_config
        from nanofw.plugins import Request

        engine = assemble(load_config("sim"))
        before = set(sys.modules)
        engine.add_request(Request(id="a", prompt_token_ids=[1, 2, 3]))
        finished = []
        while engine.has_unfinished:
            finished += engine.step().finished
        assert len(finished[0].token_ids) == 16
        assert not set(sys.modules) - before, set(sys.modules) - before
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
        hook = getattr(HOOKS, kind)
        assert KINDS[kind].api in hook.__doc__
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


@pytest.mark.parametrize("name", PACKAGES)
def test_all_lists_the_public_names_of_a_package(name: str) -> None:
    package = importlib.import_module(name)
    listed = package.__all__
    assert len(listed) == len(set(listed))
    for public in listed:
        assert getattr(package, public) is not None, public
    imported = {
        key
        for key, value in vars(package).items()
        if not (key.startswith("_") or isinstance(value, ModuleType))
    }
    assert imported - set(listed) <= {"annotations", "TYPE_CHECKING", "Any"}


def test_every_class_of_a_contract_is_exported_to_authors() -> None:
    for found in pkgutil.iter_modules(contracts.__path__, "nanofw.contracts."):
        module = importlib.import_module(found.name)
        classes = {
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == found.name and key[0] != "_"
        }
        assert classes <= set(nanofw.plugins.__all__), found.name


def test_the_errors_are_exported_by_the_package() -> None:
    errors = NanofwError.__subclasses__()
    errors += [specific for error in errors for specific in error.__subclasses__()]
    names = {error.__name__ for error in errors if error.__module__ == "nanofw.errors"}
    assert "UnknownPlugin" in names
    assert names <= set(nanofw.__all__)


def test_presets_and_the_type_marker_are_package_data() -> None:
    import tomllib

    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["nanofw"]
    shipped = {path for pattern in patterns for path in ROOT.glob(pattern)}
    wanted = {ROOT / "py.typed", *(ROOT / "config" / "presets").iterdir()}
    wanted |= {path for path in (ROOT / "models" / "embedded").rglob("*") if path.is_file()}
    assert wanted <= shipped
