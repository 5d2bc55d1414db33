"""A plugin that a run has chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nanofw.plugins.descriptor import Plugin, load_target
from nanofw.plugins.discovery import Entry


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

    def load(self) -> Any:
        """The target itself, imported now. Another process calls `prepare` first."""
        return load_target(self.plugin.target)
