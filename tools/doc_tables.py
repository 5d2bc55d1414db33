"""Writes the tables of the docs that come from the source: kinds, capabilities, rules,
keys of the configuration.

    python tools/doc_tables.py [--check]

A table stands between `<!-- NAME -->` and `<!-- end of NAME -->`. With `--check` nothing is
written: the exit code says whether every page is up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import config_pages
import contract_pages

from nanofw.contracts.kinds import KINDS, Kind
from nanofw.plugins.capabilities import CAPABILITIES
from nanofw.plugins.lint import RULES

DOCS = Path(__file__).parents[1] / "docs"


def versions() -> str:
    """Kind, version and tier."""
    rows = [(kind.name, str(kind.version), kind.tier) for kind in KINDS.values()]
    return table(("kind", "version", "tier"), rows)


def kinds() -> str:
    """What there is to write, and how it is constructed."""
    rows = [
        (kind.name, kind.text, place(kind), ", ".join(bases(kind)), constructed(kind))
        for kind in KINDS.values()
    ]
    return table(("kind", "what it decides", "in the configuration", "class", "made as"), rows)


def capabilities() -> str:
    """Keys, kinds, values, and when a run asks."""
    rows = [
        (f"`{item.key}`", ", ".join(item.kinds), item.value.text, item.text)
        for item in CAPABILITIES.values()
    ]
    return table(("key", "kinds", "value", "asked when"), rows)


def rules() -> str:
    """What `nanofw plugins list --check` looks for."""
    return table(("rule", "level", "finds"), [(rule.name, rule.level, rule.text) for rule in RULES])


def place(kind: Kind) -> str:
    """The section; what is chosen where it names nothing."""
    section = ".".join(kind.section)
    if kind.is_list:
        return f"`{section}`, a list"
    return f"`{section}`" + (f", default `{kind.default}`" if kind.default else "")


def bases(kind: Kind) -> list[str]:
    """The class of a kind, and those that a capability asks for."""
    found = [f"`{kind.base.__name__}`"]
    for item in CAPABILITIES.values():
        if kind.name in item.kinds:
            found += [
                f"`{base.__name__}` with `{item.key}: {value}`"
                for value, base in item.contracts.items()
            ]
    return found


def constructed(kind: Kind) -> str:
    """The call that makes a component."""
    return f"`target(options, {kind.config.__name__})`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


TABLES: dict[str, Callable[[], str]] = {
    "versions": versions,
    "kinds": kinds,
    "capabilities": capabilities,
    "rules": rules,
    "keys of a run": config_pages.run_keys,
    "keys of an experiment": config_pages.experiment_keys,
    "keys of commands": config_pages.command_keys,
    "options of plugins": config_pages.plugin_options,
    "types of requests": partial(contract_pages.types, "requests"),
    "types of steps": partial(contract_pages.types, "steps"),
}


def updated(text: str) -> str:
    """A page with its tables made anew."""
    for name, make in [*TABLES.items(), *_parts()]:
        marks = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        pattern = re.escape(marks[0]) + r".*?" + re.escape(marks[1])
        made = f"{marks[0]}{make()}{marks[1]}"
        text = re.sub(pattern, lambda _, made=made: made, text, flags=re.DOTALL)
    return text


def _parts() -> Iterator[tuple[str, Callable[[], str]]]:
    """The parts of the pages for authors: `methods of scheduler`."""
    for kind in KINDS:
        for name in ("methods", "facts", "claims", "types"):
            yield f"{name} of {kind}", partial(_part, name, kind)


def _part(name: str, kind: str) -> str:
    made = contract_pages.part(name, kind)
    if isinstance(made, str):
        return made
    return table(made[0], made[1:]) if len(made) > 1 else "This kind has no capabilities yet.\n"


def stale_pages() -> list[Path]:
    """The pages whose tables say something else than the source."""
    return [
        page
        for page in sorted(DOCS.rglob("*.md"))
        if updated(text := page.read_text(encoding="utf-8")) != text
    ]


def main(arguments: Sequence[str]) -> int:
    stale = stale_pages()
    for page in stale:
        print(page.relative_to(DOCS.parent))
        if "--check" not in arguments:
            page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
