"""What the values of capabilities are: a text for people, and the check of a value."""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard, cast

from nanofw.contracts.kinds import KINDS

ANY = "*"
"""In a list of values: every value."""
Items: TypeAlias = "list[Any] | tuple[Any, ...] | AbstractSet[Any]"
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class ValueType:
    """What a capability's value is.

    Attributes:
        text: for messages and for the docs.
        accepts: whether a value is one.
        is_list: it lists the values that are allowed.
    """

    text: str
    accepts: Callable[[object], bool]
    is_list: bool = False


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def is_whole(value: object) -> TypeGuard[int]:
    """Whether the value is a whole number from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_target(value: object) -> bool:
    return isinstance(value, str) and _TARGET.fullmatch(value) is not None


def _all(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        return isinstance(value, (list, tuple, AbstractSet)) and all(
            accepts(item) for item in cast("Items", value)
        )

    return check


FLAG = ValueType("true or false", _is_flag)
NAME = ValueType("a name", _is_name)
COUNT = ValueType("a whole number from 0", is_whole)
TARGET = ValueType("'package.module:function'", _is_target)
FLAG_OR_TARGET = ValueType(
    "true, false or 'package.module:Class'", lambda value: _is_flag(value) or _is_target(value)
)
NAMES = ValueType("a list of names", _all(_is_name), is_list=True)
NUMBERS = ValueType(
    "a list of whole numbers, or of '*'",
    _all(lambda item: item == ANY or (is_whole(item) and item > 0)),
    is_list=True,
)
MADE_KINDS = ValueType("a list of kinds", _all(lambda item: item in KINDS))


def one_of(*names: str) -> ValueType:
    """One of some names."""
    listed = ", ".join(f"'{name}'" for name in names)
    return ValueType(f"one of {listed}", lambda value: isinstance(value, str) and value in names)
