"""Texts whose hashes differ from run to run, as those of Python differ from process to process."""

from __future__ import annotations

import builtins
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from nanofw.testing.traffic import Traffic


class HashedText(str):
    """A text with a hash of its own: equal ones of one salt have equal hashes."""

    __slots__ = ("_hash",)

    def __new__(cls, text: str, salt: int = 0) -> HashedText:
        made = super().__new__(cls, text)
        made._hash = hash((zlib.crc32(text.encode()), salt))
        return made

    def __hash__(self) -> int:
        return self._hash


def with_hashes(traffic: Traffic, salt: int) -> Traffic:
    """The same requests; ids and clients have other hashes for each salt."""
    return Traffic(
        requests=tuple(
            replace(
                request, id=HashedText(request.id, salt), client=HashedText(request.client, salt)
            )
            for request in traffic.requests
        ),
        aborts={HashedText(name, salt): step for name, step in traffic.aborts.items()},
    )


@contextmanager
def other_hashes(salt: int) -> Generator[None]:
    """While it is open, `hash` of a text answers what it might in another process."""
    usual = hash

    def salted(value: object, /) -> int:
        if isinstance(value, (str, bytes)):
            data = value.encode() if isinstance(value, str) else value
            return usual((zlib.crc32(data), salt))
        return usual(value)

    with mock.patch.object(builtins, "hash", salted):
        yield
