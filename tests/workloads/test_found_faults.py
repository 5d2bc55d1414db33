"""Faults of traces and workloads that people found from outside, by their ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanofw.contracts.requests import Request
from nanofw.contracts.workload import Workload, WorkloadConfig
from nanofw.errors import ConfigError
from nanofw.measure.drive import drive
from nanofw.schedulers.fcfs import Fcfs, FcfsOptions
from nanofw.testing.sim_engine import simulated_engine
from nanofw.workloads.replay import FixedList, FixedOptions, Replay, ReplayOptions
from nanofw.workloads.trace import read_trace

CONFIG = WorkloadConfig(vocab_size=100, max_model_len=4096)
TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_2023_conv_excerpt.csv"


def write(folder: Path, *records: dict[str, Any] | str) -> Path:
    path = folder / "trace.jsonl"
    lines = [item if isinstance(item, str) else json.dumps(item) for item in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def bailian(turn: int, at: float, tokens: int, hashes: list[int]) -> dict[str, Any]:
    return {
        "chat_id": turn, "parent_chat_id": turn - 1, "timestamp": at, "input_length": tokens,
        "output_length": 8, "type": "text", "turn": turn, "hash_ids": hashes,
    }  # fmt: skip


ROWS = (bailian(1, 20.914, 64, [1, 2, 3, 4]), bailian(2, 61.114, 96, [1, 2, 3, 4, 5, 6]))


def test_F028_traces_of_bailian_are_recognized(tmp_path: Path) -> None:
    """Seconds, and 16 tokens for each hash."""
    replay = Replay(ReplayOptions(file=write(tmp_path, *ROWS)), CONFIG)
    first, second = replay.initial()
    assert replay.rate == pytest.approx(1 / 40.2)
    assert second.arrival == pytest.approx(40.2)
    assert [len(r.prompt_token_ids) for r in (first, second)] == [64, 96]
    assert np.array_equal(first.prompt_token_ids, second.prompt_token_ids[:64])


def test_F028_a_trace_read_as_another_format_is_refused_with_its_row(tmp_path: Path) -> None:
    path = write(tmp_path, *ROWS)
    message = (
        r"trace\.jsonl:1: 4 hash_ids for a prompt of 64 tokens, which has 1 block of 512 tokens; "
        r"in Bailian's traces a hash stands for 16 tokens"
    )
    with pytest.raises(ConfigError, match=message):
        read_trace(path, "mooncake")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [{"timestamp": 0, "input_length": 1025, "output_length": 1, "hash_ids": [1, 2, 3, 4]}],
            r":1: 4 hash_ids for a prompt of 1025 tokens, which has 3 blocks of 512 tokens",
        ),
        (
            [
                {"trace": 1, "prefix_block_tokens": 4},
                {"prompt_tokens": 4, "output_tokens": 1, "prefix_hashes": [1]},
                {"prompt_tokens": 8, "output_tokens": 1, "prefix_hashes": [1, 2, 3]},
            ],
            r":3: 3 prefix_hashes for a prompt of 8 tokens, which has 2 blocks of 4 tokens",
        ),
        ([bailian(1, 0.0, 16, [1, 2])], r":1: 2 hash_ids .* 1 block of 16 tokens"),
        (
            [
                {"prompt_tokens": 4, "output_tokens": 1},
                {"trace": 1, "prefix_block_tokens": 4},
            ],
            r":2: the line that describes the trace must be its first",
        ),
        (
            ['{"arrival": 1, "prompt_tokens": 4, "prompt_tokens": 9, "output_tokens": 1}'],
            ":1: prompt_tokens occurs twice",
        ),
        (
            ['{"timestamp": 1, "input_length": 4, "output_length": false}'],
            r":1: output_length: .*integer",
        ),
        (
            ['{"timestamp": 1, "input_length": 4, "output_length": null}'],
            r":1: output_length: .*integer",
        ),
        (
            ['{"timestamp": 1' + "0" * 4000 + ', "input_length": 4, "output_length": 1}'],
            r":1: a number of 4,001 digits",
        ),
        (
            ['{"timestamp": NaN, "input_length": 4, "output_length": 1}'],
            r":1: timestamp is nan; it must be a number of milliseconds",
        ),
        (
            ['{"arrival": Infinity, "prompt_tokens": 4, "output_tokens": 1}'],
            r":1: arrival: .*finite",
        ),
        (["[" * 100_000], r":1: no known trace format"),
        (
            ['{"prompt_tokens": 4, "output_tokens": 1}', "[" * 100_000],
            r":2: the line is nested too deeply",
        ),
        (
            ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03,1_0,2"],
            r":2: needs TIMESTAMP, ContextTokens, GeneratedTokens: '1_0' is not a number of tokens",
        ),
        (
            ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03,10,2,7"],
            r":2: .*more fields than the first line names",
        ),
        (["Timestamp,Request tokens,Response tokens", "1_0,1,2"], r":2: .*'1_0' is not a time"),
    ],
)
def test_F029_a_row_that_cannot_be_is_refused_with_its_number(
    tmp_path: Path, records: list[Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(write(tmp_path, *records))


def test_F029_a_list_with_more_hashes_than_blocks_is_refused(tmp_path: Path) -> None:
    rows = [{"prompt_tokens": 16, "output_tokens": 1, "prefix_hashes": (1, 2)}]
    options = FixedOptions.model_validate({"requests": rows})
    with pytest.raises(ConfigError, match=r"requests\[0\]\.prefix_hashes: 2 prefix_hashes for"):
        FixedList(options, CONFIG)


def test_F029_more_requests_than_the_trace_has_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"num_requests: 201 requests are asked for, and .* 200"):
        Replay(ReplayOptions(file=TRACE, num_requests=201), CONFIG)


@pytest.mark.parametrize(
    "arrivals",
    [
        {"process": "poisson", "rate": 4.0},
        {"process": "gamma", "rate": 4.0, "cv": 3.0},
        {"process": "on_off", "rate": 4.0, "on_s": 1.0, "off_s": 3.0},
    ],
)
def test_F030_lengths_of_a_trace_come_by_a_process(arrivals: dict[str, Any]) -> None:
    options = ReplayOptions.model_validate({"file": TRACE, "arrivals": arrivals})
    seeds = [WorkloadConfig(vocab_size=100, max_model_len=8192, seed=seed) for seed in (1, 2)]
    one, other = (list(Replay(options, config).initial()) for config in seeds)
    rows = read_trace(TRACE).rows
    for made in (one, other):
        assert [len(r.prompt_token_ids) for r in made] == [row.prompt_tokens for row in rows]
        assert [r.sampling.max_tokens for r in made] == [row.output_tokens for row in rows]
        assert [r.arrival for r in made] == sorted(r.arrival or 0.0 for r in made)
    assert Replay(options, seeds[0]).rate == 4.0
    assert one[0].arrival > 0
    assert one[-1].arrival == pytest.approx(200 / 4.0, rel=0.7)
    assert [r.arrival for r in one] != [r.arrival for r in other]


def test_F030_deadlines_move_with_their_requests(tmp_path: Path) -> None:
    row = {"arrival": 5.0, "prompt_tokens": 4, "output_tokens": 1, "deadline": 8.0}
    options = {"file": write(tmp_path, row), "arrivals": {"process": "poisson", "rate": 1.0}}
    (made,) = Replay(ReplayOptions.model_validate(options), CONFIG).initial()
    assert made.arrival is not None
    assert made.deadline == pytest.approx(made.arrival + 3.0)


def test_F064_random_parts_do_not_overlap() -> None:
    options = ReplayOptions(file=TRACE, num_requests=50, part="random")
    parts = [
        tuple(
            len(r.prompt_token_ids)
            for r in Replay(
                options, WorkloadConfig(vocab_size=100, max_model_len=8192, seed=seed)
            ).initial()
        )
        for seed in range(7, 15)
    ]
    lengths = [row.prompt_tokens for row in read_trace(TRACE).rows]
    blocks = {tuple(lengths[i : i + 50]) for i in range(0, 200, 50)}
    assert set(parts[:4]) == blocks
    assert parts[4:] == parts[:4]


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ([1.0, 0.5], "request '1' the arrival 0.5 s after request '0' with 1 s"),
        ([0.0, float("nan")], "request '1' the arrival nan, which is not a time"),
        ([float("inf")], "request '0' the arrival inf, which is not a time"),
        ([None], "request '0' the arrival None, which is not a time"),
    ],
)
def test_arrivals_of_a_workload_that_cannot_be_are_refused(
    arrivals: list[float | None], message: str
) -> None:
    class Odd(Workload):
        @property
        def num_requests(self) -> int:
            return len(arrivals)

        def initial(self) -> Iterator[Request]:
            for number, arrival in enumerate(arrivals):
                yield Request(id=str(number), prompt_token_ids=[1, 2], arrival=arrival)

    with pytest.raises(ConfigError, match=message):
        list(drive(simulated_engine(Fcfs(FcfsOptions())), Odd()))
