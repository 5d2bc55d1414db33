r"""`${...}` in values: a reference to another key, or to a variable of the environment.

    ${engine.seed}  ${logits_processors[0].name}  ${.name}    another key; a dot: in this mapping
    ${oc.env:HOME}  ${oc.env:HOME,a default}                  a variable
    \\${HOME}                                                  the text ${HOME}

A value that is one `${...}` and nothing else takes the type of what it refers to; within a longer
text, values stand as YAML writes them. Nothing is evaluated, and what references multiply is
bounded before it is made.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from nanofw.config.document import MAX_VALUES
from nanofw.config.source import KeyPath, dotted
from nanofw.errors import near, shown
from nanofw.narrowing import is_dict, is_list

MAX_CHAIN = 50
"""The most references that lead to each other before there is a value."""
MAX_CHARACTERS = 1 << 24
"""Of all values together, once references are resolved."""
_START = "${"
_PART = re.compile(r"\[([^\[\]]*)\]|([^.\[\]]+)|\.")
_ENVIRONMENT = "oc.env:"

Piece: TypeAlias = "str | tuple[Piece, ...]"
"""Of a text: itself, or what stands between `${` and `}`, in its pieces."""


class InterpolationError(ValueError):
    """A `${...}` that has no value.

    Attributes:
        path: the key whose value it is in.
        written: that value.
    """

    def __init__(self, message: str, path: KeyPath, written: str) -> None:
        self.path = path
        self.written = written
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class _Resolved:
    """A value, and how much there is of it; containers in it may be shared."""

    value: object
    num_values: int
    num_characters: int


def has_interpolation(value: object) -> bool:
    """Whether a value is a text with `${`, escaped or not."""
    return isinstance(value, str) and "${" in value


def resolved(data: Mapping[str, object], environment: Mapping[str, str] | None = None) -> object:
    """Plain values with every `${...}` resolved. Raises `InterpolationError`."""
    try:
        return _unshared(_Resolver(data, environment).at(()).value)
    except RecursionError:
        raise InterpolationError("references lead too deep", (), "") from None


def resolved_text(
    text: str,
    path: KeyPath,
    data: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
) -> object:
    """What a text comes to if it stands at a key of some values. Raises `InterpolationError`."""
    try:
        return _unshared(_Resolver(data, environment).text(text, path).value)
    except RecursionError:
        raise InterpolationError("references lead too deep", path, text) from None


def escaped_text(text: str) -> str:
    """A text whose interpolation is the text as given."""
    *heads, last = text.split(_START)
    return "".join(f"{head}{_backslashes(head)}\\{_START}" for head in heads) + last


class _Resolver:
    def __init__(self, data: Mapping[str, object], environment: Mapping[str, str] | None) -> None:
        self._data = data
        self._environment = os.environ if environment is None else environment
        self._known: dict[KeyPath, _Resolved] = {}
        self._open: dict[KeyPath, None] = {}
        """Keys that are being resolved, the first one first."""

    def at(self, path: KeyPath) -> _Resolved:
        """The value at a key that exists."""
        return self.value(_get(self._data, path), path)

    def value(self, raw: object, path: KeyPath) -> _Resolved:
        """What a value of the data comes to; `path` is its key."""
        if not (is_dict(raw) or is_list(raw) or has_interpolation(raw)):
            return _Resolved(raw, 1, len(raw) if isinstance(raw, str) else 0)
        if path not in self._known:
            self._known[path] = self._made(raw, path)
        return self._known[path]

    def _made(self, raw: object, path: KeyPath) -> _Resolved:
        if isinstance(raw, str):
            return self._guarded(raw, path)
        if isinstance(raw, list):
            items = [
                self.value(item, (*path, i)) for i, item in enumerate(cast("list[object]", raw))
            ]
            return self._sum([item.value for item in items], items, path)
        pairs = cast("dict[str, object]", raw).items()
        found = {key: self.value(item, (*path, key)) for key, item in pairs}
        made: object = {key: item.value for key, item in found.items()}
        return self._sum(made, found.values(), path)

    def _guarded(self, raw: str, path: KeyPath) -> _Resolved:
        """The value of a text that other texts may refer to."""
        if path in self._open:
            circle = " -> ".join(dotted(key) for key in (*self._open, path))
            raise InterpolationError(f"it refers to itself: {shown(circle, 300)}", path, raw)
        if len(self._open) >= MAX_CHAIN:
            message = f"more than {MAX_CHAIN} references lead to each other"
            raise InterpolationError(message, path, raw)
        self._open[path] = None
        try:
            return self.text(raw, path)
        finally:
            del self._open[path]

    def text(self, raw: str, path: KeyPath) -> _Resolved:
        """What a text comes to at a key."""

        def fail(message: str) -> InterpolationError:
            return InterpolationError(message, path, raw)

        pieces = _pieces(raw, fail)
        if len(pieces) == 1 and isinstance(pieces[0], tuple):
            return self._reference(pieces[0], path, fail)
        texts: list[str] = []
        num_characters = 0
        for piece in pieces:
            text = piece if isinstance(piece, str) else self._within(piece, path, fail)
            num_characters += len(text)
            self._check_size(1, num_characters, path, raw)
            texts.append(text)
        return _Resolved("".join(texts), 1, num_characters)

    def _within(
        self, piece: Sequence[Piece], path: KeyPath, fail: Callable[[str], InterpolationError]
    ) -> str:
        """A reference as a part of a text: as YAML writes its value."""
        value = self._reference(piece, path, fail).value
        if isinstance(value, str):
            return value
        if isinstance(value, (dict, list)):
            what = "a mapping" if isinstance(value, dict) else "a list"
            raise fail(f"{_written(piece)} is {what}, which cannot be a part of a text")
        return json.dumps(value)

    def _reference(
        self, piece: Sequence[Piece], path: KeyPath, fail: Callable[[str], InterpolationError]
    ) -> _Resolved:
        inner = "".join(
            part if isinstance(part, str) else self._within(part, path, fail) for part in piece
        ).strip()
        if inner.startswith(_ENVIRONMENT):
            value = self._variable(inner.removeprefix(_ENVIRONMENT), fail)
            return _Resolved(value, 1, len(value or ""))
        if ":" in inner:
            raise fail(f"only keys and {_ENVIRONMENT}NAME are resolved, not {shown(inner)}")
        return self._key(_reference_path(inner, path, fail), inner, fail)

    def _variable(self, text: str, fail: Callable[[str], InterpolationError]) -> str | None:
        name, comma, default = (part.strip() for part in text.partition(","))
        value = self._environment.get(name)
        if value is None and comma:
            is_quoted = len(default) > 1 and default[0] in "'\"" and default[-1] == default[0]
            return None if default == "null" else default[1:-1] if is_quoted else default
        if value is None:
            raise fail(f"environment variable {shown(name)} not found")
        if not value.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise fail(f"environment variable {shown(name)} is not text in UTF-8")
        return value

    def _key(
        self, path: KeyPath, written: str, fail: Callable[[str], InterpolationError]
    ) -> _Resolved:
        """The value at a key that a reference names; a part of the way may be one, too."""
        raw: object = self._data
        here: KeyPath = ()
        is_resolved = False
        for part in path:
            if has_interpolation(raw) and not is_resolved:
                raw, is_resolved = self.value(raw, here).value, True
            step = _step(raw, part)
            if step is None:
                known = list(raw) if is_dict(raw) else []
                raise fail(f"there is no key {shown(written)}{near(str(part), known)}")
            raw, here = _item(raw, step), (*here, step)
        return self._measured(raw) if is_resolved else self.value(raw, here)

    def _measured(self, value: object) -> _Resolved:
        """A value that is resolved already."""
        if isinstance(value, dict):
            value = cast("dict[str, object]", value)
            return self._sum(value, [self._measured(item) for item in value.values()], ())
        if isinstance(value, list):
            value = cast("list[object]", value)
            return self._sum(value, [self._measured(item) for item in value], ())
        return _Resolved(value, 1, len(value) if isinstance(value, str) else 0)

    def _sum(self, value: object, items: object, path: KeyPath) -> _Resolved:
        made = list(cast("list[_Resolved]", items))
        num_values = 1 + sum(item.num_values for item in made)
        num_characters = sum(item.num_characters for item in made)
        self._check_size(num_values, num_characters, path, "")
        return _Resolved(value, num_values, num_characters)

    @staticmethod
    def _check_size(num_values: int, num_characters: int, path: KeyPath, raw: str) -> None:
        if num_values > MAX_VALUES:
            message = f"references multiply to more than {MAX_VALUES:,} values"
            raise InterpolationError(message, path, raw)
        if num_characters > MAX_CHARACTERS:
            message = f"references multiply to more than {MAX_CHARACTERS:,} characters"
            raise InterpolationError(message, path, raw)


def _pieces(text: str, fail: Callable[[str], InterpolationError]) -> tuple[Piece, ...]:
    """The pieces of a text."""
    pieces, end = _scan(text, 0, fail, 0)
    assert end == len(text)
    return pieces


def _scan(
    text: str, at: int, fail: Callable[[str], InterpolationError], depth: int
) -> tuple[tuple[Piece, ...], int]:
    """Pieces from a place on; within `${`, up to the brace that closes it."""
    if depth > MAX_CHAIN:
        raise fail(f"more than {MAX_CHAIN} references stand within each other")
    pieces: list[Piece] = []
    while True:
        close = text.find("}", at) if depth else len(text)
        if close < 0:
            raise fail("a ${ is not closed by a }")
        start = text.find(_START, at, close)
        if start < 0:
            if text[at:close]:
                pieces.append(text[at:close])
            return tuple(pieces), close
        before = text[at:start]
        num = len(_backslashes(before))
        before = before[: len(before) - num + num // 2]
        if num % 2:
            pieces.append(before + _START)
            at = start + len(_START)
            continue
        if before:
            pieces.append(before)
        inner, close = _scan(text, start + len(_START), fail, depth + 1)
        pieces.append(inner)
        at = close + 1


def _written(piece: Sequence[Piece]) -> str:
    inner = "".join(part if isinstance(part, str) else _written(part) for part in piece)
    return f"${{{inner}}}"


def _reference_path(text: str, path: KeyPath, fail: Callable[[str], InterpolationError]) -> KeyPath:
    """`a.b[0]` as a path; each dot at its start goes one level up from the key itself."""
    bare = text.lstrip(".")
    num_up = len(text) - len(bare)
    if num_up > len(path):
        raise fail(f"{shown(text)} leads out of the configuration")
    found: list[str | int] = list(path[: len(path) - num_up]) if num_up else []
    at = 0
    for match in _PART.finditer(bare):
        if match.start() != at:
            break
        at = match.end()
        part = match[1] if match[1] is not None else match[2]
        if part is not None:
            found.append(part)
    if at != len(bare) or not bare:
        raise fail(f"{shown(text)} is not a key such as engine.seed")
    return tuple(found)


def _step(container: object, part: str | int) -> str | int | None:
    """The key or index that a part of a reference names, or None."""
    if isinstance(container, dict):
        return part if part in container else None
    if isinstance(container, list) and str(part).isdecimal() and len(str(part)) < 10:
        index = int(part)
        return index if index < len(cast("list[object]", container)) else None
    return None


def _backslashes(text: str) -> str:
    """Those at the end of a text."""
    return text[len(text.rstrip("\\")) :]


def _item(container: object, step: str | int) -> object:
    if isinstance(step, int):
        return cast("list[object]", container)[step]
    return cast("dict[str, object]", container)[step]


def _get(data: object, path: KeyPath) -> object:
    for part in path:
        data = _item(data, part)
    return data


def _unshared(value: object) -> object:
    """A copy in which no two places are one object."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [_unshared(item) for item in cast("list[object]", value)]
    return value
