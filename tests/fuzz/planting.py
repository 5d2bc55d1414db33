"""Faults planted in code, to see that a fuzzer finds them.

    python -m tests.fuzz.planting [COUNT]

says of each fault of each fuzzer how many cases it takes, `COUNT` at most.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

FUZZERS = ("configs", "chats", "requests", "traces")
"""Each has a module `planted_...` with its `PLANTED`."""

Make = Callable[[Any], Any]
"""From what is there to what comes in its place."""


class Planted:
    """The faults of one fuzzer.

    Args:
        opened: gives, for the time of a block, what says of a seed what is wrong with its case.
    """

    def __init__(self, opened: Callable[[], AbstractContextManager[Callable[[int], Any]]]) -> None:
        self._opened = opened
        self._patches: dict[str, tuple[Any, str, Make]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What goes wrong, of each fault."""
        return tuple(self._patches)

    def plant(self, owner: Any, name: str) -> Callable[[Make], Make]:
        """Add a fault, which is called after the function that makes it."""

        def add(make: Make) -> Make:
            self._patches[make.__name__] = (owner, name, make)
            return make

        return add

    def cases_until_found(self, name: str, count: int) -> int | None:
        """How many cases it takes to find a fault; None: `count` do not find it."""
        owner, attribute, make = self._patches[name]
        usual = getattr(owner, attribute, getattr(builtins, attribute, None))
        patched = mock.patch.object(owner, attribute, make(usual), create=True)
        with self._opened() as problem, patched:
            return next((seed + 1 for seed in range(count) if problem(seed)), None)


def planted_in(fuzzer: str) -> Planted:
    """The faults for a fuzzer."""
    found = importlib.import_module(f"tests.fuzz.planted_{fuzzer}").PLANTED
    assert isinstance(found, Planted)
    return found


@contextlib.contextmanager
def raising(check: Callable[[int], object]) -> Iterator[Callable[[int], object]]:
    """A check that raises what is wrong, as a function that returns it."""

    def problem(seed: int) -> object:
        try:
            check(seed)
        except Exception as error:
            return error
        return None

    yield problem


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    missed = 0
    for fuzzer in FUZZERS:
        planted = planted_in(fuzzer)
        for name in planted.names:
            needed = planted.cases_until_found(name, count)
            missed += needed is None
            result = "not found" if needed is None else f"found by case {needed}"
            print(f"{fuzzer}, {name}: {result}", flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    from tests.fuzz.planting import main as main_of_the_module  # whose `Planted` is the others'

    main_of_the_module()
