"""`nanofw config show | validate | schema | presets`."""

from __future__ import annotations

import argparse
import contextlib

from nanofw.cli import ExitCode
from nanofw.cli.arguments import add_config, load
from nanofw.cli.stdout import claim, stdout
from nanofw.cli.tables import print_json
from nanofw.errors import NanofwError


def main(arguments: list[str]) -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(prog="nanofw config", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("show", "print the merged configuration"),
        ("validate", "check every key, also the options of the chosen components"),
        (
            "schema",
            "print the JSON Schema for editors, with the options of installed plugins, or of "
            "those that a configuration may choose, its local files included",
        ),
        ("presets", "list the presets"),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        if name != "presets":
            add_config(sub)
        if name == "show":
            sub.add_argument("--sources", action="store_true", help="say where each value is from")
            sub.add_argument("--json", action="store_true", help="write JSON")
        sub.set_defaults(parser=sub)
    known, rest = parser.parse_known_args(arguments[:1])
    options: argparse.Namespace = known.parser.parse_intermixed_args(arguments[1:] + rest)
    commands_by_name = {
        "show": _show,
        "validate": _validate,
        "schema": _schema,
        "presets": _presets,
    }
    return commands_by_name[known.command](options)


def _show(options: argparse.Namespace) -> int:
    from nanofw.assembly import settle_options
    from nanofw.config.show import as_lines, as_records, as_yaml

    loaded = load(options.config)
    with contextlib.suppress(NanofwError):  # a component that is not there is shown, too
        settle_options(loaded)
    if options.json:
        print_json(as_records(loaded) if options.sources else loaded.values.data)
    elif options.sources:
        print("\n".join(as_lines(loaded)), file=stdout())
    else:
        print(as_yaml(loaded), end="", file=stdout())
    return ExitCode.OK


def _validate(options: argparse.Namespace) -> int:
    from nanofw.assembly import check
    from nanofw.cli.inputs import check_prompts

    loaded = load(options.config)
    check_prompts(loaded)
    checked = check(loaded)
    print(f"valid; {', '.join(checked)}", file=stdout())
    return ExitCode.OK


def _schema(options: argparse.Namespace) -> int:
    from nanofw.assembly import json_schema, registry_for
    from nanofw.plugins import build_registry

    claim()
    registry = registry_for(load(options.config)) if options.config else build_registry()
    print_json(json_schema(registry))
    return ExitCode.OK


def _presets(options: argparse.Namespace) -> int:
    from nanofw.config.layers import PRESETS, presets

    for name in presets():
        first = (PRESETS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
        print(f"{name:<14} {first.removeprefix('#').strip()}")
    return ExitCode.OK
