from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pytest

from nanofw.errors import (
    ApiMismatch,
    ConfigError,
    PluginError,
    PluginLoadError,
    UnknownPlugin,
)
from nanofw.plugins import (
    Plugin,
    PluginSettings,
    Registry,
    build_registry,
    load_plugin,
    prepare,
)
from nanofw.plugins.checks import missing_requirements
from nanofw.plugins.local import local_modules
from tests.plugins.packages import Install, manifest


def load(site: Path, kind: str, name: str) -> Plugin:
    return load_plugin(registry_of(site).find(kind, name))


def registry_of(site: Path) -> Registry:
    return build_registry(environ={}, search_path=[str(site)])


def test_the_entry_name_picks_the_descriptor(install: Install, site: Path) -> None:
    source = """
        from nanofw.plugins import Plugin, hookimpl

        @hookimpl
        def scheduler():
            return [
                Plugin("a", ":A", api="scheduler/2", options=":Options"),
                Plugin("b", "elsewhere:B", api="scheduler/2"),
            ]

        @hookimpl
        def sampler():
            return Plugin("a", "samplers:A", api="sampler/2")
    """
    points = {"scheduler.a": "many", "scheduler.b": "many", "sampler.a": "many"}
    install("outside", points, many=source)
    first = load(site, "scheduler", "a")
    assert (first.target, first.options) == ("many:A", "many:Options")
    assert load(site, "scheduler", "b").target == "elsewhere:B"
    assert load(site, "sampler", "a").target == "samplers:A"


def test_a_mismatch_between_entry_point_and_manifest_is_an_error(
    install: Install, site: Path
) -> None:
    install("outside", {"scheduler.dead": "m"}, m=manifest("deadline"))
    with pytest.raises(PluginLoadError, match=r"does not describe it.*scheduler\.deadline"):
        load(site, "scheduler", "dead")


def test_B088_a_broken_plugin_fails_only_who_selects_it(install: Install, site: Path) -> None:
    broken = """
        def connect():
            raise ImportError("no libfoo")

        connect()
    """
    install("broken", {"scheduler.bad": "broken_manifest"}, broken_manifest=broken)
    install("healthy", {"scheduler.good": "good_manifest"}, good_manifest=manifest("good"))
    assert load(site, "scheduler", "good").name == "good"
    with pytest.raises(PluginLoadError) as caught:
        load(site, "scheduler", "bad")
    text = str(caught.value)
    assert "broken 1.0" in text
    assert "no libfoo" in text
    assert "in connect" in text  # its own traceback
    assert "component.py" not in text  # and not ours
    assert isinstance(caught.value.__cause__, ImportError)
    assert load(site, "scheduler", "good").name == "good"


@pytest.mark.parametrize("raised", ["SystemExit(3)", "BaseException('x')", "GeneratorExit()"])
def test_whatever_a_manifest_raises_is_contained(install: Install, site: Path, raised: str) -> None:
    install("broken", {"scheduler.bad": "m"}, m=f"raise {raised}")
    with pytest.raises(PluginLoadError, match="broken 1.0 failed to import"):
        load(site, "scheduler", "bad")


def test_an_interrupt_is_not_contained(install: Install, site: Path) -> None:
    install("slow", {"scheduler.slow": "m"}, m="raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load(site, "scheduler", "slow")


def test_a_misspelt_hook_is_an_error(install: Install, site: Path) -> None:
    source = manifest("x").replace("def scheduler", "def schedular")
    install("outside", {"scheduler.x": "m"}, m=source)
    with pytest.raises(PluginLoadError, match="no kind .schedular.; did you mean .scheduler"):
        load(site, "scheduler", "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("return Plugin", "return str"), "not a Plugin"),
        (("'scheduler/2'", "'sampler/2'"), "states api 'scheduler/2'"),
        (('":Target"', '"Target"'), "is not 'package.module:Class'"),
        (("def scheduler()", "def scheduler(config)"), "config"),
        (("@hookimpl", ""), "describes no plugin"),
    ],
)
def test_what_does_not_validate_is_refused(
    install: Install, site: Path, change: tuple[str, str], message: str
) -> None:
    source = manifest("x").replace(*change)
    source = source.replace("return str('x', \":Target\", api='scheduler/2')", "return 'x'")
    install("outside", {"scheduler.x": "m"}, m=source)
    with pytest.raises(PluginLoadError, match=message):
        load(site, "scheduler", "x")


def test_a_manifest_that_failed_leaves_no_trace(install: Install, site: Path) -> None:
    install("outside", {"scheduler.x": "m"}, m="raise ImportError('first')")
    with pytest.raises(PluginLoadError):
        load(site, "scheduler", "x")
    (site / "m.py").write_text(manifest("x") + "\n# repaired\n", encoding="utf-8")
    assert load(site, "scheduler", "x").name == "x"


def test_B095_hooks_run_once_in_a_process(install: Install, site: Path) -> None:
    source = manifest("x", extra="calls = []").replace(
        "    return", "    calls.append(1)\n    return"
    )
    install("outside", {"scheduler.x": "counting"}, counting=source)
    for _ in range(3):
        load(site, "scheduler", "x")
    import counting  # pyright: ignore[reportMissingImports]

    assert counting.calls == [1]


def test_B097_another_api_version_is_refused_naming_both(install: Install, site: Path) -> None:
    source = """
        from nanofw.plugins import Plugin, hookimpl

        @hookimpl
        def sampler():
            return [
                Plugin("old", "m:A", api="sampler/1"),
                Plugin("new", "m:A", api="sampler/2"),
            ]
    """
    install("outside", {"sampler.old": "m", "sampler.new": "m"}, version="0.4", m=source)
    with pytest.raises(ApiMismatch) as caught:
        load(site, "sampler", "old")
    text = str(caught.value)
    assert "sampler/1" in text
    assert "sampler/2" in text
    assert "outside 0.4" in text
    assert "docs/plugins/migrating.md" in text
    assert load(site, "sampler", "new").name == "new"


def test_missing_requirements_come_with_their_install_line() -> None:
    from nanofw.plugins import Requirement

    plugin = Plugin(
        "x",
        "m:A",
        api="sampler/2",
        requires=(
            Requirement("no_such_module", "pip install 'nanofw[fa3]'"),
            Requirement("no_such.module.at_all", "pip install other"),
            Requirement("json", "never shown"),
            "pluggy>=1",
            "pluggy>=99",
            "surely-not-installed>=2",
            "surely-not-installed; python_version < '3'",
        ),
    )
    assert [line.partition(": ")[2] for line in missing_requirements(plugin)] == [
        "pip install 'nanofw[fa3]'",
        "pip install other",
        "pip install 'pluggy>=99'",
        "pip install 'surely-not-installed>=2'",
    ]


LOCAL = """
from nanofw.plugins import Plugin, Policy, hookimpl

class Mine(Policy):
    def key(self, request, view):
        return 0

@hookimpl
def scheduler():
    return Plugin("mine", ":Mine", api="scheduler/2")
"""


def local_registry(path: Path) -> Registry:
    return build_registry(PluginSettings(load=(path,)), environ={"NANOFW_PLUGINS": ""})


def test_a_local_file_is_tried_without_packaging(tmp_path: Path) -> None:
    from nanofw.plugins import Component

    file = tmp_path / "my_policy.py"
    file.write_text(LOCAL, encoding="utf-8")
    entry = local_registry(file).find("scheduler", "mine")
    assert entry.origin == str(file)
    assert entry.version.startswith("sha256:")
    component = Component(plugin=load_plugin(entry), entry=entry)
    assert component.load().__name__ == "Mine"
    assert local_registry(file).find("scheduler", "my_policy:mine") == entry


def test_a_local_folder_holds_files_or_is_a_package(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.py").write_text(LOCAL, encoding="utf-8")
    (folder / "b.py").write_text(LOCAL.replace('"mine"', '"other"'), encoding="utf-8")
    (folder / "_helper.py").write_text("raise RuntimeError", encoding="utf-8")
    registry = local_registry(folder)
    assert {"mine", "other"} <= set(registry.names("scheduler"))

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from .policy import *", encoding="utf-8")
    (package / "policy.py").write_text(LOCAL, encoding="utf-8")
    entry = local_registry(package).find("scheduler", "mine")
    assert load_plugin(entry).target.endswith(":Mine")


def test_broken_local_files_are_errors_with_their_path(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("1 / 0", encoding="utf-8")
    with pytest.raises(PluginLoadError, match=r"bad\.py failed to import: ZeroDivisionError"):
        local_registry(file)
    file.write_text("x = 1", encoding="utf-8")
    with pytest.raises(PluginLoadError, match="describes no plugin"):
        local_registry(file)
    with pytest.raises(ConfigError, match=r"plugins\.load\[0\]: .*absent\.py does not exist"):
        local_registry(tmp_path / "absent.py")


@pytest.mark.parametrize("place", ["mine.py", "mine/__init__.py", "mine/part.py"])
def test_an_edit_within_a_second_counts(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same size and time, as a script edits a file; bytecode must not outlive its source."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    if file.name == "part.py":
        (file.parent / "__init__.py").write_text("from .part import VALUE", encoding="utf-8")
    values: list[int] = []
    for text in ("VALUE = 1", "VALUE = 2"):
        file.write_text(text, encoding="utf-8")
        os.utime(file, (1e9, 1e9))
        (module,) = local_modules(tmp_path / place.split("/")[0])
        values.append(module.load().VALUE)
    assert values == [1, 2]
    assert not list(tmp_path.rglob("__pycache__"))


def test_every_process_loads_the_same_plugins(tmp_path: Path, install: Install, site: Path) -> None:
    file = tmp_path / "my_policy.py"
    file.write_text(LOCAL, encoding="utf-8")
    install("outside", {"scheduler.x": "m"}, m=manifest("x"))
    entries = [
        registry_of(site).find("scheduler", "x"),
        local_registry(file).find("scheduler", "mine"),
    ]
    sent = pickle.loads(pickle.dumps(entries))
    assert [plugin.name for plugin in prepare(sent, [str(site)])] == ["x", "mine"]
    file.write_text(LOCAL + "# changed", encoding="utf-8")
    with pytest.raises(PluginError, match="this process finds: sha256:"):
        prepare(sent, [str(site)])
    with pytest.raises(PluginError, match="this process finds: not installed"):
        prepare(sent[:1], [str(tmp_path)])


# -- manifests that are wrong in every way ----------------------------------------------------


def local_error(tmp_path: Path, body: str) -> str:
    file = tmp_path / "odd.py"
    file.write_text(f"from nanofw.plugins import Plugin, hookimpl\n{body}", encoding="utf-8")
    with pytest.raises(PluginLoadError) as caught:
        local_registry(file)
    return str(caught.value)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("Plugin('x', ':C', api=None)", "api should be a string, not None"),
        ("Plugin(5, ':C', api='scheduler/2')", "name should be a string, not 5"),
        ("Plugin('x', None, api='scheduler/2')", "target should be a string, not None"),
        ("Plugin('x', Plugin, api='scheduler/2')", "':Plugin' for example, not the class Plugin"),
        ("Plugin('x', 'C', api='scheduler/2')", "odd.scheduler(): target 'C' is not"),
        ("Plugin('x', 'C', api='scheduler/2')", "a class of the same module is ':Class'"),
        ("Plugin('x', ':C', api='scheduler/2', summary=5)", "summary should be a string, not 5"),
        ("Plugin('x', ':C', api='scheduler/2', options=dict)", "should be a pydantic model class"),
        ("Plugin('x', ':C', api='scheduler/2', capabilities=['a'])", "should be a mapping"),
        ("Plugin('x', ':C', api='scheduler/2', capabilities=None)", "should be a mapping"),
        ("Plugin('x', ':C', api='scheduler/2', requires='nope>=1')", "requires should be a tuple"),
        ("Plugin('x', ':C', api='scheduler/2', requires=(5,))", "requires names 5"),
        ("Plugin('x', ':C', api='scheduler/2', requires=('>>> y',))", "'>>> y', which is not a"),
        ("[Plugin('x', ':C', api='scheduler/2')] * 2", "describes scheduler 'x' more than once"),
        ("None", "describes no plugin"),
        ("'x'", "returned 'x', not a Plugin"),
    ],
)
def test_a_wrong_descriptor_is_one_sentence_with_its_file(
    tmp_path: Path, returned: str, message: str
) -> None:
    text = local_error(tmp_path, f"@hookimpl\ndef scheduler():\n    return {returned}\n")
    assert message in text
    assert "odd.py" in text
    assert "\n" not in text


def test_an_option_called_name_is_refused(tmp_path: Path) -> None:
    body = (
        "from pydantic import BaseModel\nclass O(BaseModel):\n    name: str\n"
        "@hookimpl\ndef scheduler():\n    return Plugin('x', ':C', api='scheduler/2', options=O)\n"
    )
    assert "cannot be called 'name'" in local_error(tmp_path, body)


def test_an_error_that_cannot_be_printed_is_named(tmp_path: Path) -> None:
    body = "class E(Exception):\n    def __str__(self): raise ValueError\n    __repr__ = __str__\n"
    assert "failed to import: E" in local_error(tmp_path, body + "raise E()\n")


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(manifest("x"), encoding="utf-8")
    settings = PluginSettings(load=(file, tmp_path / "." / "mine.py", tmp_path))
    registry = build_registry(settings, environ={"NANOFW_PLUGINS": ""})
    assert len(registry.providers("scheduler", "x")) == 1


def test_a_broken_file_of_a_folder_fails_only_who_wants_it(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(manifest("x"), encoding="utf-8")
    (tmp_path / "bad.py").write_text("1 / 0", encoding="utf-8")
    registry = local_registry(tmp_path)
    assert registry.find("scheduler", "x").path == tmp_path / "good.py"
    assert any("bad.py failed to import: ZeroDivisionError" in note for note in registry.notes)
    with pytest.raises(UnknownPlugin, match=r"bad\.py failed to import"):
        registry.find("scheduler", "of_bad")
