"""Each fault of each method of each kind, in `nanofw run`: named, and every request has its line.

The list comes from the contracts: a method that is new there is tried here, too. What a fault may
do instead of ending the run is in the tables below, with its reason.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nanofw.cli.main import main
from nanofw.contracts.cost_model import CostModel, OccupiesHost
from nanofw.contracts.kv_allocator import KVAllocator
from nanofw.contracts.scheduler import Policy
from nanofw.contracts.workload import Workload
from tests.faults.faulty import ANSWERS, ENDLESS, KINDS, NUM_REQUESTS, RAISING

CONTRACTS: dict[str, tuple[type, ...]] = {
    "scheduler": (Policy,),
    "kv_allocator": (KVAllocator,),
    "workload": (Workload,),
    "cost_model": (CostModel, OccupiesHost),
}
OF_BLOCKS = {"longer", "shorter", "zeros", "outside", "below", "as_text", "as_list"}
"""Faults of answers that have block ids."""
WITH_BLOCKS = {"match", "acquire", "extend"}
ITERATED = {"initial", "follow", "window_key", "rekey", "pause"}
"""Methods whose answer is iterated, and bounded."""
NOT_READ = {
    ("scheduler", name)
    for name in (
        "check", "on_arrival", "on_start", "on_preempt", "on_progress", "on_finish",
    )
} | {("kv_allocator", name) for name in ("commit", "release", "check_integrity")}  # fmt: skip
"""Methods whose answer nobody reads: only what they raise is a fault."""
NOT_CALLED = {("kv_allocator", "reset"), ("workload", "rate")}
"""Methods that `nanofw run` does not call; others test them."""
AT_THE_START = {("scheduler", name) for name in ("window", "skip_ahead", "max_rekeys")} | {
    ("cost_model", "kv_bytes")
}
"""What is looked at before there are requests."""
MEANINGFUL: dict[tuple[str, str], set[str]] = {
    ("scheduler", "key"): {"text", "negative", "flag", "huge", "empty"},  # they have an order
    ("scheduler", "group"): {"none", "text", "object", "nan", "negative", "flag", "huge"},
    ("scheduler", "group_key"): {"text", "negative", "flag", "huge", "empty"},
    ("scheduler", "rekey"): {"empty"},
    ("scheduler", "pause"): {"empty"},
    ("scheduler", "admit"): {"flag"},
    ("scheduler", "chunk"): {"none", "huge"},
    ("scheduler", "step_budget"): {"none", "huge"},
    ("scheduler", "victim"): {"none"},
    ("scheduler", "window"): {"huge"},
    ("scheduler", "skip_ahead"): {"huge"},
    ("scheduler", "max_rekeys"): {"huge"},
    ("scheduler", "wake"): {"huge"},  # waits for so long, in virtual time
    ("kv_allocator", "extend"): {"none"},  # gives way, then no progress
    ("workload", "num_requests"): {"huge"},  # a report says how many did not come
    ("workload", "initial"): {"empty"},
    ("workload", "follow"): {"empty"},
    ("workload", "notes"): {"text", "empty"},
    ("workload", "shares_prefixes"): {"flag"},
    ("cost_model", "seconds"): {"flag"},
    ("cost_model", "kv_bytes"): {"none"},
}
"""Answers that mean something, odd as they are."""


class Case(NamedTuple):
    kind: str
    method: str
    fault: str

    @property
    def is_fast(self) -> bool:
        return zlib.crc32(repr(self).encode()) % 6 == 0 or self.fault == "raises"


def methods(kind: str) -> list[str]:
    """The public names of a kind's contract."""
    names = {name for contract in CONTRACTS[kind] for name in dir(contract) if name[0] != "_"}
    return sorted(name for name in names if hasattr(KINDS[kind][0], name))


def cases() -> Iterator[Any]:
    for kind in KINDS:
        for method in methods(kind):
            if (kind, method) in NOT_CALLED:
                continue
            faults = set(RAISING)
            if (kind, method) not in NOT_READ:
                faults |= set(ANSWERS) - (set() if method in WITH_BLOCKS else OF_BLOCKS)
            if method in ITERATED:
                faults |= set(ENDLESS)
            for fault in sorted(faults - MEANINGFUL.get((kind, method), set())):
                case = Case(kind, method, fault)
                marks = () if case.is_fast else (pytest.mark.slow,)
                yield pytest.param(case, id="-".join(case), marks=marks)


def settings(kind: str, **fault: Any) -> list[str]:
    options = ", ".join([f"{name}: {value}" for name, value in {"name": "faulty", **fault}.items()])
    pool = "{block_size: 4, num_blocks: 11, name: paged_prefix, check_every: 3}"
    if kind == "kv_allocator":
        pool = f"{{block_size: 4, num_blocks: 11, check_every: 3, {options}}}"
    if fault.get("method") == "kv_bytes":
        pool = "{block_size: 4}"
    return [
        f"plugins.load=[{Path(__file__).with_name('faulty.py')}]",
        "engine.max_model_len=40",
        "engine.max_num_seqs=3",
        "sampling={max_tokens: 16, temperature: 0, ignore_eos: true}",
        f"kv_allocator={pool}",
        f"scheduler={{{options}}}" if kind == "scheduler" else "scheduler={name: faulty}",
        f"executor.cost_model={{{options}}}" if kind == "cost_model" else "",
        f"input.workload={{{options}}}" if kind == "workload" else "",
    ]


def run(folder: Path, kind: str, **fault: Any) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and results of `nanofw run`."""
    output, prompts = folder / "results.jsonl", folder / "prompts.jsonl"
    lines = [
        {"prompt": f"{'number' * 3} {i}", "id": f"r{i}", "client": f"c{i % 2}", "priority": -i}
        for i in range(NUM_REQUESTS)
    ]
    prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    words = [word for word in settings(kind, **fault) if word]
    source = [] if kind == "workload" else [f"input.file={prompts}"]
    code = main(["run", "sim", *words, *source, f"output.file={output}"])
    if not output.is_file():
        return code, []
    return code, [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


@cache
def sound_tokens(kind: str, folder: Path) -> dict[str, list[int]]:
    code, results = run(folder, kind)
    assert code == 0
    assert len(results) == NUM_REQUESTS
    return {result["id"]: result["token_ids"] for result in results}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sound")


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_fault_everything_is_served(kind: str, folder: Path) -> None:
    assert sound_tokens(kind, folder)


@pytest.mark.parametrize("case", list(cases()))
def test_a_fault_is_named_and_every_request_has_its_line(
    case: Case, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = sound_tokens(case.kind, folder)
    capsys.readouterr()
    code, results = run(tmp_path, case.kind, method=case.method, fault=case.fault)
    said = capsys.readouterr().err
    assert code in (1, 3), said
    bad = [result for result in results if result["finish_reason"] not in ("length", "stop")]
    told = said if code == 3 else "\n".join(str(result["error"]) for result in bad)
    assert f"{case.kind} 'faulty' of " in told, told
    assert "faulty.py" in told, told
    assert case.method in told, told
    assert "Traceback" not in said
    assert len(said) < 20_000
    if case.kind != "workload" and (case.kind, case.method) not in AT_THE_START:
        assert [result["id"] for result in results] == list(expected)
    for result in results:
        if result in bad:
            assert result["error"], result
        assert result["token_ids"] == expected[result["id"]][: len(result["token_ids"])]
