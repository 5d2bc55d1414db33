"""`nanofw explain`: what a configuration chooses, what is on or off, and why."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from nanofw.cli.arguments import add_config, console, load, print_json, readable_bytes

if TYPE_CHECKING:
    from nanofw.assembly import Choice, Explanation

_MEMORY = {
    "weight_bytes": "weights",
    "activation_bytes": "largest step, from shapes",
    "kv_bytes_per_block": "KV of one block",
    "free_bytes": "free on the device now",
    "num_blocks": "blocks of KV",
    "num_kv_tokens": "tokens of KV",
    "kv_bytes": "KV in all",
    "problem": "does not fit",
}
"""Names of an estimate, in the order in which they are shown."""


def main(arguments: list[str]) -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(prog="nanofw explain", description=__doc__)
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="write JSON")
    options = parser.parse_intermixed_args(arguments)
    from nanofw.assembly import memory_estimate, select
    from nanofw.errors import NanofwError

    selection = select(load(options.config))
    try:
        memory = memory_estimate(selection)
    except NanofwError as error:  # what was chosen is worth showing all the same
        memory = {"problem": str(error)}
    if options.json:
        print_json({**selection.explanation.as_dict(), "memory": memory})
    else:
        _print(selection.explanation, memory)
    return 0


def _print(explanation: Explanation, memory: Mapping[str, Any] | None) -> None:
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
    if memory is not None:
        estimate = Table("memory", "estimate", title="memory of each rank")
        for key in [*_MEMORY, *(set(memory) - set(_MEMORY))]:
            if key in memory:
                estimate.add_row(_MEMORY.get(key, key), _fact(key, memory[key]))
        out.print(estimate)
    for note in explanation.notes:
        out.print(f"note: {note}")


def _why(choice: Choice) -> str:
    lines = [f"not {name}: {reason}" for name, reason in choice.passed_over]
    options = [f"{key}: {value}" for key, value in choice.options.items()]
    if options:
        lines.append("options: " + ", ".join(options))
    claims = [_claim(key, value) for key, value in choice.claims.items() if _is_shown(key, value)]
    if claims:
        lines.append("claims: " + ", ".join(claims))
    return "\n".join(lines)


def _is_shown(key: str, value: Any) -> bool:
    return value is not False and key not in ("needs", "estimate")


def _claim(key: str, value: Any) -> str:
    if value is True:
        return key
    if isinstance(value, list | tuple):
        return f"{key} {'/'.join(map(str, cast('Sequence[Any]', value)))}"
    return f"{key} {value}"


def _fact(key: str, value: Any) -> str:
    if "bytes" in key:
        return f"{readable_bytes(value)} ({value:,} bytes)"
    return f"{value:,}" if isinstance(value, int) else str(value)
