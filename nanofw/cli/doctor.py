"""`nanofw doctor`: devices, packages, attention backends, and what is missing; or a model."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TypedDict

from nanofw.cli import ExitCode, environment, model_doctor
from nanofw.cli.environment import BackendFacts, DeviceFacts, PackageFacts, SystemFacts
from nanofw.cli.stdout import claim
from nanofw.cli.tables import console, print_json, readable_bytes, table


class _Backends(TypedDict):
    device: str
    backends: list[BackendFacts]


class _Report(TypedDict):
    system: SystemFacts
    devices: list[DeviceFacts]
    packages: list[PackageFacts]
    attention_backends: _Backends


def main(arguments: list[str]) -> int:
    """Entry of the command. A missing package is not a failure: the exit code is 0."""
    parser = argparse.ArgumentParser(prog="nanofw doctor", description=__doc__)
    help_text = "a folder, a hub id or embedded:demo: say what it is; without it, the machine"
    parser.add_argument("model", nargs="?", metavar="MODEL", help=help_text)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="with a model")
    parser.add_argument("--json", action="store_true", help="write JSON")
    options = parser.parse_intermixed_args(arguments)
    claim()
    if options.model is not None:
        return model_doctor.main(options.model, options.settings, as_json=options.json)
    devices = environment.devices()
    working = [item["device"] for item in devices if "problem" not in item]
    device = "cuda" if any(name.startswith("cuda") for name in working) else "cpu"
    report: _Report = {
        "system": environment.system(),
        "devices": devices,
        "packages": environment.packages(),
        "attention_backends": {"device": device, "backends": environment.backends(device)},
    }
    if options.json:
        print_json(report)
    else:
        _print(report)
    return ExitCode.OK


def _print(report: _Report) -> None:
    facts = {key: value for key, value in report["system"].items() if value is not None}
    _table("system", ("fact", "value"), [(key, _value(key, facts[key])) for key in facts])
    _table("devices", ("device", "name", "memory", ""), map(_device, report["devices"]))
    _table(
        "packages",
        ("package", "version", "for", "state", "install"),
        [
            (item["name"], item["version"] or "", item["use"], item["state"],
             item.get("install", ""))
            for item in report["packages"]
        ],
    )  # fmt: skip
    found = report["attention_backends"]
    _table(
        f"attention backends on {found['device']}",
        ("backend", "usable", "why"),
        [
            (item["name"], "yes" if item["usable"] else "no", item.get("reason", ""))
            for item in found["backends"]
        ],
    )


def _table(title: str, columns: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    console().print(table(title, columns, lines))


def _device(item: DeviceFacts) -> tuple[str, str, str, str]:
    details = [f"compute capability {item['capability']}"] if "capability" in item else []
    details += [f"CUDA {cuda}"] if (cuda := item.get("cuda")) else []
    details += [item["problem"]] if "problem" in item else []
    total, free = item.get("total_bytes"), item.get("free_bytes")
    memory = readable_bytes(total) if total else ""
    memory = f"{readable_bytes(free)} free of {memory}" if free is not None else memory
    return item["device"], item.get("name", ""), memory, ", ".join(details)


def _value(key: str, value: object) -> str:
    return (
        readable_bytes(value) if key.endswith("_bytes") and isinstance(value, int) else str(value)
    )
