"""`nanofw explain`: what a configuration chooses, what is on or off, and why."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from nanofw.cli.arguments import add_config, console, load, print_json

if TYPE_CHECKING:
    from nanofw.assembly import Choice, Explanation


def main(arguments: list[str]) -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(prog="nanofw explain", description=__doc__)
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="write JSON")
    options = parser.parse_intermixed_args(arguments)
    from nanofw.assembly import select

    explanation = select(load(options.config)).explanation
    if options.json:
        print_json(explanation.as_dict())
    else:
        _print(explanation)
    return 0


def _print(explanation: Explanation) -> None:
    from rich.table import Table

    out = console()
    table = Table("kind", "chosen", "asked", "from", "why, options", title="components")
    for choice in explanation.choices:
        table.add_row(choice.kind, choice.name, choice.requested, choice.origin, _why(choice))
    out.print(table)
    features = Table("feature", "asked", "is", "why", title="features")
    for feature in explanation.features:
        is_on = "on" if feature.value else "off"
        state = f"{is_on} (downgrade)" if feature.is_downgrade else is_on
        features.add_row(feature.name, str(feature.asked), state, feature.reason)
    out.print(features)
    facts = Table("fact", "value", title="facts")
    for key, value in explanation.facts.items():
        facts.add_row(key, _fact(key, value))
    out.print(facts)
    for note in explanation.notes:
        out.print(f"note: {note}")


def _why(choice: Choice) -> str:
    passed = [f"not {name}: {reason}" for name, reason in choice.passed_over]
    options = [f"{key}: {value}" for key, value in choice.options.items()]
    return "\n".join([*passed, ", ".join(options)] if options else passed)


def _fact(key: str, value: Any) -> str:
    if "bytes" in key:
        return f"{value:,} ({value / 2**20:,.4g} MiB)"
    return f"{value:,}" if isinstance(value, int) else str(value)
