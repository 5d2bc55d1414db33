"""Log probabilities, ranks and most likely tokens against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nanofw.kernels import logprobs
from nanofw.kernels.logprobs import logprobs_of, most_likely


@pytest.mark.parametrize("num_top", [0, 1, 7, 50, 80])
@pytest.mark.parametrize("slices", [1, 4])
def test_against_plain_numpy(monkeypatch: pytest.MonkeyPatch, num_top: int, slices: int) -> None:
    monkeypatch.setattr(logprobs, "_ELEMENTS_AT_ONCE", 50 * -(-9 // slices))
    rng = np.random.default_rng(num_top)
    logits = (rng.normal(size=(9, 50)) * 3).astype(np.float32)
    logits[2, 10:] = -np.inf
    tokens = rng.integers(0, 10, 9)
    found = logprobs_of(torch.from_numpy(logits), torch.from_numpy(tokens), num_top)
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    expected = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    lines = np.arange(9)
    np.testing.assert_allclose(found.token_logprobs, expected[lines, tokens], atol=1e-5)
    own = logits[lines, tokens][:, None]
    assert found.ranks.tolist() == ((logits > own).sum(axis=1) + 1).tolist()
    order = np.argsort(-logits, axis=1, kind="stable")[:, :num_top]
    assert found.top_ids.tolist() == order.tolist()
    best = np.take_along_axis(expected, order, axis=1)
    np.testing.assert_allclose(found.top_logprobs, best, atol=1e-5)
    assert (found.ranks.dtype, found.top_ids.dtype) == (torch.int32, torch.int32)


def test_equal_logits_are_listed_by_id_also_where_only_some_find_room() -> None:
    logits = torch.tensor([[0.0, 1.0, -0.0, 1.0, 0.0, 0.0], [-1.0, -2.0, -1.0, -3.0, -1.0, -1.0]])
    values, ids = most_likely(logits, 4)
    assert ids.tolist() == [[1, 3, 0, 2], [0, 2, 4, 5]]
    assert values.tolist() == [[1.0, 1.0, 0.0, 0.0], [-1.0] * 4]


def test_no_lines() -> None:
    found = logprobs_of(torch.empty(0, 5), torch.empty(0, dtype=torch.int64), 2)
    assert found.top_ids.shape == (0, 2)
    assert len(found.ranks) == 0
