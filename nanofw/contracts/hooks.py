"""What can be seen to be wrong with a class before it is used: misspelt and misshapen methods."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

PARTNERS: Mapping[str, str] = MappingProxyType(
    {"window_key": "window", "rekey": "max_rekeys", "group_key": "group"}
)
"""Methods that mean nothing without another attribute, and the other way round for numbers."""

FORMER: Mapping[str, str] = MappingProxyType(
    {"add": "add_row", "remove": "remove_row", "on_sampled": "sampled", "on_shards": "can_shard"}
)
"""What methods of version 1 are called now."""


def hook_problems(kind: type, base: type) -> list[str]:
    """What is wrong with the methods of a class that derives from `base`, a sentence each.

    A method whose name nearly is one of the contract's, another signature than the contract's,
    and a method or number without its partner.
    """
    known = {name for name in dir(base) if name[0] != "_"}
    hooks = {name for name in known if callable(getattr(base, name))}
    problems: list[str] = []
    for name in dir(kind):
        if name[0] == "_" or not callable(getattr(kind, name)):
            continue
        if name in hooks:
            if getattr(kind, name) is not getattr(base, name):
                problems += _signature_problem(kind, base, name)
        elif name not in known and (near := _meant(name, kind, base, hooks)):
            problems.append(f"{name}() is not a method of {base.__name__}; did you mean {near}?")
    return problems + _lonely(kind, base)


def _meant(name: str, kind: type, base: type, hooks: set[str]) -> str | None:
    """The hook that a method of another name may stand for."""
    now = FORMER.get(name)
    if now in hooks and getattr(kind, now) is getattr(base, now):
        return now
    return next(iter(get_close_matches(name, hooks, 1, 0.85)), None)


def _signature_problem(kind: type, base: type, name: str) -> list[str]:
    """A sentence when the method cannot be called as the contract's is."""
    wanted = inspect.signature(getattr(base, name))
    try:
        given = inspect.signature(getattr(kind, name))
    except (TypeError, ValueError):
        return []
    positional = [p for p in wanted.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    keywords = {p.name: None for p in wanted.parameters.values() if p.kind is p.KEYWORD_ONLY}
    is_static = isinstance(inspect.getattr_static(kind, name), (staticmethod, classmethod))
    count = len(positional) - is_static
    try:
        given.bind(*[None] * count, **keywords)
    except TypeError:
        shown = ", ".join(p.name for p in positional)
        return [f"{name}{given} cannot be called as {name}({shown})"]
    return []


def _lonely(kind: type, base: type) -> list[str]:
    problems: list[str] = []
    for hook, partner in PARTNERS.items():
        if not hasattr(base, hook) or not hasattr(base, partner):
            continue
        has_hook = getattr(kind, hook) is not getattr(base, hook)
        has_partner = _differs(kind, base, partner)
        if has_hook and not has_partner:
            problems.append(f"{hook}() is never called without {partner}")
        elif has_partner and not has_hook and isinstance(getattr(base, partner), int):
            problems.append(f"{partner} is set, but {hook}() is not written")
    return problems


def _differs(kind: type, base: type, name: str) -> bool:
    """Whether a class has an attribute of its own, which may also be set in `__init__`."""
    return getattr(kind, name) is not getattr(base, name) or name in _set_in_init(kind)


def _set_in_init(kind: type) -> set[str]:
    """Names that constructors of the class and its bases store on the object."""
    names: set[str] = set()
    for cls in kind.__mro__:
        code = getattr(vars(cls).get("__init__"), "__code__", None)
        names.update(getattr(code, "co_names", ()))
    return names


def speaks_for(thing: object, name: str, *methods: str) -> bool:
    """Whether what a class says or does under `name` knows of these methods of the object.

    It does where the methods are those of the class that has `name`, or of a base class of it; not
    where a class below it, or the object, has others.
    """
    own = getattr(thing, "__dict__", {})
    teller = _owner(type(thing), name)
    return not any(
        method in own or not issubclass(teller, _owner(type(thing), method)) for method in methods
    )


def _owner(kind: type, name: str) -> type:
    """The class that an attribute belongs to."""
    return next((cls for cls in kind.__mro__ if name in vars(cls)), object)
