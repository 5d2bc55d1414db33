"""Calls into an allocator: what it raises, or answers wrongly, becomes an `AllocatorError`.

The tables that the allocator gave are kept here too. A block that two rows are given, a table
with a hole or a row without room is an error before a token that was computed from it is handed
out. What a block holds is not looked at: the conformance kit does that.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from nanofw.contracts.arrays import EMPTY_COPIES, IntArray, read_only
from nanofw.contracts.kv_allocator import (
    NO_MATCH,
    Allocation,
    AllocatorStats,
    Extension,
    KVAllocator,
    Match,
)
from nanofw.contracts.limits import Limits
from nanofw.engine.block_owners import BlockOwners
from nanofw.engine.request_state import RequestState
from nanofw.errors import AllocatorError, NanofwError
from nanofw.plugin_calls import PluginCalls

INT32 = np.dtype(np.int32)


class CheckedAllocator(PluginCalls, KVAllocator):
    """Passes calls on; what a call raises or answers is told with the allocator's name.

    An answer without new blocks, that of most steps, costs one comparison.

    Args:
        label: what messages call the allocator.

    Attributes:
        plugin: the allocator itself.
    """

    def __init__(self, plugin: KVAllocator, limits: Limits, label: str = "") -> None:
        super().__init__(label or f"kv_allocator {type(plugin).__name__}", AllocatorError)
        self.plugin = plugin
        self._num_blocks, self._block_size = limits.num_blocks, limits.block_size
        self._owners = BlockOwners(limits)
        self._has_failed = False
        self._nothing: Extension | None = None  # the last answer without blocks that was checked
        self._rows = self._shown_rows = np.empty(0, np.int32)

    def does_work_by_block(self) -> bool:
        """What the allocator says of rows that stay within their blocks."""
        return self.flag("works_by_block", self.call("works_by_block", self._works_by_block))

    def _works_by_block(self) -> bool:
        return self.plugin.works_by_block

    @property
    def num_available(self) -> int:
        """Blocks that no row owns could be taken; never more."""
        try:
            number: object = self.plugin.num_available
        except BaseException as error:
            self.fail("num_available", error)
        if type(number) is not int:
            number = self.integer("num_available", number)
        if not 0 <= number <= self._num_blocks - self._owners.num_owned and not self._has_failed:
            owned = self._owners.num_owned
            most = f"from 0 to {self._num_blocks - owned}, as rows own {owned} blocks"
            raise self.wrong("num_available", number, most)
        return number

    def match(self, token_ids: IntArray, salt: int = 0) -> Match:
        """See the contract."""
        match: object = self.call("match", self.plugin.match, read_only(token_ids), salt)
        if match is NO_MATCH:
            return match
        if type(match) is not Match:
            raise self.wrong("match", match, "a Match")
        num_tokens = self.integer("match", match.num_tokens)
        num_blocks = self._check_blocks("match", match.block_ids)
        if num_tokens != num_blocks * self._block_size or not 0 <= num_tokens <= len(token_ids):
            raise self.wrong(
                "match",
                match,
                f"whole blocks of {self._block_size} tokens, at most {len(token_ids)} tokens",
            )
        return match

    def num_taken_by(self, state: RequestState) -> int:
        """By how many blocks `num_available` falls when this waiting request gets its blocks."""
        needed = -(-len(state.tokens) // self._block_size)
        if state.needs_whole_prompt:
            return needed
        shared = self.match(state.tokens[:-1], state.salt).block_ids
        if not len(shared):
            return needed
        self._settle()
        return needed - self._owners.num_owned_of(shared)

    def num_cached_tokens(self, token_ids: IntArray, salt: int = 0) -> int:
        """See the contract."""
        function = self.plugin.num_cached_tokens
        number = self.call("num_cached_tokens", function, read_only(token_ids), salt)
        number = self.integer("num_cached_tokens", number)
        if not 0 <= number <= len(token_ids):
            raise self.wrong("num_cached_tokens", number, f"from 0 to {len(token_ids)}")
        return number

    def acquire(
        self, row: int, token_ids: IntArray, match: Match | None, salt: int = 0
    ) -> Allocation | None:
        """See the contract."""
        shown = read_only(token_ids)
        given: object = self.call("acquire", self.plugin.acquire, row, shown, match, salt)
        if given is None:
            return None
        if type(given) is not Allocation:
            raise self.wrong("acquire", given, "an Allocation or None")
        num_blocks = self._check_blocks("acquire", given.block_ids)
        needed = -(-len(token_ids) // self._block_size)
        if num_blocks != needed:
            wanted = f"{needed} blocks for {len(token_ids)} tokens of blocks of {self._block_size}"
            raise self.wrong("acquire", given, wanted)
        self._check_copies("acquire", given.copies)
        shared = match.block_ids if match is not None else NO_MATCH.block_ids
        if len(shared) and not np.array_equal(given.block_ids[: len(shared)], shared):
            raise self.wrong("acquire", given, f"the matched blocks {shared} and others after them")
        self._settle()
        problem = self._owners.acquire(row, given.block_ids, len(shared))
        if problem:
            raise self.error(f"acquire() of row {row}: {problem}")
        return given

    def extend(self, rows: IntArray, num_tokens: IntArray) -> Extension | None:
        """See the contract."""
        if rows is not self._rows:
            self._show(rows)
        try:
            given = self.plugin.extend(self._shown_rows, num_tokens)
        except BaseException as error:
            self.fail("extend", error)
        if given is not None and given is not self._nothing:
            self._take_extension(given)
        return given

    def commit(self, rows: IntArray, num_tokens: IntArray, tokens: IntArray) -> None:
        """See the contract."""
        if rows is not self._rows:
            self._show(rows)
        try:
            self.plugin.commit(self._shown_rows, num_tokens, tokens)
        except BaseException as error:
            self.fail("commit", error)

    def release(self, row: int) -> None:
        """See the contract."""
        self.call("release", self.plugin.release, row)
        self._settle()
        self._owners.release(row)

    def reset(self) -> None:
        """See the contract."""
        self.call("reset", self.plugin.reset)
        self._owners.reset()

    def stats(self) -> AllocatorStats:
        """See the contract."""
        stats: object = self.call("stats", self.plugin.stats)
        if type(stats) is not AllocatorStats:
            raise self.wrong("stats", stats, "AllocatorStats")
        for field in fields(stats):
            self.integer(f"{field.name} of stats", getattr(stats, field.name), 0)
        if self._has_failed:
            return stats
        self._settle()
        owned = self._owners.num_owned
        total = stats.num_free + stats.num_cached + stats.num_used
        if total != self._num_blocks or stats.num_used != owned:
            raise self.wrong(
                "stats", stats, f"the {self._num_blocks} blocks of the pool, {owned} of them used"
            )
        return stats

    def check_integrity(self) -> None:
        """See the contract."""
        self.call("check_integrity", self.plugin.check_integrity)

    def check_room(self, row: int, num_tokens: int) -> None:
        """Raise `AllocatorError` when a row lacks blocks for its number of tokens."""
        self._settle()
        num_blocks = self._owners.num_blocks_of(row)
        if num_blocks * self._block_size < num_tokens:
            raise self.error(
                f"extend() left row {row} without room: it has {num_tokens} tokens and "
                f"{num_blocks} blocks of {self._block_size}"
            )

    def error(self, text: str) -> NanofwError:
        """An error that names the allocator. What follows from it is not looked at."""
        self._has_failed = True
        return super().error(text)

    def _show(self, rows: IntArray) -> None:
        """Make the rows read-only; in a steady run they are the same array in every step."""
        self._rows, self._shown_rows = rows, read_only(rows)

    def _settle(self) -> None:
        if problem := self._owners.settle():
            raise self.error(f"extend(): {problem}")

    def _take_extension(self, given: object) -> None:
        if type(given) is not Extension:
            raise self.wrong("extend", given, "an Extension or None")
        blocks: object = given.block_ids
        for array in (blocks, given.rows, given.positions):
            # Native int32 has one dtype object; `_is_int32` looks at the other spellings.
            is_int32 = type(array) is np.ndarray and array.dtype is INT32 and array.ndim == 1
            if not (is_int32 or _is_int32(array, 1)) or array.shape != blocks.shape:
                raise self.wrong("extend", given, "rows, positions and block_ids as int32[m]")
        if given.copies is not EMPTY_COPIES:
            self._check_copies("extend", given.copies)
        if not blocks.size:
            self._nothing = None if len(given.copies) else given
        elif problem := self._owners.extend(given):
            raise self.error(f"extend(): {problem}")

    def _check_blocks(self, method: str, block_ids: Any) -> int:
        """How many block ids there are, all of them of the pool."""
        if not _is_int32(block_ids, 1):
            raise self.wrong(method, block_ids, "block ids as int32[m]")
        # Without its sign, a negative number is larger than any block.
        if len(block_ids) and int(block_ids.view(np.uint32).max()) >= self._num_blocks:
            raise self.wrong(method, block_ids, f"blocks from 0 to {self._num_blocks - 1}")
        return len(block_ids)

    def _check_copies(self, method: str, copies: Any) -> None:
        if not _is_int32(copies, 2) or copies.shape[1] != 2:
            raise self.wrong(method, copies, "copies as int32[c, 2]")
        if len(copies):
            self._check_blocks(method, copies.reshape(-1))


def _is_int32(array: Any, ndim: int) -> bool:
    found = array
    return isinstance(array, np.ndarray) and bool(found.dtype == INT32 and found.ndim == ndim)
