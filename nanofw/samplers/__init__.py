"""Samplers: how a token is sampled from logits.

Public: what `__all__` lists. The modules in this package are private.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanofw.samplers.edits import LogitEdits

__all__ = ["LogitEdits"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: manifests of this package import no torch."""
    if name != "LogitEdits":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nanofw.samplers.edits import LogitEdits

    return LogitEdits
