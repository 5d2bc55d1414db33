"""What can be seen to be wrong with a plugin before it runs: the rules of `--check`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Literal, TypeAlias

from nanofw.contracts.kinds import KINDS
from nanofw.errors import PluginError, nearest
from nanofw.plugins.capabilities import CAPABILITIES, contract_of, unknown_capabilities
from nanofw.plugins.checks import missing_requirements
from nanofw.plugins.component import Component, describe, load_plugin, options_model
from nanofw.plugins.descriptor import Plugin
from nanofw.plugins.discovery import Entry
from nanofw.plugins.manifest_imports import ManifestImports

Level: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence about a plugin.

    Attributes:
        rule: name of the rule that found it.
        level: error: a run that selects the plugin fails.
    """

    rule: str
    level: Level
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the rules look at.

    Attributes:
        siblings: ids of the entries that name the same manifest of the same package; empty: what
            concerns the manifest is told with another entry.
        imports: what its manifest does at import; None: it was not looked at.
    """

    entry: Entry
    siblings: frozenset[str] = frozenset()
    imports: ManifestImports | None = None

    @property
    def plugin(self) -> Plugin:
        return load_plugin(self.entry)

    @property
    def target(self) -> object:
        return Component(plugin=self.plugin, entry=self.entry).load()


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is looked for.

    Attributes:
        text: for the docs: what it finds.
        find: yields a sentence for each thing found, or raises PluginError with one. After an
            error the rules below are not asked.
    """

    name: str
    level: Level
    text: str
    find: Callable[[Subject], Iterable[str]]


def lint(subject: Subject) -> Iterator[Finding]:
    """What the rules find, in their order, up to the first rule that finds an error.

    Raises PluginError where a rule does; a `LintError` says which one it was.
    """
    for rule in RULES:
        found = [Finding(rule.name, rule.level, text) for text in _texts(rule, subject)]
        yield from found
        if found and rule.level == "error":
            return


class LintError(PluginError):
    """What a rule raised, with the name of the rule."""

    def __init__(self, rule: Rule, error: PluginError) -> None:
        super().__init__(str(error))
        self.rule: str = rule.name


def _texts(rule: Rule, subject: Subject) -> list[str]:
    try:
        return list(rule.find(subject))
    except PluginError as error:
        raise LintError(rule, error) from error.__cause__


def _prints(subject: Subject) -> Iterator[str]:
    if subject.imports is not None and (text := subject.imports.printed):
        yield f"{subject.entry.module} prints when it is imported: {text!r}"


def _heavy_imports(subject: Subject) -> Iterator[str]:
    if subject.imports is None:
        return
    for package, milliseconds in subject.imports.heavy.items():
        yield (
            f"{subject.entry.module} imports {package} ({milliseconds:,.0f} ms): import it in the "
            f"module of the target, which is imported only when a run has chosen it"
        )


def _descriptor(subject: Subject) -> Iterator[str]:
    load_plugin(subject.entry)
    return iter(())


def _entry_points(subject: Subject) -> Iterator[str]:
    if not subject.siblings:
        return
    for plugin in describe(subject.entry):
        name = f"{plugin.kind}.{plugin.name}"
        if name not in subject.siblings:
            yield f"{subject.entry.module} describes {name}, which no entry point names"


def _undecorated(subject: Subject) -> Iterator[str]:
    if not subject.siblings:
        return
    module = sys.modules[subject.entry.module]  # the descriptor's rule has imported it
    for name, value in vars(module).items():
        is_own = isinstance(value, FunctionType) and value.__module__ == module.__name__
        if is_own and name in KINDS and not hasattr(value, "nanofw_impl"):
            yield f"{module.__name__}.{name}() is never called without @hookimpl"


def _capabilities(subject: Subject) -> Iterator[str]:
    claims, kind = subject.plugin.capabilities, subject.entry.kind
    for key in unknown_capabilities(claims):
        yield f"nothing asks for {key!r}"
    for key in claims:
        if key in CAPABILITIES and kind not in CAPABILITIES[key].kinds:
            yield f"nothing asks a {kind} for {key!r}"


def _requirements(subject: Subject) -> list[str]:
    return missing_requirements(subject.plugin)


def _options(subject: Subject) -> Iterator[str]:
    options_model(subject.plugin, subject.entry)
    return iter(())


def _target(subject: Subject) -> Iterator[str]:
    Component(plugin=subject.plugin, entry=subject.entry).check_target()
    return iter(())


def _attributes(subject: Subject) -> Iterator[str]:
    """An attribute of the class whose name nearly is one of the contract's."""
    target, base = subject.target, contract_of(subject.entry.kind, subject.plugin.capabilities)
    if not isinstance(target, type):
        return
    known = {name for name in dir(base) if name[0] != "_"}
    own = {name for kind in target.__mro__ if kind not in base.__mro__ for name in vars(kind)}
    for name in sorted(own - known):
        value = inspect.getattr_static(target, name)
        if name[0] == "_" or callable(value) or isinstance(value, (staticmethod, classmethod)):
            continue
        if near := nearest(name, known, count=1, cutoff=0.85):
            yield f"{target.__name__}.{name} is not read; did you mean {near[0]}"


def _claims(subject: Subject) -> Iterator[str]:
    """An optional method that goes with a claim, without the claim."""
    target, kind = subject.target, subject.entry.kind
    claims = subject.plugin.capabilities
    base = contract_of(kind, claims)
    for key, capability in CAPABILITIES.items():
        if kind not in capability.kinds:
            continue
        for value, method in capability.methods.items():
            has = getattr(target, method, None) is not getattr(base, method, None)
            if has and claims.get(key) != value:
                yield f"{method}() is written, but {key}: {value} is not claimed"


def _probe(subject: Subject) -> Iterator[str]:
    module = sys.modules.get(subject.plugin.target.partition(":")[0])
    probe = getattr(module, "probe", None)
    if not callable(probe):
        return
    try:
        inspect.signature(probe).bind("cpu", None)
    except TypeError as error:
        yield f"probe cannot be called as probe(device, options): {error}"
    except ValueError:
        return  # it has no signature


RULES: tuple[Rule, ...] = (
    Rule(
        "descriptor", "error",
        "an entry point without a descriptor; a manifest that cannot be imported, a misspelt hook, "
        "a descriptor or a capability that is not valid; a contract version that nanofw does not "
        "know",
        _descriptor,
    ),
    Rule("entry-point", "warning", "a descriptor without an entry point", _entry_points),
    Rule("hookimpl", "warning", "a function named after a kind without `@hookimpl`", _undecorated),
    Rule("prints", "warning", "a manifest that prints when it is imported", _prints),
    Rule(
        "heavy-import", "warning",
        "a manifest that imports something that only the target needs; the message says how many "
        "milliseconds the import takes",
        _heavy_imports,
    ),
    Rule(
        "capability", "warning",
        "a capability that nothing asks for, or that this kind does not have", _capabilities,
    ),
    Rule("requirement", "error", "a module or package that is missing", _requirements),
    Rule(
        "options", "error",
        "options that cannot be imported, or that are not a pydantic model", _options,
    ),
    Rule(
        "target", "error",
        "a target that does not exist, cannot be constructed or lacks a method; a method that is "
        "misspelt, cannot be called as the contract says, or needs another method that is missing",
        _target,
    ),
    Rule("attribute", "warning", "an attribute whose name is misspelt", _attributes),
    Rule("claim", "warning", "a method without the capability that belongs to it", _claims),
    Rule("probe", "error", "a `probe` that cannot be called", _probe),
)  # fmt: skip
"""In the order in which they are asked: each may rely on what those before it found right."""
