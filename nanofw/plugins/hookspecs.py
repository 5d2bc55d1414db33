"""The menu: one hook for each kind. A manifest implements those whose kinds it offers.

A hook returns one `Plugin` or a list of them. It registers nothing and changes nothing; it is
called once, at start-up, when a configuration has named one of its plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import pluggy

from nanofw.contracts.kinds import KINDS, Kind
from nanofw.plugins.descriptor import Plugin

hookimpl: pluggy.HookimplMarker = pluggy.HookimplMarker("nanofw")
_hookspec = pluggy.HookspecMarker("nanofw")

Plugins: TypeAlias = Plugin | Sequence[Plugin]


def _hook(kind: Kind) -> Callable[[], Plugins]:
    def hook() -> Plugins:
        raise NotImplementedError  # pluggy reads the specification and calls manifests alone

    hook.__name__ = kind.name
    hook.__doc__ = f"{kind.text} (`{kind.api}`, {kind.tier})"
    return _hookspec(hook)


HOOKS: Any = SimpleNamespace(**{name: _hook(kind) for name, kind in KINDS.items()})
"""One hook for each kind, under its name."""
