"""Sums over all replicas of what each counts, which go on when one of them is lost."""

from __future__ import annotations

from collections.abc import Mapping

from nanofw.narrowing import JsonObject, Stats

NOW = frozenset(
    ("num_running", "num_waiting", "num_unfinished_tokens", "num_blocks", "num_free", "num_cached",
     "num_used")
)  # fmt: skip
"""What `Engine.stats()` says of this moment; all else counts."""


class Totals:
    """What each replica said last, and what lost ones had counted."""

    def __init__(self) -> None:
        self._last: dict[int, Stats] = {}
        self._lost: JsonObject = {}

    def saw(self, number: int, stats: Stats) -> None:
        """A replica says what it has counted since it was started."""
        if number in self._last and stats["num_steps"] < self._last[number]["num_steps"]:
            self.lost(number)  # it was started again before its loss was noticed
        self._last[number] = stats

    def lost(self, number: int) -> None:
        """A replica is gone: what it had counted when it was asked last stays."""
        last = self._last.pop(number, None)
        if last is not None:
            counted = _counted(last)
            counted["num_output_tokens"] += last["num_unfinished_tokens"]
            _add(self._lost, counted)

    def sums(self) -> JsonObject:
        """Over those that were lost, and what the others said last."""
        total: JsonObject = {}
        for stats in (self._lost, *self._last.values()):
            _add(total, stats)
        return total


def _counted(stats: Stats) -> JsonObject:
    return {
        name: _counted(value) if isinstance(value, Mapping) else value
        for name, value in stats.items()
        if name not in NOW
    }


def _add(total: JsonObject, stats: Stats) -> None:
    for name, value in stats.items():
        if isinstance(value, Mapping):
            _add(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value
