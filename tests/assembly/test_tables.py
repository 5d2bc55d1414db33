"""A kind and a capability that are entries of the two tables and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.packages import write_dist_info
from tests.spawn import run_python

TABLES = """
from types import MappingProxyType
import nanofw.contracts.kinds as kinds

class Gatekeeper: ...
class GatekeeperConfig: ...

gatekeeper = kinds.Kind(
    name="gatekeeper", text="who comes in first", section=("gatekeeper",), base=Gatekeeper,
    config=GatekeeperConfig, version=3, tier="experimental", default="round_robin",
)
kinds.KINDS = MappingProxyType({**kinds.KINDS, "gatekeeper": gatekeeper})

import nanofw.plugins.capabilities as capabilities

sticky = capabilities.Capability(
    key="sticky", kinds=("gatekeeper",), value=capabilities.FLAG, text="always",
    needed=lambda needs: True,
)
capabilities.CAPABILITIES = MappingProxyType({**capabilities.CAPABILITIES, "sticky": sticky})
"""
COMMANDS = """
import contextlib, io, json, sys
from nanofw.cli.main import main

def call(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    return [code, out.getvalue(), err.getvalue()]

sys.path.insert(0, TOOLS)
import doc_tables

print(json.dumps({
    "answers": [call(*words) for words in json.loads(sys.argv[1])],
    "tables": [doc_tables.versions(), doc_tables.kinds(), doc_tables.capabilities()],
}))
"""
MANIFEST = """
from nanofw.contracts.kinds import KINDS
from nanofw.plugins import Options, Plugin, hookimpl

class RoundRobinOptions(Options):
    weight: int = 1

class RoundRobin(KINDS["gatekeeper"].base):
    def __init__(self, options, config): ...

@hookimpl
def gatekeeper():
    return [Plugin(name, ":RoundRobin", api="gatekeeper/3", options=RoundRobinOptions,
                   capabilities=claims, summary="in turn")
            for name, claims in [("round_robin", {"sticky": True}), ("loose", {})]]
"""


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    """`ask([words], ...)`: exit code, output and messages of commands, and the docs' tables."""
    points = {f"gatekeeper.{name}": "gatekeepers" for name in ("round_robin", "loose", "typed")}
    write_dist_info(tmp_path, "outside", "1.0", points)
    tools = Path(__file__).parents[2] / "tools"

    def call(*commands: list[str], manifest: str = MANIFEST) -> Any:
        (tmp_path / "gatekeepers.py").write_text(manifest, encoding="utf-8")
        path = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); TOOLS = {str(tools)!r}\n"
        return json.loads(run_python("-c", path + TABLES + COMMANDS, json.dumps(commands)))

    return call


def test_a_kind_in_the_table_is_everywhere(ask: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("base: sim\ngatekeeper: {name: loose, weight: 2}\n", encoding="utf-8")
    said = ask(
        ["plugins", "list", "--json"],
        ["plugins", "show", "gatekeeper", "round_robin", "--json"],
        ["config", "show", "sim", "--json"],
        ["config", "schema"],
        ["config", "validate", "sim", "gatekeeper.wieght=1"],
        ["config", "validate", "sim", "gatekeeper.name=rund_robin"],
        ["config", "show", str(file), "gatekeeper.name=round_robin", "--sources"],
        ["explain", "sim", "--json"],
        ["config", "show", "gatekeeper=loose"],
    )
    codes, outputs, errors = zip(*said["answers"], strict=True)
    assert codes == (0, 0, 0, 0, 2, 2, 0, 0, 2), errors
    listed = [
        item["name"] for item in json.loads(outputs[0])["plugins"] if item["kind"] == "gatekeeper"
    ]
    assert listed == ["loose", "round_robin", "typed"]
    assert json.loads(outputs[1])["api"] == "gatekeeper/3"
    assert json.loads(outputs[2])["gatekeeper"] == {"name": "round_robin"}
    variants = json.loads(outputs[3])["$defs"]["gatekeeper_section"]["anyOf"]
    assert any("weight" in variant["properties"] for variant in variants)
    assert "gatekeeper.wieght: no such key; did you mean 'weight'" in errors[4]
    assert "gatekeeper.name: no gatekeeper 'rund_robin'; did you mean 'round_robin'" in errors[5]
    assert "dropped: gatekeeper.weight = 2" in outputs[6]
    choices = {item["kind"]: item for item in json.loads(outputs[7])["choices"]}
    assert choices["gatekeeper"]["claims"] == {"sticky": True}
    assert choices["gatekeeper"]["options"] == {"weight": 1}
    assert "write {name: loose}" in errors[8]
    versions, kinds, capabilities = said["tables"]
    assert "| gatekeeper | 3 | experimental |" in versions
    assert "| gatekeeper | who comes in first | `gatekeeper`, default `round_robin` |" in kinds
    assert "| `sticky` | gatekeeper | true or false | always |" in capabilities


def test_a_capability_in_the_table_is_asked_and_checked(ask: Any) -> None:
    odd = MANIFEST.replace('("loose", {})', '("loose", {}), ("typed", {"stickyy": True})')
    said = ask(["explain", "sim", "gatekeeper.name=loose"])
    assert said["answers"][0][0] == 2
    assert "gatekeeper 'loose': it does not claim sticky" in said["answers"][0][2]
    (answer,) = ask(["plugins", "list", "--check", "--json"], manifest=odd)["answers"]
    states = {
        item["name"]: item
        for item in json.loads(answer[1])["plugins"]
        if item["kind"] == "gatekeeper"
    }
    assert answer[0] == 3
    assert "no capability 'stickyy'; did you mean 'sticky'" in states["typed"]["error"]
    wrong = MANIFEST.replace('{"sticky": True}', '{"sticky": "yes"}')
    (answer,) = ask(["explain", "sim"], manifest=wrong)["answers"]
    assert answer[0] == 3
    assert "capability 'sticky' should be true or false, not 'yes'" in answer[2]
