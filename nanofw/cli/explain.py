"""`nanofw explain`: what a configuration chooses, what is on or off, and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nanofw.cli import ExitCode
from nanofw.cli.arguments import add_config, load
from nanofw.cli.tables import console, print_json, readable_bytes, table
from nanofw.narrowing import is_list
from nanofw.plugins.capabilities import CAPABILITIES

if TYPE_CHECKING:
    from nanofw.assembly import Choice, Explanation, Feature

_MEMORY = {
    "weight_bytes": "weights",
    "activation_bytes": "largest step, from shapes",
    "graph_bytes": "CUDA graphs, from shapes",
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
    from nanofw.assembly import graph_sizes, memory_estimate, select
    from nanofw.errors import NanofwError

    selection = select(load(options.config))
    try:
        memory = memory_estimate(selection)
    except NanofwError as error:  # what was chosen is worth showing all the same
        memory = {"problem": str(error)}
    try:
        graphs = graph_sizes(selection)
    except NanofwError as error:
        graphs = [{"graphs": "problem", "count": 0, "sizes": str(error)}]
    if options.json:
        content = {**selection.explanation.as_dict(), "memory": memory, "graphs": list(graphs)}
        print_json(content)
    else:
        _print(selection.explanation, memory, graphs)
    return ExitCode.OK


def _print(
    explanation: Explanation,
    memory: Mapping[str, object] | None,
    graphs: Sequence[Mapping[str, object]],
) -> None:
    from rich.table import Table

    out = console()
    components = Table.grid(padding=(0, 2, 0, 0))  # no columns to squeeze at 80 characters
    for choice in explanation.choices:
        components.add_row(choice.kind, "\n".join([_chosen(choice), *_why(choice)]))
    out.print(components)
    out.print()
    features = [_feature(feature) for feature in explanation.features]
    out.print(table("features", ("feature", "asked", "is", "why"), features))
    if graphs:
        rows = [tuple(str(item[key]) for key in ("graphs", "count", "sizes")) for item in graphs]
        out.print(table("CUDA graphs", ("of", "graphs", "sizes"), rows))
    facts = [(key, _fact(key, value)) for key, value in explanation.facts.items()]
    out.print(table("facts", ("fact", "value"), facts))
    if memory is not None:
        keys = [key for key in [*_MEMORY, *sorted(set(memory) - set(_MEMORY))] if key in memory]
        estimate = [(_MEMORY.get(key, key), _fact(key, memory[key])) for key in keys]
        out.print(table("memory of each rank", ("memory", "estimate"), estimate))
    for note in (*explanation.notes, *_short_pool(explanation, memory)):
        out.print(f"note: {note}")


def _short_pool(explanation: Explanation, memory: Mapping[str, object] | None) -> list[str]:
    """Whether the pool that would be made has no room for the longest request."""
    num_tokens, longest = (memory or {}).get("num_kv_tokens"), explanation.facts["max_model_len"]
    if not isinstance(num_tokens, int) or num_tokens + 1 >= longest:
        return []
    return [f"the pool would have room for {num_tokens:,} tokens, max_model_len is {longest:,}"]


def _feature(feature: Feature) -> tuple[str, str, str, str]:
    is_on = "on" if feature.value else "off"
    state = f"{is_on} (downgrade)" if feature.is_downgrade else is_on
    return feature.name, str(feature.asked).lower(), state, feature.reason


def _chosen(choice: Choice) -> str:
    asked = f" (asked for: {choice.requested})" if choice.requested != choice.name else ""
    return f"{choice.name}{asked} of {choice.origin}"


def _why(choice: Choice) -> list[str]:
    lines = [f"not {name}: {reason}" for name, reason in choice.passed_over]
    options = [f"{key}: {_yaml(value)}" for key, value in choice.options.items()]
    if options:
        lines.append("options: " + ", ".join(options))
    claimed = claims(choice.claims)
    if claimed:
        lines.append("claims: " + ", ".join(claimed))
    return lines


def _yaml(value: object) -> str:
    """A value as it is written in a configuration: `null`, not `None`."""
    return json.dumps(value, ensure_ascii=False, default=str)


def claims(capabilities: Mapping[str, object]) -> list[str]:
    """What a component claims, a short phrase for each capability."""
    return [_claim(key, value) for key, value in capabilities.items() if _is_shown(key, value)]


def _is_shown(key: str, value: object) -> bool:
    return value is not False and (key not in CAPABILITIES or CAPABILITIES[key].is_shown)


def _claim(key: str, value: object) -> str:
    if value is True:
        return key
    if is_list(value):
        return f"{key} {'/'.join(map(str, value))}"
    return f"{key} {value}"


def _fact(key: str, value: object) -> str:
    if "bytes" in key and isinstance(value, int):
        return f"{readable_bytes(value)} ({value:,} bytes)"
    return f"{value:,}" if isinstance(value, int) else str(value)
