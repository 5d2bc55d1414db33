"""Faults that people found in the choice of plugins, by their ids."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanofw.assembly import PluginSettingWarning, assemble, select
from nanofw.cli.main import main
from nanofw.config.load import LoadedConfig, load_config
from nanofw.contracts.kinds import KINDS
from nanofw.errors import ConfigError, DuplicatePlugin, PluginLoadError
from tests.plugins.packages import Install, manifest

Local = Callable[..., Path]
LOCAL = """
from nanofw.plugins import HostProcessor, LogitsProcessor, Plugin, Policy, hookimpl

class Plain(Policy):
    def key(self, request, view):
        return request.arrival

class Device(LogitsProcessor):
    def apply(self, logits, rows, positions): ...

value = 7
{more}

@hookimpl
def {kind}():
    return Plugin("mine", {target!r}, api="{kind}/{version}", capabilities={claims!r})
"""


@pytest.fixture
def local(tmp_path: Path) -> Local:
    """`local(claims)`: a file with one plugin, `mine`."""

    def write(
        claims: Any = None, kind: str = "scheduler", target: str = ":Plain", more: str = ""
    ) -> Path:
        path = tmp_path / "mine.py"
        version = KINDS[kind].version
        text = LOCAL.format(
            claims=claims or {}, kind=kind, target=target, more=more, version=version
        )
        path.write_text(text, encoding="utf-8")
        return path

    return write


def load(path: Path, kind: str = "scheduler") -> LoadedConfig:
    values: dict[str, Any] = {"plugins": {"load": [str(path)]}}
    values |= {
        "scheduler": {"scheduler": {"name": "mine"}},
        "logits_processor": {"logits_processors": [{"name": "mine"}]},
        "attention_backend": {"attention_backend": {"name": "mine"}},
    }[kind]
    base = "sim" if kind == "scheduler" else "qwen3-demo"
    return load_config(base, values=values)


def checked(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Exit code of `plugins list --check`, and what it says of `mine`."""
    capsys.readouterr()
    code = main(["plugins", "list", "sim", f"plugins.load=[{path}]", "--check", "--json"])
    listed = json.loads(capsys.readouterr().out)["plugins"]
    (mine,) = [item for item in listed if item["name"] == "mine"]
    return code, mine


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"overlapp": True}, "no capability 'overlapp'; did you mean 'overlap'"),
        ({"overlap": "yes"}, "capability 'overlap' should be true or false, not 'yes'"),
        ({"overlap": 1}, "should be true or false, not 1"),
        ({"overlap": None}, "should be true or false, not None"),
        ({"devices": "cuda"}, "capability 'devices' should be a list of names, not 'cuda'"),
        ({"block_sizes": ("16",)}, "should be a list of whole numbers"),
        ({"head_dims": (64, 0)}, "should be a list of whole numbers"),
        ({"head_dims": (True,)}, "should be a list of whole numbers"),
        ({"needs_history": "devise"}, "should be one of 'none', 'device', 'host', not 'devise'"),
        ({"needs": ("modle",)}, "capability 'needs' should be a list of kinds"),
        ({"estimate": "nowhere"}, "should be 'package.module:function'"),
        ({"lookahead": -1}, "should be a whole number from 0"),
        ({1: True}, "capability 1 should be named by a string"),
    ],
)
def test_F020_a_claim_that_means_nothing_is_told(
    local: Local, capsys: pytest.CaptureFixture[str], claims: Any, message: str
) -> None:
    path = local(claims)
    with pytest.raises(PluginLoadError) as caught:
        select(load(path))
    assert message in str(caught.value)
    assert "mine" in str(caught.value)


def test_F020_a_claim_that_nothing_asks_for_is_carried_along_and_told(
    local: Local, capsys: pytest.CaptureFixture[str]
) -> None:
    path = local({"overlap": True, "telepathy": "yes"})
    code, mine = checked(path, capsys)
    assert (code, mine["state"]) == (0, "ok")
    assert "nothing asks for" in mine["error"]
    assert any("telepathy" in note for note in select(load(path)).explanation.notes)


@pytest.mark.parametrize(
    ("history", "lacks"), [("device", "sampled()"), ("host", "HostProcessor"), ("none", None)]
)
def test_F020_what_a_claim_promises_is_there(
    local: Local, capsys: pytest.CaptureFixture[str], history: str, lacks: str | None
) -> None:
    path = local({"needs_history": history}, "logits_processor", ":Device")
    code, mine = checked(path, capsys)
    assert code == (0 if lacks is None else 3)
    assert lacks is None or lacks in mine["error"]


@pytest.mark.parametrize("answer", ["None", "7", "{'devices': 'cpu'}", "{'fusedd': True}", "[1]"])
def test_F020_the_answer_of_a_probe_is_checked(local: Local, answer: str) -> None:
    claims = {"devices": ("cpu",)}
    path = local(
        claims, "attention_backend", ":Device", f"def probe(device, options): return {answer}"
    )
    with pytest.raises(PluginLoadError, match="mine.*probe"):
        select(load(path, "attention_backend"))


@pytest.mark.parametrize(
    ("kind", "name", "path"),
    [
        ("scheduler", "fcfs", "scheduler"),
        ("kv_allocator", "paged_prefix", "kv_allocator"),
        ("sampler", "standard", "sampler"),
        ("attention_backend", "sdpa", "attention_backend"),
        ("executor", "torch", "executor"),
        ("model", "Qwen3ForCausalLM", "model"),
    ],
)
def test_F021_a_default_means_our_own(install: Install, kind: str, name: str, path: str) -> None:
    """Also what `auto` tries, and the model that a checkpoint's architecture names."""
    install("outside", {f"{kind}.{name}": "m"}, m=manifest(name, kind=kind))
    selection = select(load_config("qwen3-demo"))
    choice = selection.explanation.choice(kind)
    assert choice is not None
    assert (choice.name, choice.origin.split()[0]) == (name, "nanofw")
    (note,) = [text for text in selection.explanation.notes if "outside 1.0" in text]
    assert f"write 'outside:{name}' there" in note
    with pytest.raises(DuplicatePlugin, match="outside 1.0"):
        select(load_config("qwen3-demo", [f"{path}.name={name}"]))


def test_F021_what_a_preset_names_is_a_default_and_a_run_says_so(install: Install) -> None:
    install("outside", {"executor.sim": "m"}, m=manifest("sim", kind="executor"))
    with pytest.warns(PluginSettingWarning, match="executor 'sim' is offered by outside 1.0"):
        assemble(load_config("sim")).close()


MORE = """
class Wrong:
    def __init__(self, options, config): ...
class Abstract(Policy): ...
class Bare: ...
def takes_none(): ...
"""


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:Policy", "no_such_module"),
        (":Absent", "Absent"),
        (":value", "neither a class nor a function"),
        (":Wrong", "does not derive from it"),
        (":Abstract", "it lacks key"),
        (":Bare", "Bare does not derive from it"),
        (":takes_none", "cannot be constructed as target(options, config)"),
    ],
)
def test_F052_check_imports_what_it_checks(
    local: Local, capsys: pytest.CaptureFixture[str], target: str, message: str
) -> None:
    path = local({}, target=target, more=MORE)
    code, mine = checked(path, capsys)
    assert (code, mine["state"]) == (3, "failed")
    assert message in mine["error"]
    words = ["config", "validate", "sim", f"plugins.load=[{path}]", "scheduler.name=mine"]
    assert main(words) == 3
    assert message in capsys.readouterr().err


def test_F054_local_files_of_one_stem_are_told_apart(tmp_path: Path, install: Install) -> None:
    """Also when an installed package has that name, and whatever the order."""
    files: list[str] = []
    for folder in ("a", "b", "c/b", "d"):
        path = tmp_path / folder / "x.py"
        path.parent.mkdir(parents=True)
        facts = {"kind": "scheduler", "target": ":Plain", "version": 2, "claims": {}}
        source = LOCAL.format(more=f"# {folder}", **facts)
        path.write_text(source, encoding="utf-8")
        files.append(str(path))
    install("x", {"scheduler.mine": "m"}, m=manifest("mine"))
    values = {"plugins": {"load": files}}
    with pytest.raises(DuplicatePlugin) as caught:
        select(load_config("sim", ["scheduler.name=mine"], values=values))
    offered = str(caught.value)
    for name in ("a/x", "d/x", "c/b/x"):
        assert f"'{name}:mine'" in offered
        selection = select(load_config("sim", [f"scheduler.name={name}:mine"], values=values))
        entry = selection.components["scheduler"].entry
        assert str(entry.path) == str(tmp_path / f"{name}.py")
    selection = select(load_config("sim", ["scheduler.name=x:mine"], values=values))
    assert selection.components["scheduler"].entry.path is None
    override = {"plugins": {"load": files, "override": {"scheduler.mine": "a/x"}}}
    selection = select(load_config("sim", ["scheduler.name=mine"], values=override))
    assert selection.components["scheduler"].entry.path == tmp_path / "a" / "x.py"
    with pytest.raises(DuplicatePlugin):
        select(load_config("sim", ["scheduler.name=mine"], values={"plugins": {"load": files[:2]}}))


@pytest.mark.parametrize("make", ["fifo", "loop", "device", "folder", "large"])
def test_F054_a_local_plugin_is_a_regular_file(tmp_path: Path, make: str) -> None:
    path = tmp_path / "odd.py"
    if make == "fifo":
        os.mkfifo(path)
    elif make == "loop":
        path.symlink_to(path)
    elif make == "device":
        path.symlink_to("/dev/zero")
    elif make == "folder":
        path.mkdir()
        os.mkfifo(path / "__init__.py")
    else:
        path.write_bytes(b"#" * (17 << 20))
    with pytest.raises(ConfigError) as caught:
        select(load_config("sim", values={"plugins": {"load": [str(path)]}}))
    assert caught.value.key == "plugins.load[0]"
