"""Router `prefix_affinity`: a prompt goes where its beginning is cached, unless that costs more."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, PositiveInt

from nanofw.plugins import Options, ReplicaView, RequestView, Router, RouterConfig


class PrefixAffinityOptions(Options):
    """`router: {name: prefix_affinity, ...}`."""

    max_blocks: PositiveInt | None = None
    """How many blocks the router remembers for each replica. It remembers those that were sent
    last. null: as many as the replica's pool has."""
    load_weight: float = Field(default=0.1, ge=0)
    """Weight of a token that the replica may still have to compute for other requests. A token of
    the prompt that the replica would have to compute has weight 1."""


class PrefixAffinity(Router):
    """Weighs the part of the prompt that is not cached against the tokens ahead of it.

    Of equals the one that was chosen least recently: new beginnings spread over idle replicas.
    """

    def __init__(
        self, options: PrefixAffinityOptions | None = None, config: RouterConfig | None = None
    ) -> None:
        options = options or PrefixAffinityOptions()
        self._weight = options.load_weight
        most = options.max_blocks or (1 if config is None else config.limits.num_blocks)
        self.prefix_blocks = most
        self._chosen: dict[int, int] = {}  # by replica, the number of its last choice
        self._num_choices = 0

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        def cost(replica: ReplicaView) -> tuple[float, int]:
            own = request.num_prompt_tokens - replica.cached_tokens(request)
            cost = own + self._weight * replica.num_tokens
            return cost, self._chosen.get(replica.number, 0)

        number = min((replica for replica in replicas if replica.is_ready), key=cost).number
        self._num_choices += 1
        self._chosen[number] = self._num_choices
        return number
