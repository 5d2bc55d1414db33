"""The order of eviction, against Python's OrderedDict."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanofw.kv_allocators.eviction_queue import EvictionQueue

NUM_BLOCKS = 12


def blocks(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def test_the_first_to_come_is_the_first_to_go() -> None:
    queue = EvictionQueue(8)
    queue.append(blocks(5, 2, 7))
    queue.remove(blocks(2))
    queue.append(blocks(2, 0))
    assert queue.ids().tolist() == [5, 7, 2, 0]
    assert queue.pop(3).tolist() == [5, 7, 2]
    assert [block in queue for block in (0, 2, 5)] == [True, False, False]
    assert len(queue) == 1


def test_more_than_there_are_is_a_mistake_of_the_caller() -> None:
    queue = EvictionQueue(4)
    queue.append(blocks(1))
    with pytest.raises(AssertionError, match="more blocks evicted than are cached"):
        queue.pop(2)


@settings(max_examples=60)
@given(st.data())
def test_any_order_of_events_is_that_of_an_ordered_dict(data: st.DataObject) -> None:
    check_against_an_ordered_dict(data)


@pytest.mark.slow
@settings(max_examples=600)
@given(st.data())
def test_many_orders_of_events_are_those_of_an_ordered_dict(data: st.DataObject) -> None:
    check_against_an_ordered_dict(data)


def check_against_an_ordered_dict(data: st.DataObject) -> None:
    queue, model = EvictionQueue(NUM_BLOCKS), OrderedDict[int, None]()
    for _ in range(data.draw(st.integers(1, 60))):
        out = sorted(set(range(NUM_BLOCKS)) - set(model))
        event = data.draw(st.sampled_from(["append", "remove", "pop"]))
        if event == "append" and out:
            added = data.draw(st.lists(st.sampled_from(out), unique=True))
            queue.append(blocks(*added))
            model.update(dict.fromkeys(added))
        elif event == "remove" and model:
            removed = data.draw(st.lists(st.sampled_from(sorted(model)), unique=True))
            queue.remove(blocks(*removed))
            for block in removed:
                del model[block]
        elif event == "pop" and model:
            victims = list(islice(model, data.draw(st.integers(1, len(model)))))
            assert queue.pop(len(victims)).tolist() == victims
            for block in victims:
                del model[block]
        assert queue.ids().tolist() == list(model)
        assert len(queue) == len(model)
        assert [block in queue for block in range(NUM_BLOCKS)] == [
            block in model for block in range(NUM_BLOCKS)
        ]
