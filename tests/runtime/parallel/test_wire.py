"""What is sent arrives: messages of any size, in order; plans and results as they were."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanofw.contracts.outputs import TokenLogprobs
from nanofw.contracts.plan import HostMasks, NewRow, StepPlan, StepResult
from nanofw.contracts.requests import SamplingParams
from nanofw.runtime.parallel.channel import Channel
from nanofw.runtime.parallel.messages import (
    Check,
    Masks,
    Message,
    decode_command,
    decode_reply,
    encode,
)
from nanofw.runtime.parallel.wire import (
    PlanDecoder,
    PlanEncoder,
    done_message,
    needed,
)


def pair() -> tuple[Channel, Channel]:
    left, right = socket.socketpair()
    return Channel(left), Channel(right)


def test_B076_a_fast_sender_never_overwrites_what_a_slow_reader_has_not_read() -> None:
    sender, reader = pair()
    generator = np.random.default_rng(0)
    messages = [bytes(generator.integers(0, 256, n % 7 * 40_000 + n, np.uint8)) for n in range(100)]
    received: list[bytes] = []

    def read() -> None:
        for _ in messages:
            time.sleep(0.005)
            received.append(reader.receive())

    thread = threading.Thread(target=read)
    thread.start()
    for message in messages:
        sender.send(message)
    thread.join()
    assert received == messages
    sender.close()
    with pytest.raises(EOFError):
        reader.receive()
    reader.close()


def test_a_message_may_be_larger_than_any_buffer() -> None:
    sender, reader = pair()
    content = bytes(50_000_000)
    thread = threading.Thread(target=sender.send, args=(content,))
    thread.start()
    assert reader.receive() == content
    thread.join()
    sender.close()
    reader.close()


def test_whole_messages_are_taken_and_the_rest_waits() -> None:
    left, right = socket.socketpair()
    reader = Channel(right)
    whole = (3).to_bytes(8, "little") + b"abc"
    left.sendall(whole + whole + whole[:9])
    assert reader.take() == [b"abc", b"abc"]
    left.sendall(whole[9:])
    assert reader.take() == [b"abc"]
    left.close()
    with pytest.raises(EOFError):
        reader.take()
    reader.close()


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def assert_equal(one: Any, two: Any) -> None:
    """Equal field by field, arrays by their values and types."""
    for item in fields(one):
        left, right = getattr(one, item.name), getattr(two, item.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right, item.name)
        elif item.name == "new":
            for a, b in zip(left, right, strict=True):
                assert_equal(a, b)
        else:
            assert left == right, item.name


def sent(encoder: PlanEncoder, decoder: PlanDecoder, plan: StepPlan) -> tuple[StepPlan, int]:
    content = encoder.encode(plan)
    message: Any = decode_command(content)
    return decoder.decode(message), len(content)


@st.composite
def plans(draw: st.DrawFn) -> list[StepPlan]:
    """Plans that follow one another, some of them over the same rows."""
    result: list[StepPlan] = []
    for step in range(draw(st.integers(1, 6))):
        small = st.integers(0, 2**31 - 1)
        lists = st.lists(small, max_size=5)
        m = draw(st.integers(0, 3))
        columns = [ints(*draw(st.lists(small, min_size=m, max_size=m))) for _ in range(3)]
        if result and draw(st.booleans()):
            last = result[-1]
            step_on = draw(st.booleans())
            rows, counts, samples = last.rows, last.num_tokens, last.samples
            starts = last.starts + (counts if step_on else 0)
            same = True
        else:
            n = draw(st.integers(0, 5))
            rows = np.arange(n, dtype=np.int32)
            counts = ints(*draw(st.lists(st.integers(1, 99), min_size=n, max_size=n)))
            starts = ints(*draw(st.lists(st.integers(0, 999), min_size=n, max_size=n)))
            samples = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), np.bool_)
            same = False
        sampling = SamplingParams(
            temperature=draw(st.floats(0, 3)), logit_bias={3: 0.5}, bad_words=((1, 2), (3,)),
            seed=draw(st.integers(0, 2**63)), stop="a",
        )  # fmt: skip
        new = [
            NewRow(
                row=draw(st.integers(0, 9)), request_id=draw(st.text(max_size=5)),
                token_ids=ints(*draw(lists)), num_prompt_tokens=2, block_ids=ints(*draw(lists)),
                sampling=sampling, seed=draw(st.integers(0, 2**64 - 1)), sample_index=1,
                arguments={"grammar": {"type": "object", "list": [1, 2.5, None, "x"]}},
            )
            for _ in range(draw(st.integers(0, 2)))
        ]  # fmt: skip
        result.append(
            StepPlan(
                step=step, rows=rows, num_tokens=counts, starts=starts.astype(np.int32),
                samples=samples, num_decodes=draw(st.integers(0, 5)), new=new,
                removed=ints(*draw(lists)), block_rows=columns[0], block_positions=columns[1],
                block_ids=columns[2], copies=ints(*draw(lists), 0).repeat(2).reshape(-1, 2),
                host_rows=ints(*draw(lists)), lookahead=draw(st.integers(0, 3)), same_rows=same,
            )
        )  # fmt: skip
    return result


@given(plans())
def test_plans_arrive_as_they_were(sequence: list[StepPlan]) -> None:
    encoder, decoder = PlanEncoder(), PlanDecoder()
    for plan in sequence:
        arrived, _ = sent(encoder, decoder, plan)
        assert_equal(plan, arrived)
        assert all(
            value.flags.writeable
            for value in (arrived.rows, arrived.starts, arrived.samples)
            if value.size
        )


def test_a_steady_decode_step_sends_what_changed() -> None:
    encoder, decoder = PlanEncoder(), PlanDecoder()
    rows = np.arange(256, dtype=np.int32)
    sizes = []
    for step in range(3):
        plan = StepPlan(
            step=step, rows=rows, num_tokens=np.ones(256, np.int32), starts=rows + 100 + step,
            samples=np.ones(256, np.bool_), num_decodes=256, same_rows=step > 0,
            block_rows=ints(*range(16)), block_positions=ints(*range(16)),
            block_ids=ints(*range(16)),
        )  # fmt: skip
        arrived, size = sent(encoder, decoder, plan)
        assert_equal(plan, arrived)
        sizes.append(size)
    assert sizes[0] > 3000
    assert max(sizes[1:]) < 300


def test_results_and_masks_arrive_as_they_were() -> None:
    logprobs = TokenLogprobs(
        np.array([-0.5], np.float32), ints(1), ints(4, 5).reshape(1, 2),
        np.array([[-0.5, -1.0]], np.float32),
    )  # fmt: skip
    result = StepResult(
        step=3, token_ids=ints(4, 9), failed=np.array([False, True]), logprobs={1: logprobs},
        prompt_logprobs={0: logprobs}, seconds=0.25,
    )  # fmt: skip
    done = roundtrip(done_message(result, whole=True))
    arrived = done.result
    assert arrived.token_ids.tolist() == [4, 9]
    assert arrived.failed is not None
    assert arrived.failed.tolist() == [False, True]
    assert arrived.seconds == 0.25
    assert_equal(arrived.logprobs[1], logprobs)
    assert_equal(arrived.prompt_logprobs[0], logprobs)
    brief = roundtrip(done_message(result, whole=False))
    assert brief.result is None
    assert brief.digest == done.digest
    bits = np.arange(6, dtype=np.int32).reshape(2, 3)
    masks = decode_command(encode(Masks(HostMasks(step=5, bits=bits))))
    assert isinstance(masks, Masks)
    np.testing.assert_array_equal(masks.masks.bits, bits)


def test_arguments_that_are_no_plain_data_are_refused_with_the_reason() -> None:
    with pytest.raises(TypeError, match="type object cannot be sent .* only numbers, texts"):
        encode(Check(SamplingParams(), {"x": object()}))
    with pytest.raises(TypeError, match="type ndarray cannot be sent"):
        encode(Check(SamplingParams(), {"x": ints(1)}))
    frozen = MappingProxyType({"schema": MappingProxyType({"type": "string"})})
    seed: Any = np.int64(3)
    arrived = decode_command(encode(Check(SamplingParams(seed=seed), dict(frozen))))
    assert isinstance(arrived, Check)
    assert arrived.arguments == {"schema": {"type": "string"}}
    assert arrived.sampling.seed == 3


def test_arguments_of_processors_on_the_host_stay_there() -> None:
    arguments = {"structured": object(), "suppress_tokens": [4]}
    assert needed(arguments, {"suppress_tokens"}) == {"suppress_tokens": [4]}


def roundtrip(message: Message) -> Any:
    return decode_reply(encode(message))
