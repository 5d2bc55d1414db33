"""Traces: the documented format, foreign formats, and errors that say where."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanofw.contracts.workload import WorkloadConfig
from nanofw.errors import ConfigError
from nanofw.workloads.replay import Replay, ReplayOptions
from nanofw.workloads.trace import FORMATS, Trace, TraceRow, read_trace

TRACES = Path(__file__).parents[2] / "examples" / "traces"


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_azure() -> None:
    trace = read_trace(TRACES / "azure_2023_conv_excerpt.csv")
    first, second = trace.rows[:2]
    assert len(trace.rows) == 200
    assert (first.arrival, first.prompt_tokens, first.output_tokens) == (0.0, 374, 44)
    assert second.arrival == pytest.approx(50.995169 - 46.68059, abs=1e-5)
    assert len(read_trace(TRACES / "azure_2023_code_excerpt.csv").rows) == 120


def test_mooncake() -> None:
    trace = read_trace(TRACES / "mooncake_synthetic_excerpt.jsonl")
    assert len(trace.rows) == 40
    assert trace.rows[3].arrival == 0.277
    assert trace.rows[0].prefix_hashes[:3] == (0, 1, 2)
    assert all(len(row.prefix_hashes) == -(-row.prompt_tokens // 512) for row in trace.rows)


def test_burstgpt_leaves_out_failed_requests(tmp_path: Path) -> None:
    head = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type"
    )
    path = write(
        tmp_path / "b.csv", head, "5,,,GPT-4,472,18,490,Conversation log",
        "9,,,GPT-4,100,0,100,API log", "45,,,GPT-4,1087,230,1317,API log",
    )  # fmt: skip
    trace = read_trace(path)
    assert [(row.arrival, row.output_tokens) for row in trace.rows] == [(0.0, 18), (40.0, 230)]
    assert trace.skipped == 1


def write_records(path: Path, *records: dict[str, Any]) -> Path:
    return write(path, *map(json.dumps, records))


def test_every_field_is_read(tmp_path: Path) -> None:
    path = write_records(
        tmp_path / "t.jsonl",
        {"trace": 1, "prefix_block_tokens": 4, "source": "test"},
        {"prompt_tokens": 5, "output_tokens": 2},
        {
            "arrival": 1.5, "prompt_tokens": 9, "output_tokens": 1, "prefix_hashes": [4, 9],
            "client": "a", "priority": -1, "deadline": 3.0, "expected_output_tokens": 7, "seed": 11,
        },
    )  # fmt: skip
    rows = (
        TraceRow(prompt_tokens=5, output_tokens=2),
        TraceRow(
            arrival=1.5, prompt_tokens=9, output_tokens=1, prefix_hashes=(4, 9), client="a",
            priority=-1, deadline=3.0, expected_output_tokens=7, seed=11,
        ),
    )  # fmt: skip
    assert read_trace(path) == Trace(rows, prefix_block_tokens=4)


def test_replay_gives_every_field_and_shares_prefixes(tmp_path: Path) -> None:
    path = write_records(
        tmp_path / "t.jsonl",
        {"trace": 1, "prefix_block_tokens": 4},
        {
            "arrival": 2.0, "prompt_tokens": 10, "output_tokens": 2, "prefix_hashes": [1, 2],
            "seed": 5,
        },
        {
            "arrival": 4.0, "prompt_tokens": 9, "output_tokens": 3, "prefix_hashes": [1, 7],
            "client": "c",
        },
        {"arrival": 6.0, "prompt_tokens": 3, "output_tokens": 3, "deadline": 8.0, "priority": 2},
    )  # fmt: skip
    config = WorkloadConfig(vocab_size=100, max_model_len=64, start=10.0, time_scale=0.5)
    replay = Replay(ReplayOptions(file=path), config)
    a, b, c = replay.initial()
    assert replay.rate == 0.5
    assert [r.arrival for r in (a, b, c)] == [10.0, 11.0, 12.0]
    assert np.array_equal(a.prompt_token_ids[:4], b.prompt_token_ids[:4])
    assert not np.array_equal(a.prompt_token_ids[4:8], b.prompt_token_ids[4:8])
    assert [len(r.prompt_token_ids) for r in (a, b, c)] == [10, 9, 3]
    assert (a.sampling.seed, b.client, c.priority, c.deadline) == (5, "c", 2, 13.0)
    assert [r.sampling.max_tokens for r in (a, b, c)] == [2, 3, 3]
    assert all(r.sampling.ignore_eos for r in (a, b, c))


def test_random_parts_depend_on_the_seed() -> None:
    options = ReplayOptions(
        file=TRACES / "azure_2023_conv_excerpt.csv", num_requests=50, part="random"
    )

    def lengths(seed: int) -> list[int]:
        config = WorkloadConfig(vocab_size=100, max_model_len=8192, seed=seed)
        return [len(r.prompt_token_ids) for r in Replay(options, config).initial()]

    assert lengths(1) == lengths(1)
    assert lengths(1) != lengths(2)
    assert len(lengths(1)) == 50


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], r"t\.x:1: no known trace format"),
        (['{"prompt_tokens": 3, "output_tokens": 1}', "{"], r"t\.x:2: not JSON"),
        (['{"prompt_tokens": 0, "output_tokens": 1}'], r"t\.x:1: prompt_tokens: .*greater than"),
        (['{"prompt_tokens": 3, "ouput_tokens": 1}'], r"t\.x:1: output_tokens: Field required"),
        (['{"trace": 9}'], r"t\.x:1: trace version 9 is not 1"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "noon,1,2"], r"t\.x:2: needs TIMESTAMP"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens"], "no request with an output"),
        ([""], "the trace is empty"),
        (['{"prompt_tokens": true, "output_tokens": 1}'], r"t\.x:1: prompt_tokens: .*integer"),
        (['{"prompt_tokens": "3", "output_tokens": 1}'], r"t\.x:1: prompt_tokens: .*integer"),
        (
            ['{"arrival": "0", "prompt_tokens": 3, "output_tokens": 1}'],
            r"t\.x:1: arrival: .*number",
        ),
        (['{"trace": 1, "prefix_block_tokens": 0}'], r"t\.x:1: prefix_block_tokens is 0"),
        (['{"trace": 1, "prefix_block_tokens": "16"}'], r"t\.x:1: prefix_block_tokens is '16'"),
        (['{"timestamp": 0, "input_length": 5}'], r"t\.x:1: output_length is missing"),
        (['{"timestamp": "1", "input_length": 5, "output_length": 2}'], r"t\.x:1: timestamp is"),
        (['{"input_length": 5, "output_length": 2}'], r"t\.x:1: timestamp is missing"),
        (["Timestamp,Request tokens,Response tokens", "nan,1,2"], r"t\.x:2: needs Timestamp"),
    ],
)
def test_errors_say_where(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(write(tmp_path / "t.x", *lines))


def test_a_trace_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.x"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"t\.x: the trace is not UTF-8"):
        read_trace(path)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_times_of_a_trace_do_not_depend_on_the_zone_of_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    head = "TIMESTAMP,ContextTokens,GeneratedTokens"
    instants = (
        "2024-03-10 01:59:59.009930+00:00", "2024-03-10 02:00:00+00:00",
        "2024-03-10 07:30:00.5+00:00",
    )  # fmt: skip
    zoned = read_trace(write(tmp_path / "a", head, *(f"{text},3,2" for text in instants)))
    naive = (text.removesuffix("+00:00") for text in instants)
    plain = read_trace(write(tmp_path / "b", head, *(f"{text},3,2" for text in naive)))
    monkeypatch.undo()
    time.tzset()
    expected = pytest.approx([0.0, 0.99007, 19801.49007])
    assert [row.arrival for row in zoned.rows] == expected
    assert [row.arrival for row in plain.rows] == expected


def test_rows_out_of_order_keep_their_gaps(tmp_path: Path) -> None:
    head = "Timestamp,Request tokens,Response tokens"
    trace = read_trace(write(tmp_path / "t", head, "9,3,1", "4,2,1", "30,5,1"))
    assert [(row.arrival, row.prompt_tokens) for row in trace.rows] == [(0, 2), (5, 3), (26, 5)]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.jsonl: cannot read the trace: No such file"):
        read_trace(tmp_path / "gone.jsonl")


def test_every_format_is_an_option() -> None:
    formats = ReplayOptions.model_json_schema()["properties"]["format"]["enum"]
    assert set(formats) == {"auto", *FORMATS}
