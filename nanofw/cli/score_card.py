"""`nanofw plugins test KIND NAME`: a plugin held to its contract, one row for each check."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanofw.cli import ExitCode
from nanofw.cli.arguments import CONFIG_WORDS, add_config, own_values, registry_of
from nanofw.cli.progress import progress
from nanofw.cli.stdout import stdout
from nanofw.cli.tables import console, print_json, table
from nanofw.errors import ConfigError, PluginLoadError

if TYPE_CHECKING:
    from nanofw.config.validation import Values
    from nanofw.plugins import Component, Registry
    from nanofw.testing import CheckResult

LIMIT_S = 120.0
LONGEST_LIMIT_S = 86_400.0
EPILOG = """\
options.KEY=VALUE sets an option of the plugin, checks.KEY=VALUE an attribute of
the checks, for example options.weight=2 or checks.device=cuda; other words are a
configuration, whose plugins.load names local files. Exit code 1: a check failed, or
did not end in time; 2: the plugin is not there, or cannot be used here; 3: it cannot
be loaded.
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to those of `nanofw plugins`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "test",
        help="hold one plugin to its contract",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", metavar="KIND")
    parser.add_argument("name", metavar="NAME")
    add_config(parser)
    parser.usage = (
        f"{parser.prog} KIND NAME {CONFIG_WORDS} [options.KEY=VALUE ...] [checks.KEY=VALUE ...] "
        "[OPTIONS]"
    )
    parser.add_argument(
        "--target", metavar="MODULE:CLASS",
        help="test this class in place of the plugin's, with the plugin's options and claims; "
        "MODULE may be a file",
    )  # fmt: skip
    parser.add_argument(
        "--limit-s", type=float, default=LIMIT_S, metavar="SECONDS",
        help="how long a check may take before it has failed (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="write JSON")
    return parser


def main(options: argparse.Namespace) -> int:
    """Entry of the command."""
    from nanofw.testing.score_card import check_names, score
    from nanofw.testing.time_limit import TookTooLong, time_limit

    if not 0 < options.limit_s <= LONGEST_LIMIT_S:
        wanted = f"must be a number of seconds, at most {LONGEST_LIMIT_S:g}"
        raise ConfigError(f"{wanted}, not {options.limit_s:g}", key="--limit-s")
    try:
        with time_limit(options.limit_s):
            component, checks = _bound(options)
    except TookTooLong as error:
        what = f"{options.kind} {options.name!r} cannot be loaded"
        raise PluginLoadError(f"{what}: {error}") from None
    names, results = check_names(checks), list["CheckResult"]()
    with progress() as report:
        for number, name in enumerate(names):
            report(number, len(names), name)
            results.append(score(checks, name, options.limit_s))
        report(len(names), len(names), "")
    _show(component, options, results)
    is_right = all(result.outcome != "failed" for result in results)
    return ExitCode.OK if is_right else ExitCode.BAD_RESULT


def _bound(options: argparse.Namespace) -> tuple[Component, Any]:
    """The plugin, and the checks that make it."""
    from nanofw.testing.suites import bound

    own, values, words = own_values(options.config, "options")
    settings, _, words = own_values(words, "checks")
    component = _component(options, registry_of(words), own, values)
    component.check_target()
    return component, bound(component, settings)


def _component(
    options: argparse.Namespace, registry: Registry, own: dict[str, object], values: Values
) -> Component:
    """The plugin with its options, and perhaps another class than its descriptor names."""
    from nanofw.config.validation import validate
    from nanofw.plugins import KINDS, Component, Plugin, load_plugin
    from nanofw.plugins.checks import missing_requirements
    from nanofw.plugins.component import options_model

    kind, name, target = options.kind, options.name, options.target
    if target is not None and kind in KINDS and name not in registry.names(kind):
        plugin, entry = Plugin(name, target, api=KINDS[kind].api), None
    else:
        entry = registry.find(kind, name)
        plugin = load_plugin(entry)
    if missing := missing_requirements(plugin):
        raise PluginLoadError(f"{kind} {name!r} {missing[0]}")
    model = options_model(plugin, entry)
    if model is None and own:
        raise ConfigError(f"{kind} {name!r} has no options", key=f"options.{next(iter(own))}")
    made = None if model is None else validate(model, own, values, ("options",))
    if target is not None:
        return Component(plugin=dataclasses.replace(plugin, target=_target(target)), options=made)
    return Component(plugin=plugin, options=made, entry=entry)


def _target(text: str) -> str:
    """`module:Class` of a module on the path or in this folder, or of a file."""
    from nanofw.plugins.component import guarded
    from nanofw.plugins.local import local_modules

    module, colon, name = text.rpartition(":")
    if not (module and colon and name):
        raise ConfigError(f"{text!r} is not of the form MODULE:CLASS", key="--target")
    if not module.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        return text
    local = guarded(lambda: local_modules(Path(module))[0], module, "import")
    guarded(local.load, module, "import")
    return f"{local.name}:{name}"


def _show(
    component: Component, options: argparse.Namespace, results: Sequence[CheckResult]
) -> None:
    counts = {
        outcome: sum(result.outcome == outcome for result in results)
        for outcome in ("passed", "failed", "skipped")
    }
    if options.json:
        plain = {
            "kind": component.kind,
            "name": component.name,
            "origin": options.target or (component.entry.origin if component.entry else None),
            **counts,
            "checks": [dataclasses.asdict(result) for result in results],
        }
        print_json(plain)
        return
    lines = [
        (result.name.removeprefix("test_").replace("_", " "), result.outcome,
         f"{result.seconds:.1f} s", result.seen)
        for result in results
    ]  # fmt: skip
    tested = f", as {options.target}" if options.target else ""
    out = console()
    out.print(table(f"{component.label}{tested}", ("check", "", "time", "what was seen"), lines))
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()), file=stdout())
