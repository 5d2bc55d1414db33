"""The menu: one hook per kind. A manifest implements those whose kinds it offers.

A hook returns one `Plugin` or a list of them. It registers nothing and changes nothing; it is
called once, at start-up, when a configuration has named one of its plugins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pluggy

from nanofw.plugins.descriptor import Plugin

hookspec = pluggy.HookspecMarker("nanofw")
hookimpl = pluggy.HookimplMarker("nanofw")

Plugins: TypeAlias = Plugin | Sequence[Plugin]


@hookspec
def model() -> Plugins:  # pyright: ignore[reportReturnType]
    """Decoders, by the architecture name of `config.json` (`model/1`, experimental)."""


@hookspec
def scheduler() -> Plugins:  # pyright: ignore[reportReturnType]
    """Scheduling policies: whom to serve first (`scheduler/2`, stable)."""


@hookspec
def kv_allocator() -> Plugins:  # pyright: ignore[reportReturnType]
    """Where the keys and values of a request live (`kv_allocator/2`, provisional)."""


@hookspec
def attention_backend() -> Plugins:  # pyright: ignore[reportReturnType]
    """Which kernel attends (`attention_backend/1`, experimental)."""


@hookspec
def sampler() -> Plugins:  # pyright: ignore[reportReturnType]
    """How a token is drawn from logits (`sampler/1`, stable)."""


@hookspec
def logits_processor() -> Plugins:  # pyright: ignore[reportReturnType]
    """Changes of the logits before a token is drawn (`logits_processor/1`, stable)."""


@hookspec
def executor() -> Plugins:  # pyright: ignore[reportReturnType]
    """Who carries out the plans (`executor/1`, experimental)."""


@hookspec
def cost_model() -> Plugins:  # pyright: ignore[reportReturnType]
    """How long a simulated step takes (`cost_model/1`, experimental)."""


@hookspec
def workload() -> Plugins:  # pyright: ignore[reportReturnType]
    """Where requests come from (`workload/1`, stable)."""
