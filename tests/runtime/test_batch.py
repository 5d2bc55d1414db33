"""Plans as passes, and what a pass says of its tokens."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanofw.contracts.plan import StepPlan
from nanofw.runtime.batch import RowState, make_batch, split


def plan_of(lines: list[tuple[int, int, bool]]) -> StepPlan:
    """Lines are (start, tokens, samples); those with one token come first."""
    lines = sorted(lines, key=lambda line: line[1] != 1)
    starts, counts, samples = (np.array(c) for c in zip(*lines, strict=True))
    return StepPlan(
        step=0,
        rows=np.arange(len(lines), dtype=np.int32)[::-1].copy(),
        num_tokens=counts.astype(np.int32),
        starts=starts.astype(np.int32),
        samples=samples.astype(np.bool_),
        num_decodes=int((counts == 1).sum()),
    )


lines_strategy = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 50), st.booleans()), min_size=1, max_size=12
)


@given(lines=lines_strategy, max_tokens=st.integers(1, 60))
def test_passes_hold_every_token_once_in_order(
    lines: list[tuple[int, int, bool]], max_tokens: int
) -> None:
    plan = plan_of(lines)
    parts = split(plan, max_tokens)
    seen: dict[int, list[int]] = {}
    sampled: list[int] = []
    for part in parts:
        assert 0 < part.num_tokens.sum() <= max_tokens
        assert len(set(part.rows.tolist())) == len(part.rows)
        assert (part.num_tokens[: part.num_decodes] == 1).all()
        for row, start, count in zip(part.rows, part.starts, part.num_tokens, strict=True):
            seen.setdefault(int(row), []).extend(range(start, start + count))
        sampled.extend(part.rows[part.samples].tolist())
    for row, start, count in zip(plan.rows, plan.starts, plan.num_tokens, strict=True):
        assert seen[int(row)] == list(range(start, start + count))
    assert sampled == plan.sampled_rows.tolist()


def test_batch_reads_tokens_and_slots_from_the_rows() -> None:
    state = RowState(4, 32, 8, torch.device("cpu"))
    state.token_ids[:] = torch.arange(32) + 100 * torch.arange(4)[:, None]
    state.host_block_tables[:] = np.arange(8) + 10 * np.arange(4)[:, None]
    plan = StepPlan(
        step=0,
        rows=np.array([2, 0], np.int32),
        num_tokens=np.array([1, 3], np.int32),
        starts=np.array([9, 4], np.int32),
        samples=np.array([True, False]),
        num_decodes=1,
    )
    batch = make_batch(plan, state, 4, torch.device("cpu"))
    (forward,) = batch.micro_batches
    assert forward.token_ids.tolist() == [209, 4, 5, 6]
    assert forward.positions.tolist() == [9, 4, 5, 6]
    assert forward.slots.tolist() == [22 * 4 + 1, 1 * 4, 1 * 4 + 1, 1 * 4 + 2]
    assert forward.query_starts.tolist() == [0, 1, 4]
    assert forward.context_lens.tolist() == [10, 7]
    assert forward.block_tables.tolist() == [[20, 21, 22], [0, 1, 2]]
    assert forward.logits_indices.tolist() == [0]
    assert batch.rows.tolist() == [2]
    assert batch.positions.tolist() == [10]


def test_tokens_are_padded_to_a_number_that_products_are_prepared_for() -> None:
    state = RowState(4, 64, 8, torch.device("cpu"))
    plan = plan_of([(0, 18, True), (5, 1, True)])
    (forward,) = make_batch(plan, state, 16, torch.device("cpu")).micro_batches
    assert len(forward.token_ids) == len(forward.positions) == len(forward.slots) == 24
    assert (forward.slots[19:] == -1).all()
    assert (forward.slots[:19] >= 0).all()
    assert forward.query_starts.tolist() == [0, 1, 19]
