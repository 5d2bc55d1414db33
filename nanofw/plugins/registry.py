"""What a run may choose from: the plugins that are installed, and local files that it names.

Discovery reads metadata; only local files are imported. The registry is a frozen value, built by
a function, so that tests build their own.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanofw.contracts.kinds import KINDS
from nanofw.errors import (
    ConfigError,
    DuplicatePlugin,
    PluginError,
    PluginLoadError,
    UnknownPlugin,
    misspelt,
    near,
    shown,
)
from nanofw.plugins.checks import check_versions
from nanofw.plugins.component import describe_module, guarded
from nanofw.plugins.discovery import Entry, discover, normalized
from nanofw.plugins.local import LocalModule, local_modules, told_apart

ENVIRONMENT_VARIABLE = "NANOFW_PLUGINS"


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
                `plugins.load` is not an accident, and stays an error.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """The section `plugins` of a configuration.

    Attributes:
        only: distributions or `KIND.NAME`s that are looked at beside the built-ins; None: all.
        disable: distributions or `KIND.NAME`s that no run may choose.
        load: local files or folders.
        require: distribution -> version specifier that must hold.
        override: `KIND.NAME` -> the distribution that is meant.
    """

    only: tuple[str, ...] | None = None
    disable: tuple[str, ...] = ()
    load: tuple[Path, ...] = ()
    require: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    override: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


def build_registry(
    settings: PluginSettings | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    search_path: Sequence[str] | None = None,
) -> Registry:
    """Discover, narrow, and check what the settings demand.

    Imports nothing but the local files of `settings.load`.

    Args:
        environ: where `NANOFW_PLUGINS` is read; None: the process's environment.
        search_path: folders to search for metadata; None: `sys.path`.
    """
    settings = settings or PluginSettings()
    found = discover(search_path)
    notes = list(found.notes)
    installed = {entry.provider for entry in found.entries}
    entries = [*found.entries, *_local_entries(settings.load, notes, installed)]
    check_versions(settings.require, found, search_path)
    left_out: list[tuple[Entry, str]] = []
    for setting, patterns in _allow_lists(settings, os.environ if environ is None else environ):
        _check_patterns(setting, patterns, entries)
        entries = _narrow(entries, setting, patterns, left_out)
    entries, warnings = _without_disabled(entries, settings.disable, left_out)
    registry = Registry(
        entries=tuple(entries),
        left_out=tuple(left_out),
        overrides=dict(settings.override),
        notes=(*notes, *warnings),
        warnings=tuple(warnings),
        searched=found.searched,
    )
    _check_overrides(registry, settings.override)
    return registry


def _allow_lists(
    settings: PluginSettings, environ: Mapping[str, str]
) -> Iterable[tuple[str, Sequence[str]]]:
    if settings.only is not None:
        yield "plugins.only", settings.only
    if (names := environ.get(ENVIRONMENT_VARIABLE)) is not None:
        yield ENVIRONMENT_VARIABLE, [name.strip() for name in names.split(",") if name.strip()]


def _check_patterns(setting: str, patterns: Iterable[str], entries: Sequence[Entry]) -> None:
    for pattern in patterns:
        if not any(matches(entry, pattern) for entry in entries):
            known = known_patterns(entries)
            raise UnknownPlugin(
                f"{setting} names {pattern!r}, which is not installed{near(pattern, known)}\n"
                f"  known: {', '.join(known)}"
            )


def _narrow(
    entries: Sequence[Entry],
    setting: str,
    patterns: Sequence[str],
    left_out: list[tuple[Entry, str]],
) -> list[Entry]:
    """Built-ins, local files (named one by one already) and what the patterns allow."""
    kept: list[Entry] = []
    for entry in entries:
        always = entry.is_builtin or entry.path is not None
        if always or any(matches(entry, pattern) for pattern in patterns):
            kept.append(entry)
        else:
            left_out.append((entry, setting))
    return kept


def _without_disabled(
    entries: list[Entry], patterns: Sequence[str], left_out: list[tuple[Entry, str]]
) -> tuple[list[Entry], list[str]]:
    """The entries that no pattern of `plugins.disable` means; warnings of patterns without one."""
    warnings: list[str] = []
    for pattern in patterns:
        taken = [entry for entry in entries if matches(entry, pattern)]
        if not taken:
            known = known_patterns([*entries, *(entry for entry, _ in left_out)])
            hint = near(pattern, known)
            warnings.append(f"plugins.disable: {pattern!r} is not installed{hint}")
        left_out += [(entry, "plugins.disable") for entry in taken]
        entries = [entry for entry in entries if entry not in taken]
    return entries, warnings


def _check_overrides(registry: Registry, override: Mapping[str, str]) -> None:
    for identifier, provider in override.items():
        kind, _, name = identifier.partition(".")
        try:
            registry.find(kind, f"{provider}:{name}")
        except PluginError as error:
            raise ConfigError(str(error), key=f"plugins.override.{identifier}") from None


def _local_entries(
    paths: Iterable[Path], notes: list[str], installed: Collection[str]
) -> list[Entry]:
    """The entries of `plugins.load`; a file that is named twice counts once."""
    entries: list[Entry] = []
    for index, path in enumerate(paths):
        try:
            found = load_local(path, notes)
        except PluginLoadError:
            raise
        except (PluginError, OSError) as error:
            raise ConfigError(str(error), key=f"plugins.load[{index}]") from None
        entries += [entry for entry in found if entry not in entries]
    names = told_apart({entry.path for entry in entries if entry.path}, installed)
    return [
        dataclasses.replace(entry, provider=names[entry.path]) if entry.path else entry
        for entry in entries
    ]


def load_local(path: Path, notes: list[str] | None = None) -> list[Entry]:
    """The entries of a local file or folder: executes it, at most once in a process.

    Args:
        notes: takes the files of a folder that fail; None: they raise, as a file alone does.
    """
    entries: list[Entry] = []
    modules = local_modules(path)
    for local in modules:
        try:
            entries += _entries_of(local)
        except PluginLoadError as error:
            if notes is None or len(modules) == 1:
                raise
            notes.append(str(error))
    return entries


def _entries_of(local: LocalModule) -> list[Entry]:
    module = guarded(local.load, str(local.path), "import")
    return [
        Entry(
            kind=plugin.kind,
            name=plugin.name,
            module=local.name,
            provider=local.path.stem,
            version=f"sha256:{local.digest}",
            path=local.path,
        )
        for plugin in describe_module(module, str(local.path))
    ]
