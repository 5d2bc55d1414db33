"""Router `client_affinity`: the requests of a client stay together, where its cache is."""

from __future__ import annotations

from collections.abc import Sequence

import xxhash
from pydantic import Field

from nanofw.plugins import Options, ReplicaView, RequestView, Router, RouterConfig


class ClientAffinityOptions(Options):
    """`router: {name: client_affinity, ...}`."""

    spill: float = Field(default=2.0, ge=1)
    """A request goes to the least loaded replica if the client's replica has more tokens to compute
    than this factor times a sum: the mean over all ready replicas, plus the tokens of the new
    request."""


class ClientAffinity(Router):
    """Rendezvous hashing: a replica that goes or comes back moves its own clients alone.

    A request without a client goes where the fewest tokens are to compute.
    """

    def __init__(
        self, options: ClientAffinityOptions | None = None, config: RouterConfig | None = None
    ) -> None:
        self._spill = (options or ClientAffinityOptions()).spill

    def choose(self, request: RequestView, replicas: Sequence[ReplicaView]) -> int:
        ready = [replica for replica in replicas if replica.is_ready]
        least = min(ready, key=lambda replica: replica.num_tokens)
        if not request.client:
            return least.number
        home = max(ready, key=lambda replica: _weight(request.client, replica.number))
        own = request.num_prompt_tokens + request.max_tokens
        mean = own + sum(replica.num_tokens for replica in ready) / len(ready)
        return home.number if home.num_tokens <= self._spill * mean else least.number


def _weight(client: str, number: int) -> int:
    return xxhash.xxh64_intdigest(client.encode("utf-8", "surrogatepass"), seed=number)
