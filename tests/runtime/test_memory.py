"""How many blocks fit: numbers in, a count or an error that explains itself out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanofw import LLM
from nanofw.errors import ConfigError
from nanofw.runtime import memory
from nanofw.runtime.memory import (
    GIB,
    DeviceMemory,
    activation_estimate,
    available_main_memory,
    check_num_blocks,
    num_cpu_blocks,
    num_kv_blocks,
)
from tests.runtime.checkpoints import write_qwen3
from tests.runtime.driver import make_executor

BLOCK = 1 << 20


def facts(**changes: float) -> DeviceMemory:
    values = {"total": 24, "free": 20, "own": 4, "weights": 3, "activation_peak": 1}
    scaled = {key: int(value * GIB) for key, value in (values | changes).items()}
    return DeviceMemory(**scaled)


def test_B026_memory_of_others_narrows_but_is_not_charged() -> None:
    """24 GiB, others use 15, utilization 0.4: a share of 9 GiB, 4 of them taken."""
    given_facts = facts(free=24 - 15 - 3, own=3, weights=3, activation_peak=1)
    assert num_kv_blocks(given_facts, 0.4, BLOCK) == 5 * 1024


def test_share_is_of_the_whole_device_when_others_leave_it() -> None:
    assert num_kv_blocks(facts(), 0.5, BLOCK) == (12 - 4 - 1) * 1024


@pytest.mark.parametrize("utilization", [0.1, 0.2])
def test_B026_B027_no_room_names_every_number_and_what_to_change(utilization: float) -> None:
    with pytest.raises(ConfigError) as error:
        num_kv_blocks(facts(free=5, own=4), utilization, BLOCK)
    message = str(error.value)
    for part in (
        "24.00 GiB", "15.00 GiB", "weights take 3.00 GiB", "largest step 1.00 GiB",
        "engine.memory_utilization", "max_num_batched_tokens", "max_num_seqs", "smaller model",
    ):  # fmt: skip
        assert part in message


def test_B027_zero_blocks_is_a_config_error_with_three_ways_out() -> None:
    with pytest.raises(ConfigError, match=r"kv_allocator\.num_blocks: .*at least 1.*smaller.*auto"):
        check_num_blocks(0, 16, BLOCK, GIB)
    assert check_num_blocks(1, 16, BLOCK, GIB) == 1


@pytest.mark.parametrize("num_blocks", [1025, 10**11, 10**21])
def test_B027_more_blocks_than_fit_are_a_config_error_with_numbers(num_blocks: int) -> None:
    message = (
        rf"kv_allocator\.num_blocks: {num_blocks:,} blocks .* 1\.00 GiB .* at most 1,024 .*auto"
    )
    with pytest.raises(ConfigError, match=message):
        check_num_blocks(num_blocks, 16, BLOCK, GIB)
    assert check_num_blocks(1024, 16, BLOCK, GIB) == 1024


@pytest.mark.parametrize(
    "words",
    [
        ["kv_allocator.num_blocks=100000000000"],
        ["kv_allocator.num_blocks=1000000000000"],
        ["kv_allocator.block_size=1000000000000"],
        ["kv_allocator.num_blocks=70000", "kv_allocator.block_size=70000"],
    ],
)
@pytest.mark.parametrize("base", ["qwen3-demo", "sim"])
def test_a_pool_that_no_memory_holds_is_a_config_error(base: str, words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^kv_allocator\.num_blocks: "):
        LLM.from_config(base, *words)


@given(
    total=st.integers(1, 100), free=st.integers(0, 100), own=st.integers(0, 100),
    peak=st.integers(0, 10), utilization=st.floats(0.01, 1),
)  # fmt: skip
def test_blocks_never_exceed_the_share_or_what_is_free(
    total: int, free: int, own: int, peak: int, utilization: float
) -> None:
    device = facts(total=total, free=free, own=own, weights=own, activation_peak=peak)
    try:
        blocks = num_kv_blocks(device, utilization, BLOCK)
    except ConfigError:
        return
    used = device.own + device.activation_peak + blocks * BLOCK
    assert blocks >= 1
    assert used <= device.total * utilization
    if own + free <= total:
        assert blocks * BLOCK + device.activation_peak <= device.free


def test_cpu_takes_what_rows_can_use_within_half_of_what_is_free() -> None:
    assert num_cpu_blocks(8 * GIB, 100, GIB, BLOCK) == 100
    assert num_cpu_blocks(8 * GIB, 10**6, GIB, BLOCK) == 3 * 1024
    with pytest.raises(ConfigError, match=r"1\.00 GiB of main memory.*max_num_batched_tokens"):
        num_cpu_blocks(GIB, 100, GIB, BLOCK)


def test_main_memory_is_read_from_the_system() -> None:
    assert 0 < available_main_memory() < 1 << 50


def test_main_memory_respects_a_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_cgroup_available", lambda: 12345)
    assert available_main_memory() == 12345


def test_pool_is_sized_from_memory_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_qwen3(tmp_path)
    wanted = make_executor(tmp_path, num_blocks=None).capacity()
    assert wanted.num_blocks == 8 * (512 // 16)
    monkeypatch.setattr(memory, "available_main_memory", lambda: 1000)
    with pytest.raises(ConfigError, match="no memory is left for KV"):
        make_executor(tmp_path, num_blocks=None)


def test_B027_pool_of_zero_blocks(tmp_path: Path) -> None:
    write_qwen3(tmp_path)
    with pytest.raises(ConfigError, match="holds nothing"):
        make_executor(tmp_path, num_blocks=0)


def test_estimate_grows_with_tokens_and_rows() -> None:
    spec: Any = make_spec()
    small = activation_estimate(spec, 256, 8)
    assert activation_estimate(spec, 512, 8) > small
    assert activation_estimate(spec, 256, 16) - small == 3 * 8 * spec.vocab_size * 4


def make_spec() -> Any:
    from tests.models.test_layers import spec

    return spec()
