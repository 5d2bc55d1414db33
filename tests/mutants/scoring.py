"""Holds the plugins of this folder to the conformance kit, and counts."""

from __future__ import annotations

import importlib
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanofw.errors import ConfigError, PluginError, PluginLoadError
from nanofw.plugins import KINDS, Component, PluginSettings, build_registry, load_plugin
from nanofw.testing import bound, check_names, score, suite_of
from tests.mutants.collection import Collection, Sample

FOLDER = Path(__file__).parent
KINDS_WITH_SAMPLES = tuple(k for k in KINDS if (FOLDER / "broken" / f"{k}s.py").exists())
LIMIT_S = 60.0
"""Of the processor's time. A check that goes on for longer tells an author nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the kit says of a plugin.

    Attributes:
        found: the first check that failed, and what it saw; None: all passed.
        seconds: of the processor's time.
        is_tried: whether the kit has checks for it.
    """

    sample: Sample
    found: str | None
    seconds: float
    is_tried: bool = True


@dataclass(slots=True)
class Score:
    """What the kit says of the plugins of one kind.

    Attributes:
        untried: those for which it has no checks.
    """

    kind: str
    broken: list[Verdict] = field(default_factory=list[Verdict])
    odd: list[Verdict] = field(default_factory=list[Verdict])
    untried: list[Verdict] = field(default_factory=list[Verdict])

    def add(self, folder: str, verdict: Verdict) -> None:
        """A plugin of `broken` or `odd` was tried, or could not be."""
        tried = {"broken": self.broken, "odd": self.odd}[folder]
        (tried if verdict.is_tried else self.untried).append(verdict)

    @property
    def text(self) -> str:
        """The numbers."""
        num_found = len(self.broken) - len(self.survivors)
        num_passed = len(self.odd) - len(self.accused)
        share = 100 * num_found / max(1, len(self.broken))
        seconds = sum(verdict.seconds for verdict in (*self.broken, *self.odd))
        return (
            f"{self.kind}: {num_found} of {len(self.broken)} broken ones found ({share:.0f}%), "
            f"{num_passed} of {len(self.odd)} odd ones passed, {len(self.untried)} untried, "
            f"{seconds:.0f} s"
        )

    @classmethod
    def sum(cls, parts: Iterable[Score]) -> Score:
        """Those of several kinds together."""
        total = cls("all")
        for part in parts:
            total.broken += part.broken
            total.odd += part.odd
            total.untried += part.untried
        return total

    @property
    def survivors(self) -> list[Verdict]:
        """Broken ones of which nothing was found."""
        return [verdict for verdict in self.broken if verdict.found is None]

    @property
    def accused(self) -> list[Verdict]:
        """Odd ones of which something was found."""
        return [verdict for verdict in self.odd if verdict.found is not None]


def samples(kind: str, folder: str) -> list[Sample]:
    """The plugins of a kind in `broken` or `odd`, in the order in which they are written."""
    collection = importlib.import_module(f"tests.mutants.{folder}.{kind}s").sample
    assert isinstance(collection, Collection)
    return collection.samples


def verdicts(kind: str, folder: str, names: set[str] | None = None) -> Iterator[Verdict]:
    """What the kit says of each of them; `names`: only of these."""
    path = FOLDER / folder / f"{kind}s.py"
    registry = build_registry(PluginSettings(load=(path,)))
    for sample in samples(kind, folder):
        if names is None or sample.name in names:
            entry = registry.find(kind, sample.name)
            plugin = load_plugin(entry)
            options_of: Any = plugin.options
            options = None if options_of is None else options_of()
            yield _verdict(sample, Component(plugin=plugin, options=options, entry=entry))


def _verdict(sample: Sample, component: Component) -> Verdict:
    try:
        suite_of(component)
    except PluginError:
        return Verdict(sample, None, 0.0, is_tried=False)
    began, found = time.process_time(), None
    with _limited():
        found = _first_failure(sample, component)
    seconds = time.process_time() - began
    return Verdict(sample, None if seconds >= LIMIT_S else found, seconds)


def _first_failure(sample: Sample, component: Component) -> str | None:
    """As `nanofw plugins test` finds it."""
    try:
        component.check_target()
        checks = bound(component, dict(sample.checks))
        for name in check_names(checks):
            result = score(checks, name)
            if result.outcome == "failed":
                return f"{name}: {result.seen}"
    except (PluginLoadError, ConfigError) as error:
        return f"{type(error).__name__}: {error}"
    return None


class _TookTooLong(BaseException):
    """A check has no end."""


@contextmanager
def _limited() -> Iterator[None]:
    """Stops what takes more of the processor's time than the limit."""

    def stop(*_: object) -> None:
        raise _TookTooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        yield
    except _TookTooLong:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
