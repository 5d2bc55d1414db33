"""Allocators that are right and odd."""

from __future__ import annotations

import random

from nanofw.errors import AllocatorError
from nanofw.kv_allocators.paged import PagedAllocator
from nanofw.plugins import (
    Plugin,
    hookimpl,
)
from tests.mutants.collection import Collection
from tests.mutants.plain.kv_allocators import Plain

sample = Collection("kv_allocator/2", {"block_sizes": ("*",), "prefix_cache": True})


@hookimpl
def kv_allocator() -> list[Plugin]:
    return sample.plugins()


@sample()
class InDictionaries(Plain):
    """Blocks are known by all tokens up to their end, as they are, without any hash."""


@sample()
class LastInFirstOut(Plain):
    """What is evicted first is the allocator's choice, the newest as well as the oldest."""

    def evict(self) -> None:
        self.idle.move_to_end(next(reversed(self.idle)), last=False)
        super().evict()


@sample()
class LowestFirst(Plain):
    """Which of the free blocks a row gets has no meaning."""

    def take(self, count):
        self.free.sort(reverse=True)
        return super().take(count)


@sample()
class SeededBlocks(Plain):
    """Free blocks are given at random, from a seed with which a reset begins again."""

    def reset(self) -> None:
        super().reset()
        self.random = random.Random(0)

    def take(self, count):
        self.random.shuffle(self.free)
        return super().take(count)


@sample(checks={"caches_all": False})
class ShortMemory(Plain):
    """Only the first two blocks of a prompt are ever known; what is not known is not a hit."""

    def contents(self, tokens, salt):
        return super().contents(tokens[: 2 * self.size], salt)


@sample(prefix_cache=False)
class MadeWhenNeeded(PagedAllocator):
    """Its state is made by the first row; it claims no cache, and has none."""

    def __init__(self, options, config) -> None:
        self.made = False
        super().__init__(options, config)

    def acquire(self, row, token_ids, match, salt=0):
        if not self.made:
            self.made = True
            super().__init__(None, self._config)
        return super().acquire(row, token_ids, match, salt)


@sample(block_sizes=(16,))
class SixteenOnly(Plain):
    """It claims one size of blocks, and need not know another."""

    def __init__(self, options, config) -> None:
        if config.block_size != 16:
            raise AllocatorError(f"blocks have 16 tokens here, not {config.block_size}")
        super().__init__(options, config)
