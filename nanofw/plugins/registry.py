"""What a run may choose from: a frozen value, built by a function; tests build their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nanofw.contracts.kinds import KINDS
from nanofw.errors import DuplicatePlugin, UnknownPlugin, misspelt, near, shown
from nanofw.plugins.discovery import Entry, normalized


@dataclass(frozen=True, slots=True)
class Registry:
    """The entries of every kind. Nothing is imported to make or to ask it.

    Attributes:
        entries: those that a run may name, in the order of discovery.
        left_out: entries that a setting took away, and the setting that did.
        overrides: `KIND.NAME` -> provider that is meant when several have the name.
        notes: sentences about metadata that was passed over.
        warnings: those of the notes that a run should hear of: a setting that meant nothing.
        searched: distributions that offer plugins.
    """

    entries: tuple[Entry, ...]
    left_out: tuple[tuple[Entry, str], ...] = ()
    overrides: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()

    def names(self, kind: str) -> list[str]:
        """Names of a kind, sorted."""
        return sorted({entry.name for entry in self.entries if entry.kind == kind})

    def providers(self, kind: str, name: str) -> list[Entry]:
        """All entries with that name, by provider: an order that no installation changes."""
        found = [entry for entry in self.entries if entry.kind == kind and entry.name == name]
        return sorted(found, key=lambda entry: entry.origin)

    def find(self, kind: str, name: str, *, by_default: bool = False) -> Entry:
        """The one entry that `name` means; `distribution:name` says whose.

        Args:
            by_default: the name is nanofw's own default, not a user's: of several installed
                packages that offer it, nanofw itself is meant. A local file that a run names in
                `plugins.load` is no accident, and stays an error.

        Raises:
            UnknownPlugin: no entry has the name, with near matches and what was searched; or a
                setting took it away, with the setting.
            DuplicatePlugin: several offer it and nothing says which is meant.
        """
        if kind not in KINDS:
            raise UnknownPlugin(f"no kind {kind!r}{near(kind, KINDS)}; kinds: {', '.join(KINDS)}")
        provider, _, bare = name.rpartition(":")
        found = self.providers(kind, bare)
        if not found:
            raise UnknownPlugin(self._unknown(kind, bare))
        wanted = provider or (self.overrides or {}).get(f"{kind}.{bare}", "")
        if wanted:
            found = self._of_provider(found, wanted)
        elif by_default and not any(entry.path for entry in found):
            found = [entry for entry in found if entry.is_builtin] or found
        if len(found) > 1:
            raise DuplicatePlugin(_duplicate(found))
        return found[0]

    def _of_provider(self, found: list[Entry], provider: str) -> list[Entry]:
        exact = [entry for entry in found if entry.provider == provider]
        chosen = exact or [entry for entry in found if _same(entry.provider, provider)]
        if not chosen:
            entry = found[0]
            known = [item.provider for item in found]
            raise UnknownPlugin(
                f"{provider!r} offers no {entry.kind} {entry.name!r}{near(provider, known)}; "
                f"offered by: {', '.join(item.origin for item in found)}"
            )
        return chosen

    def _unknown(self, kind: str, name: str) -> str:
        for entry, setting in self.left_out:
            if entry.kind == kind and entry.name == name:
                return f"{kind} {name!r} of {entry.origin} is left out by {setting}"
        known = self.names(kind)
        hint = misspelt(name, known) if kind == "model" else near(name, known)
        lines = [f"no {kind} {shown(name)}{hint}"]
        lines.append(f"known: {', '.join(known) or 'none'}")
        lines.append(f"searched: {', '.join(self.searched) or 'no distribution offers plugins'}")
        return "\n  ".join([*lines, *self.notes])


def _duplicate(found: list[Entry]) -> str:
    entry = found[0]
    origins = " and by ".join(item.origin for item in found)
    choices = " or ".join(f"'{item.provider}:{item.name}'" for item in found)
    theirs = next((item for item in found if not item.is_builtin), entry)
    return (
        f"{entry.kind} {entry.name!r} is provided by {origins}\n"
        f"  write name: {choices}, or set plugins.override: {{{entry.id}: {theirs.provider}}}"
    )


def _same(left: str, right: str) -> bool:
    return normalized(left) == normalized(right)


def matches(entry: Entry, pattern: str) -> bool:
    """Whether a pattern of `plugins.only` or `plugins.disable` means the entry.

    A pattern is the name of a distribution (of a local file: its stem), or `KIND.NAME`.
    """
    return pattern == entry.id or _same(pattern, entry.provider)


def known_patterns(entries: Iterable[Entry]) -> list[str]:
    """Everything that a pattern could have meant."""
    return sorted({text for entry in entries for text in (entry.provider, entry.id)})
