"""What `nanofw plugins list --check` finds: each rule with a package or a local file."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path

import pytest

from nanofw.cli.main import main
from nanofw.plugins import build_registry
from nanofw.plugins.lint import RULES, Finding, LintError, Subject, lint
from nanofw.plugins.manifest_imports import seen_imports
from tests.plugins.packages import Install, manifest

Capture = pytest.CaptureFixture[str]
HEAD = "from nanofw.plugins import LogitsProcessor, Plugin, Policy, hookimpl\n"
HOOK = """
@hookimpl
def {hook}():
    return Plugin("mine", ":Mine", api="{kind}/2", capabilities={claims!r})
"""
POLICY = """
class Mine(Policy):
    {more}
    def key(self, request, view):
        return request.arrival
"""
PROCESSOR = """
class Mine(LogitsProcessor):
    def apply(self, logits, rows, positions): ...
    def sampled(self, rows, token_ids): ...
"""


def hook(kind: str, claims: object, name: str = "") -> str:
    return HOOK.format(hook=name or kind, kind=kind, claims=claims)


def policy(more: str = "", claims: object = (), name: str = "") -> str:
    return HEAD + POLICY.format(more=more) + hook("scheduler", claims or {}, name)


def processor(claims: object, more: str = "") -> str:
    return HEAD + PROCESSOR + more + hook("logits_processor", claims)


def findings(site: Path, kind: str) -> list[Finding]:
    """What the rules say of `mine`."""
    entry = build_registry(environ={}, search_path=[str(site)]).find(kind, "mine")
    found: list[Finding] = []
    try:
        found.extend(lint(Subject(entry=entry, siblings=frozenset({entry.id}))))
    except LintError as error:
        found.append(Finding(error.rule, "error", str(error)))
    return found


@pytest.mark.parametrize(
    ("rule", "level", "source", "text"),
    [
        ("descriptor", "error", policy(name="schedular"), "'scheduler'"),
        ("descriptor", "error", policy(claims={"overlapp": 1}), "did you mean 'overlap'"),
        ("descriptor", "error", policy().replace('"mine"', '"other"'), "does not describe it"),
        ("target", "error", HEAD + hook("scheduler", {}), "no attribute 'Mine'"),
        ("target", "error", policy("def on_arival(self, request, view): ..."), "mean on_arrival"),
        ("target", "error", policy("def admit(self, request): ..."), "cannot be called as admit("),
        ("target", "error", policy("def rekey(self, view): ..."), "never called without max_rek"),
        ("attribute", "warning", policy("skip_ahaed = 4"), "did you mean skip_ahead"),
        ("capability", "warning", policy(claims={"telepathy": 1}), "nothing asks for 'telepathy'"),
        ("capability", "warning", policy(claims={"devices": ("cpu",)}), "nothing asks a scheduler"),
        ("claim", "warning", processor({}), "needs_history: device is not claimed"),
        (
            "probe",
            "error",
            processor({"needs_history": "device"}, "def probe(device): return {}\n"),
            "probe(device, options)",
        ),
        (
            "hookimpl",
            "warning",
            policy() + "def sampler(): return Plugin('other', ':Other', api='sampler/2')\n",
            "sampler() is never called without @hookimpl",
        ),
    ],
)
def test_a_rule_finds_what_it_looks_for(
    site: Path, install: Install, rule: str, level: str, source: str, text: str
) -> None:
    kind = "logits_processor" if "def logits_processor" in source else "scheduler"
    module = f"lint_{zlib.crc32(source.encode())}"
    install("mine", {f"{kind}.mine": module}, **{module: source})
    (finding,) = findings(site, kind)
    assert (finding.rule, finding.level) == (rule, level)
    assert text in finding.text


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"requires": "('no-such-package>=1',)"}, "requirement"),
        ({"options": "'no_such_module:Options'"}, "options"),
    ],
)
def test_what_a_plugin_needs_is_there(
    site: Path, install: Install, fields: dict[str, str], rule: str
) -> None:
    install("mine", {"scheduler.mine": f"m_{rule}"}, **{f"m_{rule}": manifest("mine", **fields)})
    assert [(item.rule, item.level) for item in findings(site, "scheduler")] == [(rule, "error")]


def test_what_concerns_a_manifest_is_told_once_and_as_text(
    install: Install, capsys: Capture
) -> None:
    install("toy", {}, tensorflow="")  # a heavy name, in no time
    both = """
        import tensorflow
        from nanofw.plugins import Plugin, Policy, hookimpl

        print("hello")

        class Mine(Policy):
            def key(self, request, view):
                return request.arrival

        @hookimpl
        def scheduler():
            return [Plugin(name, ":Mine", api="scheduler/2") for name in ("mine", "b", "unlisted")]
    """
    install("two", {"scheduler.mine": "noisy", "scheduler.b": "noisy"}, noisy=both)
    code = main(["plugins", "list", "--check"])
    text = " ".join(capsys.readouterr().out.split())
    assert code == 0
    assert len(re.findall(r"noisy imports tensorflow \(\d+ ms\)", text)) == 1
    assert text.count("noisy prints when it is imported: 'hello'") == 1
    assert text.count("describes scheduler.unlisted, which no entry point names") == 1
    assert "warning (heavy-import): scheduler 'mine' of two 1.0: noisy imports" in text
    assert main(["plugins", "list", "--check", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["plugins"]
    (mine,) = [item for item in listed if item["name"] == "mine"]
    assert mine["state"] == "ok"
    assert {item["rule"]: item["level"] for item in mine["findings"]} == dict.fromkeys(
        ("entry-point", "prints", "heavy-import"), "warning"
    )


def test_heavy_imports_below_the_packages_own_modules_are_seen(install: Install) -> None:
    install(
        "deep",
        {},
        deep_manifest="import deep_helper",
        deep_helper="import tensorflow",
        tensorflow="import pandas",
        pandas="",
    )
    seen = seen_imports(["deep_manifest", "deep_helper", "no_such_module"])
    assert seen["deep_manifest"].heavy == {}  # deep_helper is a package of its own
    assert list(seen["deep_helper"].heavy) == ["tensorflow"]
    assert "ModuleNotFoundError" not in seen["no_such_module"].printed


def test_every_rule_is_tried_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [rule.name for rule in RULES if f'"{rule.name}"' not in source] == []
