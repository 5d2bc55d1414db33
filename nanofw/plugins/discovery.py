"""Which plugins are installed, from metadata alone: nothing of theirs is imported."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

from nanofw.contracts.kinds import KINDS
from nanofw.errors import near

if TYPE_CHECKING:
    from packaging.version import Version

GROUP = "nanofw"
BUILTIN = "nanofw"
"""Name of the distribution that carries the built-ins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One `KIND.NAME` that a distribution or a local file provides.

    Attributes:
        module: the manifest module.
        provider: distribution name; of a local file, its stem.
        version: the distribution's version; of a local file, `sha256:` and its hash.
        path: the local file or folder, or None.
    """

    kind: str
    name: str
    module: str
    provider: str
    version: str
    path: Path | None = None

    @property
    def id(self) -> str:
        return f"{self.kind}.{self.name}"

    @property
    def origin(self) -> str:
        """For messages: `nanofw-deadline 0.1.0`, or the local file."""
        return str(self.path) if self.path else f"{self.provider} {self.version}"

    @property
    def label(self) -> str:
        """For messages: `scheduler 'deadline' of nanofw-deadline 0.1.0`."""
        return f"{self.kind} {self.name!r} of {self.origin}"

    @property
    def is_builtin(self) -> bool:
        return self.path is None and normalized(self.provider) == BUILTIN


@dataclass(frozen=True, slots=True)
class Discovery:
    """What the metadata says.

    Attributes:
        entries: in the order of the search path.
        notes: sentences about metadata that was passed over, stale or malformed.
        searched: name and version of each distribution that offers plugins.
    """

    entries: tuple[Entry, ...]
    notes: tuple[str, ...]
    searched: tuple[str, ...]


def normalized(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def discover(search_path: Sequence[str] | None = None) -> Discovery:
    """Read the entry points of the group `nanofw` on `search_path` (default: `sys.path`)."""
    broken: list[str] = []
    offering = [item for item in _distributions(search_path) if _offers_plugins(item, broken)]
    chosen, notes = _current(offering)
    notes += broken
    entries: list[Entry] = []
    searched: list[str] = []
    for dist in chosen:
        name, version = dist.name, dist.version  # each parses all of the metadata
        searched.append(f"{name} {version}")
        for point in dist.entry_points.select(group=GROUP):
            entry = _entry(name, version, point)
            if isinstance(entry, str):
                notes.append(entry)
            elif entry not in entries:
                entries.append(entry)
    return Discovery(tuple(entries), tuple(notes), tuple(searched))


def _distributions(search_path: Sequence[str] | None) -> Iterable[Distribution]:
    if search_path is None:
        return importlib.metadata.distributions()
    return importlib.metadata.distributions(path=list(search_path))


def _offers_plugins(dist: Distribution, broken: list[str]) -> bool:
    """Cheap look at the text, so that the rest of an environment is not parsed.

    Broken metadata of one distribution does not hide the plugins of others: it is noted.
    """
    try:
        text = dist.read_text("entry_points.txt")
        if text is None or f"[{GROUP}]" not in text:
            return False
        has_name = bool(dist.name) and dist.version is not None  # pyright: ignore[reportUnnecessaryComparison]
        for point in dist.entry_points.select(group=GROUP):
            _ = point.module, point.attr
    except Exception as error:
        broken.append(f"{_metadata_folder(dist)} is passed over: its metadata is broken: {error}")
        return False
    if not has_name:
        broken.append(f"{_metadata_folder(dist)} is passed over: it has no name or no version")
    return has_name


def _metadata_folder(dist: Distribution) -> Path:
    return Path(str(getattr(dist, "_path", None) or dist.locate_file("")))


def _current(offering: list[Distribution]) -> tuple[list[Distribution], list[str]]:
    """One distribution per name, as an import would find it; notes on the others.

    A folder earlier on the path wins, as for imports. Within one folder (an upgrade that left
    its predecessor's metadata behind) the higher version wins.
    """
    by_name: dict[str, list[Distribution]] = {}
    for dist in offering:
        by_name.setdefault(normalized(dist.name), []).append(dist)
    chosen: list[Distribution] = []
    notes: list[str] = []
    for found in by_name.values():
        best = found[0]
        for other in found[1:]:
            if _folder(other) == _folder(best) and _version(other) > _version(best):
                best = other
        chosen.append(best)
        notes += [_stale_note(best, other) for other in found if _stale(best, other)]
    return chosen, notes


def _folder(dist: Distribution) -> Path:
    return Path(str(dist.locate_file(""))).resolve()


def _version(dist: Distribution) -> Version:
    from packaging.version import InvalidVersion, Version  # rarely needed

    try:
        return Version(dist.version)
    except (InvalidVersion, TypeError):
        return Version("0")


def _points(dist: Distribution) -> set[tuple[str, str]]:
    return {(point.name, point.value) for point in dist.entry_points.select(group=GROUP)}


def _stale(best: Distribution, other: Distribution) -> bool:
    """Whether a second copy of the metadata says something else than the one in use."""
    if other is best:
        return False
    return other.version != best.version or _points(other) != _points(best)


def _stale_note(best: Distribution, other: Distribution) -> str:
    return (
        f"{other.name} {other.version} in {_folder(other)} is passed over: {best.name} "
        f"{best.version} in {_folder(best)} is in use; uninstall and install it anew if its "
        f"plugins are out of date"
    )


def _entry(provider: str, version: str, point: EntryPoint) -> Entry | str:
    kind, dot, name = point.name.partition(".")
    place = f"{provider} {version}: entry point {point.name!r}"
    if not dot or not name:
        return f"{place} is not of the form KIND.NAME (quoted in TOML)"
    if kind not in KINDS:
        return f"{place}: no kind {kind!r}{near(kind, KINDS)}; kinds: {', '.join(KINDS)}"
    if point.attr:
        return f"{place} names {point.value!r}: it must name the manifest module alone"
    return Entry(kind=kind, name=name, module=point.module, provider=provider, version=version)
