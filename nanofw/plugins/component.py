"""A plugin that a run has chosen, from its entry to the object; the only user of pluggy.

A manifest is imported when one of its plugins has been chosen, once in a process, guarded on its
own, and registered with a plugin manager of its own: what does not validate leaves no trace.
"""

from __future__ import annotations

import importlib
import inspect
import os
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import pluggy
from pydantic import BaseModel

from nanofw.contracts.hooks import hook_problems
from nanofw.contracts.kinds import KINDS
from nanofw.errors import ConfigError, NanofwError, PluginError, PluginLoadError, near, shown
from nanofw.plugins.capabilities import contract_of, promise_of
from nanofw.plugins.checks import check_api, check_descriptor, check_options_model
from nanofw.plugins.descriptor import Plugin, load_target
from nanofw.plugins.discovery import Entry, discover
from nanofw.plugins.hookspecs import HOOKS
from nanofw.plugins.local import LocalModule, digest, shown_module

T = TypeVar("T")

_described: WeakKeyDictionary[ModuleType, tuple[Plugin, ...]] = WeakKeyDictionary()
"""Descriptors of the manifests that this process has loaded: each hook is called once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A plugin with its validated options.

    Attributes:
        plugin: the descriptor.
        options: an instance of its options model, or None when it has none.
        entry: where it came from; None when a test made it by hand.
    """

    plugin: Plugin
    options: Any = None
    entry: Entry | None = None

    @property
    def kind(self) -> str:
        return self.plugin.kind

    @property
    def name(self) -> str:
        return self.plugin.name

    @property
    def origin_text(self) -> str:
        """For messages: ` of nanofw-deadline 0.1.0`, or nothing when it came from nowhere."""
        return f" of {self.entry.origin}" if self.entry else ""

    @property
    def label(self) -> str:
        """For messages: `scheduler 'deadline' of nanofw-deadline 0.1.0`."""
        return f"{self.kind} {self.name!r}{self.origin_text}"

    def load(self) -> Any:
        """The target itself, imported now. Another process calls `prepare` first."""
        return guarded(lambda: load_target(self.plugin.target), self.label, "import")

    def check_target(self) -> None:
        """Import the target and hold it to its contract as far as that goes without an object.

        Raises:
            PluginLoadError: it cannot be imported or constructed, or lacks what its kind needs;
                names plugin and distribution.
        """
        target, contract = self.load(), contract_of(self.kind, self.plugin.capabilities)
        if isinstance(target, type):
            self._check_class(target, contract)
        self._check_constructor(target)
        if isinstance(target, type):
            self._check_promise(target, contract)
            self._check_hooks(target, contract)

    def _check_class(self, target: type, contract: type) -> None:
        """Raise PluginLoadError where a class does not derive from its contract, or lacks some."""
        if lack := class_lack(target, contract):
            raise PluginLoadError(f"{self.label} does not implement {contract.__name__}: {lack}")

    def _check_hooks(self, kind: type, contract: type) -> None:
        """Raise PluginLoadError where methods are misspelt, misshapen or alone."""
        if problems := hook_problems(kind, _base_of(kind, contract)):
            raise PluginLoadError(f"{self.label}: {'; '.join(problems)}")

    def _check_promise(self, target: type, contract: type) -> None:
        """Raise PluginLoadError where a claim needs an optional method that was not written."""
        promise = promise_of(self.kind, self.plugin.capabilities)
        if promise is not None and getattr(target, promise[1]) is getattr(contract, promise[1]):
            raise PluginLoadError(
                f"{self.label} claims {promise[0]!r}, but does not write {promise[1]}()"
            )

    def _check_constructor(self, target: Any) -> None:
        """Say how components are constructed where the target cannot be called so."""
        if not callable(target):
            raise PluginLoadError(
                f"{self.label}: {self.plugin.target} is {shown(target)}, neither a class nor a "
                "function that makes the component"
            )
        try:
            inspect.signature(target).bind(None, None)
        except TypeError as error:
            raise PluginLoadError(
                f"{self.label} cannot be constructed as target(options, config): {error}"
            ) from None
        except ValueError:
            return  # it has no signature

    def make(self, contract: type[T], config: object) -> T:
        """The component itself: `target(options, config)`, held to its contract.

        Every component of every kind is made here, in whatever process.

        Raises:
            PluginLoadError: it cannot be imported, its constructor failed, or what came out does
                not derive from the contract; names plugin and distribution.
            ConfigError: it needs more memory than there is.
        """
        target = self.load()
        if isinstance(target, type) and not getattr(contract, "_is_protocol", False):
            self._check_class(target, contract)
        self._check_constructor(target)
        passing = (NanofwError, MemoryError)
        try:
            made = guarded(lambda: target(self.options, config), self.label, "start", passing)
        except MemoryError as error:
            reason = f": {error}" if str(error) else ""
            raise ConfigError(
                f"{self.label} needs more memory than there is{reason}. Lower "
                "engine.max_num_seqs, engine.max_num_batched_tokens, engine.max_model_len or "
                "kv_allocator.num_blocks"
            ) from error
        for wanted in (contract, contract_of(self.kind, self.plugin.capabilities)):
            if not isinstance(made, wanted):
                raise PluginLoadError(
                    f"{self.label} does not implement {wanted.__name__}: {_lack(made, wanted)}"
                )
        component = cast("T", made)
        self._check_promise(type(component), contract)
        self._check_hooks(type(component), contract)
        return component


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
    return describe_module(module, entry.label)


def _import(entry: Entry) -> ModuleType:
    if entry.path is None:
        return importlib.import_module(entry.module)
    return LocalModule(entry.path, entry.version.removeprefix("sha256:")).load()


def describe_module(module: ModuleType, what: str) -> tuple[Plugin, ...]:
    """All descriptors of a manifest that was imported; `what` names it in messages."""
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


def options_model(plugin: Plugin, entry: Entry | None = None) -> type[BaseModel] | None:
    """The model that validates a plugin's options; imports it where the manifest names it."""
    options = plugin.options
    if not isinstance(options, str):
        return options
    what = entry.label if entry else f"{plugin.kind} {plugin.name!r}"
    model = guarded(lambda: load_target(options), what, "import its options")
    return guarded(lambda: check_options_model(model, options), what, "check its options")


def _base_of(kind: type, contract: type) -> type:
    """The class of the contract that is nearest to a component's own."""
    contracts = contract.__module__.rpartition(".")[0]
    return next(
        (base for base in kind.__mro__ if base.__module__.startswith(f"{contracts}.")),
        contract,
    )


def _lack(made: object, contract: type) -> str:
    """What keeps an object from being of its contract."""
    if missing := _missing(made, contract):
        return f"it lacks {', '.join(missing)}"
    return f"{type(made).__name__} has its methods, but must derive from it"


def class_lack(target: type, contract: type) -> str:
    """What keeps a class from being of a contract; nothing when it keeps it."""
    if getattr(contract, "_is_protocol", False):  # what it sets in its constructor is not seen
        methods = [name for name in _missing(target, contract) if _is_method(contract, name)]
        return f"it lacks {', '.join(methods)}" if methods else ""
    if issubclass(target, contract):
        abstract = ", ".join(sorted(getattr(target, "__abstractmethods__", ())))
        return f"it lacks {abstract}" if abstract else ""
    missing = ", ".join(_missing(target, contract))
    lack = f"it lacks {missing}; " if missing else ""
    return f"{lack}{target.__name__} does not derive from it"


def _is_method(contract: type, name: str) -> bool:
    return callable(getattr(contract, name, None))


def _missing(made: object, contract: type) -> list[str]:
    return [name for name in dir(contract) if name[0] != "_" and not hasattr(made, name)]


def guarded(
    action: Callable[[], T],
    what: str,
    doing: str,
    passing: tuple[type[BaseException], ...] = (PluginLoadError,),
) -> T:
    """Run code that others wrote; whatever it raises becomes one error with its traceback.

    Args:
        what, doing: for the message: `scheduler 'x' of p 1.0` failed to `import`.
        passing: errors that say already what is wrong. An interrupt passes, too.
    """
    try:
        return action()
    except (KeyboardInterrupt, *passing):
        raise
    except PluginError as error:  # ours: it says what is wrong
        raise PluginLoadError(f"{what}: {error}") from None
    except BaseException as error:
        raise PluginLoadError(
            f"{what} failed to {doing}: {_shown(error)}\n{_own_frames(error)}"
        ) from error


def _shown(error: BaseException) -> str:
    try:
        return repr(error)
    except Exception:  # the class of the error may be broken, too
        return type(error).__name__


def _own_frames(error: BaseException) -> str:
    """The traceback from the first frame that is not ours or the import system's."""
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(__file__).parent)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith((here, "<frozen importlib"))
        and os.sep + "pluggy" + os.sep not in frame.filename
        and not frame.filename.endswith(os.path.join("importlib", "__init__.py"))
    ]
    lines = traceback.format_list(own) + traceback.format_exception_only(error)
    return "".join(
        "  " + line for text in lines for line in text.splitlines(keepends=True)
    ).rstrip()
