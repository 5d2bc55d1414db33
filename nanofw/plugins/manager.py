"""From settings to a registry, and from an entry to its descriptor: the only user of pluggy.

Discovery reads metadata. A manifest is imported when one of its plugins has been chosen, once in
a process, guarded on its own, and registered with a plugin manager of its own: what does not
validate leaves no trace.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import pluggy

from nanofw.contracts.kinds import KINDS
from nanofw.errors import ConfigError, PluginError, PluginLoadError, UnknownPlugin, near
from nanofw.plugins.checks import check_api, check_descriptor, check_versions
from nanofw.plugins.component import guarded
from nanofw.plugins.descriptor import Plugin
from nanofw.plugins.discovery import Entry, discover
from nanofw.plugins.hookspecs import HOOKS
from nanofw.plugins.local import LocalModule, digest, local_modules, shown_module, told_apart
from nanofw.plugins.registry import Registry, known_patterns, matches

ENVIRONMENT_VARIABLE = "NANOFW_PLUGINS"

T = TypeVar("T")

_described: WeakKeyDictionary[ModuleType, tuple[Plugin, ...]] = WeakKeyDictionary()
"""Descriptors of the manifests that this process has loaded: each hook is called once."""


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


def load_plugin(entry: Entry) -> Plugin:
    """The descriptor of an entry; imports its manifest on the first call.

    Raises:
        PluginLoadError: the manifest fails to import or to validate, with its own traceback and
            its distribution, or does not describe what the entry point promises.
        ApiMismatch: it was written against another version of its contract.
    """
    plugins = describe(entry)
    same_kind = [plugin for plugin in plugins if plugin.kind == entry.kind]
    found = [plugin for plugin in same_kind if plugin.name == entry.name]
    if len(found) != 1:
        offers = ", ".join(f"{plugin.kind}.{plugin.name}" for plugin in plugins) or "nothing"
        count = "does not describe it" if not found else f"describes it {len(found)} times"
        raise PluginLoadError(
            f"{entry.origin}: entry point {entry.id!r} names {entry.module}, which {count}; "
            f"it describes {offers}"
        )
    check_api(found[0], entry)
    return found[0]


def describe(entry: Entry) -> tuple[Plugin, ...]:
    """All descriptors of an entry's manifest module. Raises `PluginLoadError`."""
    module = guarded(lambda: _import(entry), entry.label, "import")
    return _describe_module(module, entry.label)


def _import(entry: Entry) -> ModuleType:
    if entry.path is None:
        return importlib.import_module(entry.module)
    return LocalModule(entry.path, entry.version.removeprefix("sha256:")).load()


def _describe_module(module: ModuleType, what: str) -> tuple[Plugin, ...]:
    if module not in _described:
        _described[module] = guarded(lambda: _call_hooks(module), what, "describe its plugins")
    return _described[module]


def _call_hooks(module: ModuleType) -> tuple[Plugin, ...]:
    """Register a manifest on its own, validate its hooks, and call each of them once."""
    _check_hooks(module)
    manager = pluggy.PluginManager("nanofw")
    manager.add_hookspecs(HOOKS)
    manager.register(module, name=module.__name__)
    manager.check_pending()
    plugins: list[Plugin] = []
    for kind in KINDS:
        for answer in cast("list[Any]", getattr(manager.hook, kind)()):
            items = cast("Sequence[Any]", answer if isinstance(answer, (list, tuple)) else [answer])
            plugins += [check_descriptor(item, kind, module.__name__) for item in items]
    ids = [f"{plugin.kind} {plugin.name!r}" for plugin in plugins]
    if twice := sorted({name for name in ids if ids.count(name) > 1}):
        raise PluginError(f"{module.__name__} describes {', '.join(twice)} more than once")
    if not plugins:
        raise PluginError(
            f"{shown_module(module.__name__)} describes no plugin: it needs a function with "
            f"@hookimpl that is named after a kind ({', '.join(KINDS)}) and returns a Plugin"
        )
    return tuple(plugins)


def _check_hooks(module: ModuleType) -> None:
    for name, value in vars(module).items():
        if hasattr(value, "nanofw_impl") and name not in KINDS:
            raise PluginError(
                f"{shown_module(module.__name__)}: @hookimpl {name}: no kind {name!r}"
                f"{near(name, KINDS)}; kinds: {', '.join(KINDS)}"
            )


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
        for plugin in _describe_module(module, str(local.path))
    ]


def prepare(entries: Iterable[Entry], search_path: Sequence[str] | None = None) -> list[Plugin]:
    """In another process of a run: load the same plugins in the same versions.

    Entries are plain data and travel by pickle. Raises `PluginError` when this process finds
    another version of a distribution, or other content in a local file.
    """
    entries = list(entries)
    installed = {entry.id + "@" + entry.provider: entry for entry in discover(search_path).entries}
    for entry in entries:
        if entry.path is not None:
            here = f"sha256:{digest(entry.path)}" if entry.path.exists() else "no such file"
        else:
            other = installed.get(entry.id + "@" + entry.provider)
            here = other.version if other else "not installed"
        if here != entry.version:
            raise PluginError(
                f"{entry.kind} {entry.name!r}: the run uses {entry.origin} ({entry.version}), "
                f"this process finds: {here}"
            )
    return [load_plugin(entry) for entry in entries]
