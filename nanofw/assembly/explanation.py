"""What was chosen, what is on or off, and why: a record, for people and for reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from nanofw.narrowing import Claims, JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A component of the run.

    Attributes:
        requested: what the configuration says: a name, or `auto`.
        origin: distribution and version, or the local file.
        passed_over: candidates that `auto` tried before, each with its reason.
        options: as validated.
        claims: capabilities on this machine.
    """

    kind: str
    name: str
    requested: str
    origin: str
    passed_over: tuple[tuple[str, str], ...] = ()
    options: Mapping[str, object] = field(default_factory=dict[str, object])
    claims: Claims = field(default_factory=dict[str, Any])

    @property
    def label(self) -> str:
        """For messages: `scheduler 'fcfs'`."""
        return f"{self.kind} {self.name!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A switch of the engine and what became of it.

    Attributes:
        asked: the configuration's value.
        value: what it is in this run.
        reason: why.
        is_downgrade: it was asked for and is off.
    """

    name: str
    asked: Any
    value: Any
    reason: str
    is_downgrade: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that was decided between the configuration and the first step.

    Attributes:
        choices: in the order of the flow; logits processors in YAML order.
        facts: resolved numbers and names: device, dtype, block size, lengths, bytes.
        notes: what was passed over or dropped on the way.
        warnings: those of the notes that a run should hear of.
    """

    choices: tuple[Choice, ...]
    features: tuple[Feature, ...]
    facts: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def downgrades(self) -> tuple[str, ...]:
        """A sentence for each feature that was asked for and is off."""
        return tuple(f"{f.name} is off: {f.reason}" for f in self.features if f.is_downgrade)

    def choice(self, kind: str) -> Choice | None:
        """The first choice of a kind."""
        return next((choice for choice in self.choices if choice.kind == kind), None)

    def as_dict(self) -> JsonObject:
        """Plain values, for JSON."""
        return {
            "choices": [asdict(choice) for choice in self.choices],
            "features": [asdict(feature) for feature in self.features],
            "facts": dict(self.facts),
            "downgrades": list(self.downgrades),
            "notes": list(self.notes),
        }
