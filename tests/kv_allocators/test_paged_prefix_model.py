"""`paged_prefix` against a naive model of sets, lists and dicts, call by call."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.plugins import AllocatorConfig

NUM_ROWS, LONGEST = 4, 26


def few_prompts() -> st.SearchStrategy[list[int]]:
    """Prompts that share heads often, also whole: runs of one token, then runs of another."""
    runs = st.tuples(st.integers(0, 1), st.sampled_from([1, 2, 3, 4, 6, 8]))
    prompts = st.lists(runs, min_size=1, max_size=3)
    return prompts.map(lambda runs: [token for token, n in runs for _ in range(n)])


class NaiveRow:
    def __init__(self, tokens: list[int], table: list[int]) -> None:
        self.tokens = tokens
        self.table = table
        self.num_committed = 0


class PrefixCacheMachine(RuleBasedStateMachine):
    """The model knows content as tuples of tokens, and predicts every answer."""

    @initialize(num_blocks=st.integers(1, 14), block_size=st.integers(1, 4))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.size = num_blocks, block_size
        config = AllocatorConfig(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=NUM_ROWS,
            max_blocks_per_row=LONGEST // block_size + 1,
        )
        self.allocator = PagedPrefixAllocator(None, config)
        self.rows: dict[int, NaiveRow] = {}
        self.cached: list[tuple[int, ...]] = []  # content that nobody owns, next victim first
        self.content_of: dict[int, tuple[int, ...]] = {}  # what was written into each block
        self.num_evictions = 0

    @rule(row=st.integers(0, NUM_ROWS - 1), tokens=few_prompts())
    def admit(self, row: int, tokens: list[int]) -> None:
        if row in self.rows:
            return
        match = self.match(tokens[:-1])
        needed = -(-len(tokens) // self.size) - len(match.block_ids)
        revived = [c for c in self.prefixes(tokens[: match.num_tokens]) if c in self.cached]
        free = self.num_free()
        room = free + len(self.cached) - len(revived)
        allocation = self.allocator.acquire(row, np.array(tokens, np.int32), match)
        assert (allocation is None) == (needed > room)
        if allocation is None:
            return
        for content in revived:
            self.cached.remove(content)
        self.evict(needed - free)
        self.rows[row] = NaiveRow(tokens, allocation.block_ids.tolist())
        self.rows[row].num_committed = match.num_tokens

    @rule(row=st.integers(0, NUM_ROWS - 1), tokens=few_prompts())
    def prefill(self, row: int, tokens: list[int]) -> None:
        """Admit and commit all of a prompt."""
        if row not in self.rows:
            self.admit(row, tokens)
            if row in self.rows:
                self.commit_rows([row], [len(tokens)])

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        rows = data.draw(st.permutations(sorted(self.rows)))
        rows = rows[: data.draw(st.integers(1, len(rows)))]
        lengths = [data.draw(st.integers(len(self.rows[row].tokens), LONGEST)) for row in rows]
        needed = [
            max(0, -(-length // self.size) - len(self.rows[row].table))
            for row, length in zip(rows, lengths, strict=True)
        ]
        extension = self.allocator.extend(np.array(rows, np.int32), np.array(lengths, np.int32))
        assert (extension is None) == (sum(needed) > self.num_free() + len(self.cached))
        if extension is None:
            return
        self.evict(sum(needed) - self.num_free())
        assert len(extension.block_ids) == sum(needed)
        for row, position, block in zip(
            extension.rows.tolist(),
            extension.positions.tolist(),
            extension.block_ids.tolist(),
            strict=True,
        ):
            assert position == len(self.rows[row].table)
            self.rows[row].table.append(block)
        for row, length in zip(rows, lengths, strict=True):
            tokens = self.rows[row].tokens
            tokens += [data.draw(st.integers(0, 1))] * (length - len(tokens))

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        rows = data.draw(st.permutations(sorted(self.rows)))
        rows = rows[: data.draw(st.integers(1, len(rows)))]
        ends = [
            data.draw(st.integers(self.rows[r].num_committed, len(self.rows[r].tokens)))
            for r in rows
        ]
        self.commit_rows(rows, ends)

    def commit_rows(self, rows: list[int], ends: list[int]) -> None:
        matrix = np.full((NUM_ROWS, LONGEST), 9, np.int32)
        for row, state in self.rows.items():
            matrix[row, : len(state.tokens)] = state.tokens
        self.allocator.commit(np.array(rows, np.int32), np.array(ends, np.int32), matrix)
        for row, end in zip(rows, ends, strict=True):
            state = self.rows[row]
            start, state.num_committed = state.num_committed, end
            for content in self.prefixes(state.tokens[:end]):
                if len(content) > start // self.size * self.size:
                    self.content_of[state.table[len(content) // self.size - 1]] = content
                    if content in self.cached:
                        self.cached.remove(content)

    @rule(row=st.integers(0, NUM_ROWS - 1))
    def release(self, row: int) -> None:
        self.allocator.release(row)
        state = self.rows.pop(row, None)
        if state is None:
            return
        live = self.committed()
        in_use = {block for other in self.rows.values() for block in other.table}
        contents = {len(c): c for c in self.prefixes(state.tokens[: state.num_committed])}
        for position in reversed(range(len(state.table))):
            content = contents.get((position + 1) * self.size)
            if state.table[position] not in in_use and content and content not in live:
                self.cached.append(content)

    @precondition(lambda self: not self.rows)
    @rule()
    def reset(self) -> None:
        self.allocator.reset()
        self.cached.clear()
        self.num_evictions = 0

    @rule(tokens=few_prompts())
    def look(self, tokens: list[int]) -> None:
        self.match(tokens)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def look_at_what_is_there(self, data: st.DataObject) -> None:
        self.match(self.rows[data.draw(st.sampled_from(sorted(self.rows)))].tokens)

    @invariant()
    def accounting_is_right(self) -> None:
        self.allocator.check_integrity()
        stats = self.allocator.stats()
        assert stats.num_cached == len(self.cached)
        assert stats.num_free == self.num_free()
        assert stats.num_evictions == self.num_evictions
        assert self.allocator.num_available == stats.num_free + stats.num_cached

    def match(self, tokens: list[int]):
        match = self.allocator.match(np.array(tokens, np.int32))
        resident = self.committed() | set(self.cached)
        known = 0
        for content in self.prefixes(tokens):
            if content not in resident:
                break
            known = len(content)
        assert match.num_tokens == known
        for block, content in zip(
            match.block_ids.tolist(), self.prefixes(tokens[: match.num_tokens]), strict=True
        ):
            assert self.content_of[block] == content
        return match

    def prefixes(self, tokens: list[int]) -> list[tuple[int, ...]]:
        """Each full block's content: its tokens and all before them."""
        return [tuple(tokens[:end]) for end in range(self.size, len(tokens) + 1, self.size)]

    def committed(self) -> set[tuple[int, ...]]:
        return {
            content
            for state in self.rows.values()
            for content in self.prefixes(state.tokens[: state.num_committed])
        }

    def num_free(self) -> int:
        used = {block for state in self.rows.values() for block in state.table}
        return self.num_blocks - len(used) - len(self.cached)

    def evict(self, count: int) -> None:
        for _ in range(max(0, count)):
            self.cached.pop(0)
            self.num_evictions += 1


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(max_examples=40, stateful_step_count=40)


@pytest.mark.slow
class TestPrefixCacheAtLength(PrefixCacheMachine.TestCase):
    settings = settings(max_examples=300, stateful_step_count=40)
