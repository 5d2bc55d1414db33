from __future__ import annotations

from bisect import bisect_left

import pytest

from nanofw.runtime.graphs import buckets


def test_B080_every_batch_size_has_a_bucket() -> None:
    for max_num_seqs in range(1, 601):
        sizes = buckets(max_num_seqs)
        assert sizes == sorted(set(sizes))
        assert (sizes[0], sizes[-1]) == (1, max_num_seqs)
        for n in range(1, max_num_seqs + 1):
            bucket = sizes[bisect_left(sizes, n)]
            assert n <= bucket <= n + max(7, n // 4), "padding stays small"


def test_the_number_of_graphs_stays_small() -> None:
    assert len(buckets(256)) <= 24
    assert len(buckets(1024)) <= 48


def test_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        buckets(0)
