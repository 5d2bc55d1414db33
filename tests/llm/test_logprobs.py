"""Log probabilities as JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from nanofw.contracts.outputs import TokenLogprobs
from nanofw.llm.logprobs import readable, to_record


def test_a_record_has_the_token_its_rank_and_the_most_likely_ones() -> None:
    logprobs = TokenLogprobs(
        np.array([-3.0], np.float32),
        np.array([7], np.int32),
        np.array([[4, 2]], np.int32),
        np.array([[-0.5, -1.25]], np.float32),
    )
    (position,) = readable(logprobs, [9], None)
    assert to_record(position) == {
        "token_id": 9,
        "token": "",
        "logprob": -3.0,
        "rank": 7,
        "top": [
            {"token_id": 4, "token": "", "logprob": -0.5},
            {"token_id": 2, "token": "", "logprob": -1.25},
        ],
    }


def test_a_record_of_what_is_no_number_is_json() -> None:
    logprobs = TokenLogprobs(
        np.array([np.nan], np.float32),
        np.array([1], np.int32),
        np.array([[4, 9]], np.int32),
        np.array([[np.nan, -np.inf]], np.float32),
    )
    record = to_record(readable(logprobs, [9], None)[0])
    assert record is not None
    assert record["logprob"] is None
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize("num_top", [0, 1, 2, 3])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_a_record_has_as_many_likely_ones_as_were_asked_for(num_top: int, rank: int) -> None:
    """Also where the token comes right after them: it is none of them then."""
    ids, values = np.arange(5, dtype=np.int32), -np.arange(1, 6, dtype=np.float32)
    logprobs = TokenLogprobs(
        values[rank - 1 : rank],
        np.array([rank], np.int32),
        ids[None, :num_top],
        values[None, :num_top],
    )
    record = to_record(readable(logprobs, [rank - 1], None)[0])
    assert record is not None
    assert (record["token_id"], record["rank"]) == (rank - 1, rank)
    likely: Any = record["top"]
    assert [item["token_id"] for item in likely] == list(range(num_top))
