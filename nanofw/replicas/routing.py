"""What a router is shown, and calls of it, whose mistakes are named."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import xxhash

from nanofw.contracts.router import ReplicaView, Router
from nanofw.contracts.views import RequestView
from nanofw.errors import RouterError
from nanofw.plugin_calls import PluginCalls


class SentPrefixes:
    """Blocks of prompts that were sent to one replica, those that were sent last.

    Args:
        most: blocks that are remembered.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[int, None] = OrderedDict()

    def num_known(self, blocks: Sequence[int]) -> int:
        """How many of a prompt's first blocks were sent."""
        known = self._known
        return next((i for i, block in enumerate(blocks) if block not in known), len(blocks))

    def add(self, blocks: Sequence[int]) -> None:
        known = self._known
        for block in reversed(blocks):  # the beginning is used last, and so is forgotten last
            known[block] = None
            known.move_to_end(block)
        while len(known) > self._most:
            known.popitem(last=False)

    def clear(self) -> None:
        self._known.clear()


def block_ids(request: RequestView, block_size: int) -> list[int]:
    """A number for each whole block of a prompt, which stands for all before it, too."""
    tokens, ids = request.prompt_token_ids, list[int]()
    digest = request.prefix_id(0)  # of the cache salt alone
    for end in range(block_size, len(tokens) + 1, block_size):
        block = tokens[end - block_size : end].tobytes()
        digest = xxhash.xxh3_64_intdigest(block, seed=digest)
        ids.append(digest)
    return ids


class _View(ReplicaView):
    """A replica as the router sees it while it chooses for one request."""

    __slots__ = ("_choice",)

    def __init__(self, choice: RouterGuard, number: int, *, is_ready: bool) -> None:
        super().__init__(number, is_ready=is_ready)
        self._choice = choice

    def cached_tokens(self, request: RequestView) -> int:
        return self._choice.cached_tokens(request, self.number)


class RouterGuard(PluginCalls):
    """Calls into a router.

    Args:
        label: the router in messages.
        block_size: tokens of a block of the prefix cache.
    """

    def __init__(self, router: Router, label: str, num_replicas: int, block_size: int) -> None:
        super().__init__(label, RouterError)
        self._router, self._block_size = router, block_size
        most = self.integer(
            "prefix_blocks", self.call("prefix_blocks", getattr, router, "prefix_blocks"), 0
        )
        self._sent = [SentPrefixes(most) for _ in range(num_replicas)] if most else []
        self._blocks: tuple[RequestView, list[int]] | None = None  # of the request at hand

    def view(self, number: int, *, is_ready: bool) -> ReplicaView:
        """A replica, to be filled with its load."""
        return _View(self, number, is_ready=is_ready)

    def cached_tokens(self, request: RequestView, number: int) -> int:
        """Tokens at the beginning of a prompt that were sent to a replica before."""
        if not self._sent:
            return 0
        return self._sent[number].num_known(self._blocks_of(request)) * self._block_size

    def choose(self, request: RequestView, views: Sequence[ReplicaView]) -> int:
        """The number of a replica that is ready.

        Raises:
            RouterError: the router raised, or named none.
        """
        shown = tuple(views)
        ready = {view.number for view in shown if view.is_ready}
        answer = self.call("choose", self._router.choose, request, shown)
        number = self.integer("choose", answer)
        if number not in ready:
            listed = ", ".join(map(str, sorted(ready)))
            raise self.wrong("choose", answer, f"the number of a replica that is ready: {listed}")
        if self._sent:
            self._sent[number].add(self._blocks_of(request))
        self._blocks = None
        return number

    def lost(self, number: int) -> None:
        """A replica is gone with its cache."""
        if self._sent:
            self._sent[number].clear()
        self.tell("on_lost", self._router.on_lost, number)

    def _blocks_of(self, request: RequestView) -> list[int]:
        if self._blocks is None or self._blocks[0] is not request:
            self._blocks = request, block_ids(request, self._block_size)
        return self._blocks[1]
