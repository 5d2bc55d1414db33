"""Contract `router/1` (experimental): which of several engines serves a request.

A minimal router:

    class FewestRequests(Router):
        def choose(self, request, replicas):
            ready = [replica for replica in replicas if replica.is_ready]
            return min(ready, key=lambda r: r.num_running + r.num_waiting).number

Every replica serves the same model, and the tokens of a request do not depend on the replica that
computes them. So a router can make a run slow, but not wrong. An answer that is not the number of a
ready replica is a `RouterError`, and refuses that request alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nanofw.contracts.limits import Limits
from nanofw.contracts.views import RequestView


class ReplicaView:
    """What a router may know of a replica. Read-only, valid during the call that it is given to.

    Attributes:
        number: its number, from 0.
        is_ready: it serves now; a replica that is not ready must not be chosen.
        num_running: its requests that have run in at least one reported step.
        num_waiting: all its other requests.
        num_tokens: how many tokens, at most, it still has to compute for its requests, including
            their prompts.
    """

    __slots__ = ("is_ready", "num_running", "num_tokens", "num_waiting", "number")

    def __init__(
        self,
        number: int,
        *,
        is_ready: bool = True,
        num_running: int = 0,
        num_waiting: int = 0,
        num_tokens: int = 0,
    ) -> None:
        self.number: int = number
        self.is_ready: bool = is_ready
        self.num_running: int = num_running
        self.num_waiting: int = num_waiting
        self.num_tokens: int = num_tokens

    def cached_tokens(self, request: RequestView) -> int:
        """Tokens at the beginning of the prompt that were sent to this replica before.

        Counted in whole blocks, among the blocks that the engine remembers
        (`Router.prefix_blocks`). The replica may have evicted some of them since.
        """
        return 0

    def __repr__(self) -> str:
        state = "ready" if self.is_ready else "not ready"
        return f"<replica {self.number}: {state}, {self.num_tokens} tokens to compute>"


class Router(ABC):
    """Base of routers. Constructed as `target(options, RouterConfig)`.

    Attributes:
        options: its validated options; None if the descriptor names no options.
        config: what it was constructed with.
        prefix_blocks: how many prompt blocks the engine remembers for each replica (the most recent
            ones), for `ReplicaView.cached_tokens`. With 0 it remembers no blocks, and
            `cached_tokens` is always 0.
    """

    prefix_blocks: int = 0

    def __init__(self, options: Any = None, config: RouterConfig | None = None) -> None:
        self.options = options
        self.config = config

    @abstractmethod
    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        """The number of the replica that will serve a request.

        Called once for each request when it comes, in the order of arrival, and once more if its
        replica is lost before any output was delivered.

        Args:
            request: it has not begun; do not change its prompt.
            replicas: all replicas, by number; at least one is ready.
        """

    def on_lost(self, number: int) -> None:
        """A replica is gone with its cache. Later another replica may get the same number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Facts that a router is constructed with, beside its options.

    Attributes:
        name: what the configuration calls the router.
        num_replicas: number of replicas, including lost ones.
        limits: the limits of a step, and the pool, of each replica.
    """

    num_replicas: int
    limits: Limits
    name: str = ""
