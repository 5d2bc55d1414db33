"""`nanofw plugins list | show | test | new`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nanofw.cli import ExitCode, scaffold, score_card
from nanofw.cli.arguments import CONFIG_WORDS, add_config, registry_of
from nanofw.cli.explain import claims
from nanofw.cli.stdout import stdout
from nanofw.cli.tables import console, print_json, table
from nanofw.narrowing import is_list, is_object

if TYPE_CHECKING:
    from nanofw.plugins.status import PluginStatus


def main(arguments: list[str]) -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(prog="nanofw plugins", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    text = "list every plugin that is installed, or named in plugins.load of a configuration"
    listing = commands.add_parser("list", help="list plugins", description=text)
    add_config(listing)
    listing.add_argument("--json", action="store_true", help="write JSON")
    listing.add_argument(
        "--check",
        action="store_true",
        help="import every one, look for mistakes; exit code 3 when one fails",
    )
    text = "show one plugin that is installed, or named in plugins.load of a configuration"
    showing = commands.add_parser("show", help="show one plugin", description=text)
    showing.add_argument("kind", metavar="KIND")
    showing.add_argument("name", metavar="NAME")
    add_config(showing)
    showing.usage = f"{showing.prog} KIND NAME {CONFIG_WORDS} [OPTIONS]"
    showing.add_argument("--json", action="store_true", help="write JSON")
    testing, making = score_card.add_parser(commands), scaffold.add_parser(commands)
    for sub, action in (
        (listing, _list), (showing, _show), (testing, score_card.main), (making, scaffold.main),
    ):  # fmt: skip
        sub.set_defaults(parser=sub, action=action)
    known, _ = parser.parse_known_args(
        [*arguments[:1], *(["", ""] if arguments[:1] in (["show"], ["test"], ["new"]) else [])]
    )
    options: argparse.Namespace = known.parser.parse_intermixed_args(arguments[1:])
    return known.action(options)


def _list(options: argparse.Namespace) -> int:
    from nanofw.plugins.status import statuses

    registry = registry_of(options.config)
    found = statuses(registry, check=options.check)
    if options.json:
        plain = {"plugins": [status.as_dict() for status in found], "notes": list(registry.notes)}
        print_json(plain)
    else:
        _print(found, registry.notes)
    failed = [status for status in found if status.state in ("failed", "missing requirement")]
    return ExitCode.FAILED if options.check and failed else ExitCode.OK


def _print(found: list[PluginStatus], notes: tuple[str, ...]) -> None:
    out = console()
    out.print(table(None, ("kind", "name", "from", "state", "what"), map(_line, found)))
    for status in found:
        for finding in status.findings:
            label = status.entry.label
            text = finding.text if label in finding.text else f"{label}: {finding.text}"
            out.print(f"\n{finding.level} ({finding.rule}): {text}")
    for note in notes:
        out.print(f"note: {note}")


def _line(status: PluginStatus) -> tuple[str, str, str, str, str]:
    entry = status.entry
    version = entry.version[:19] if entry.path else entry.version
    place = str(entry.path) if entry.path else entry.provider
    told = status.summary if status.state == "ok" else status.error or status.summary
    text = told.partition("\n")[0]
    return entry.kind, entry.name, f"{place} {version}", status.state, text


def _show(options: argparse.Namespace) -> int:
    from nanofw.plugins.status import description

    plain = description(registry_of(options.config).find(options.kind, options.name))
    if options.json:
        print_json(plain)
        return ExitCode.OK
    for key, value in plain.items():
        if key != "options":
            print(f"{key:<14} {_plain(value)}", file=stdout())
    print("options" if plain["options"] else "options        none", file=stdout())
    for option in plain["options"]:
        print(f"  {option['key']}: {option['type']} = {option['default']}", file=stdout())
        if option["text"]:
            print(f"      {' '.join(option['text'].split())}", file=stdout())
    return ExitCode.OK


def _plain(value: object) -> str:
    """Claims and lists as `explain` writes them, without Python's brackets."""
    if is_object(value):
        return ", ".join(claims(value)) or "none"
    if is_list(value):
        return ", ".join(map(str, value)) or "none"
    return str(value)
