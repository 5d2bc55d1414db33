"""What may come next on a command line, for shells."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanofw.cli.main import COMMANDS

YAML = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """What a command takes. A test compares the table with the commands' own help.

    Attributes:
        options: each with whether a file follows it; None: something else, or nothing.
        places: what stands where, among the words that are neither options nor `key=value`; the
            last one goes on for ever.
        commands: the words that choose among several syntaxes, in place of all of these.
        own: prefix of settings of the command's own, and `module:Class` of their model.
    """

    options: Mapping[str, bool] = field(default_factory=dict[str, bool])
    places: tuple[str, ...] = ()
    commands: Mapping[str, Syntax] = field(default_factory=dict[str, "Syntax"])
    own: tuple[str, str] | None = None


JSON = {"--json": False}
JSON_FILE = {"--json": True}


def _configured(*places: str, own: tuple[str, str] | None = None, **options: bool) -> Syntax:
    named = {f"--{name.replace('_', '-')}": has_file for name, has_file in options.items()}
    return Syntax(options=named, places=(*places, "config"), own=own)


def _bench(model: str) -> Syntax:
    return _configured(own=("bench", f"nanofw.bench.{model}"), json=True)


_EXPERIMENT = ("compare", "nanofw.compare.experiment:ExperimentOptions")
SYNTAX: Mapping[str, Syntax] = {
    "run": _configured(),
    "serve": _configured(),
    "bench": Syntax(
        commands={
            "latency": _bench("latency:LatencyOptions"),
            "throughput": _bench("throughput:ThroughputOptions"),
            "startup": _bench("startup:StartupOptions"),
            "serve": _bench("serve.options:ServeOptions"),
        }
    ),
    "profile": _configured(
        own=("profile", "nanofw.bench.profile:ProfileOptions"), trace=True, json=True
    ),
    "calibrate": _configured(own=("calibrate", "nanofw.bench.calibrate:Design"), output=True),
    "compare": Syntax(places=("config",), own=_EXPERIMENT),
    "capacity": Syntax(places=("config",), own=_EXPERIMENT),
    "why": Syntax(options={"--timeline": True}, places=("file",)),
    "replay": Syntax(places=("file", "keys")),
    "explain": _configured(json=False),
    "verify": _configured(
        "model", prompt=False, max_tokens=False, seed=False, reference_device=False, json=False
    ),
    "doctor": Syntax(options=JSON, places=("model",)),
    "config": Syntax(
        commands={
            "show": _configured(sources=False, json=False),
            "validate": _configured(),
            "schema": _configured(),
            "presets": Syntax(),
        }
    ),
    "plugins": Syntax(
        commands={
            "list": _configured(json=False, check=False),
            "show": _configured("kind", "name", json=False),
            "test": _configured("kind", "name", target=False, limit_s=False, json=False),
            "new": Syntax(
                options={"--package": False, "--host": False, "--into": True},
                places=("kind", "new_name"),
            ),
        }
    ),
    "completion": Syntax(places=("shell",)),
}


def candidates(words: Sequence[str]) -> list[str]:
    """The words that may take the place of the last one, which begins so."""
    *before, word = words or [""]
    if before[:1] == ["--debug"]:
        before = before[1:]
    if not before:
        return _beginning(word, [*COMMANDS, "--help", "--version", "--debug"])
    syntax, before = SYNTAX.get(before[0]), before[1:]
    if syntax is not None and syntax.commands:
        if not before:
            return _beginning(word, [*syntax.commands, "--help"])
        syntax, before = syntax.commands.get(before[0]), before[1:]
    if syntax is None:
        return []
    if before and syntax.options.get(before[-1]):
        return files(word)
    if word.startswith("-"):
        return _beginning(word, [*syntax.options, "--help"])
    return _places(syntax, before, word)


def _places(syntax: Syntax, before: Sequence[str], word: str) -> list[str]:
    given = [
        item
        for previous, item in zip(["", *before], before, strict=False)
        if not item.startswith("-") and "=" not in item and not syntax.options.get(previous)
    ]
    if not syntax.places:
        return []
    place = syntax.places[min(len(given), len(syntax.places) - 1)]
    found = [] if "=" in word else PLACES[place](word, given)
    if place in ("config", "keys"):
        from nanofw.cli.completion_keys import key_words

        named = given if place == "config" else []
        pairs = [item for item in before if "=" in item]
        found += key_words(word, [*named[len(syntax.places) - 1 :], *pairs], syntax.own)
    return found


def _kinds(word: str, given: Sequence[str]) -> list[str]:
    from nanofw.contracts.kinds import KINDS

    return _beginning(word, KINDS)


def _names(word: str, given: Sequence[str]) -> list[str]:
    from nanofw.plugins import build_registry

    return _beginning(word, build_registry().names(given[0]))


def _configs(word: str, given: Sequence[str]) -> list[str]:
    from nanofw.config.layers import presets

    return _beginning(word, presets()) + files(word, YAML)


def models(word: str) -> list[str]:
    """Models that are here: the embedded one, and folders."""
    return _beginning(word, ["embedded:demo"]) + [name for name in files(word) if name[-1] == "/"]


PLACES: Mapping[str, Callable[[str, Sequence[str]], list[str]]] = {
    "config": _configs,
    "file": lambda word, given: files(word),
    "keys": lambda word, given: [],
    "kind": _kinds,
    "model": lambda word, given: models(word),
    "name": _names,
    "new_name": lambda word, given: [],
    "shell": lambda word, given: _beginning(word, ["bash", "zsh", "fish"]),
}
"""By the word in `Syntax.places`: what may stand there, of the word and those given before."""


def _beginning(word: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(word))


def files(word: str, suffixes: tuple[str, ...] = ("",)) -> list[str]:
    """Files and folders that begin so; a folder ends in a slash."""
    folder, _, start = word.rpartition("/")
    folder += "/" if "/" in word else ""
    try:
        found = list(os.scandir(Path(folder or ".").expanduser()))
    except OSError:
        return []
    shown = [item for item in found if start[:1] == "." or not item.name.startswith(".")]
    names = [
        f"{folder}{item.name}/" if item.is_dir() else f"{folder}{item.name}"
        for item in shown
        if item.is_dir() or item.name.endswith(suffixes)
    ]
    return _beginning(word, names)
