"""Each fault of each method of each kind, in `nanofw run`: named, and every request has its line.

The list comes from the contracts: a method that is new there is tried here, too, and so is each
field of what it answers. What a fault may do instead of ending the run is in the tables below,
with its reason.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nanofw.cli.main import main
from tests.faults.faults import ARRAYS, ENDLESS, FIELDS, NUM_REQUESTS, RAISING, SCALARS
from tests.faults.kinds import KINDS, Answer, answers

OF_ARRAYS = {
    "kv_allocator": {"longer", "shorter", "zeros", "outside", "below", "as_text", "as_list"},
    "executor": {"longer", "shorter", "as_text", "as_list", "double"},
}
"""What is wrong with arrays of these kinds."""
OF_TENSORS = {"longer", "shorter", "as_list", "wide", "double", "elsewhere"}
"""What is wrong with tensors."""
FURTHER = {("sampler", "sample"): {"outside", "below"}}
ITERATED = {"initial", "follow", "window_key", "rekey", "pause"}
"""Methods whose answer is iterated, and bounded."""
TOLD_AT_THE_END = {"finish", "on_finish"}
"""What they raise is logged: the request has its result."""
SPEAKS_FOR_ITSELF = {("model", "load")}
"""Methods whose contract lets them raise errors of nanofw, which stay as they are; what `check`
raises as a ValueError is the refusal that it is for."""
NOT_CALLED = {
    ("kv_allocator", "reset"),
    ("workload", "rate"),
    ("executor", "check_alive"),
    ("executor", "stride"),  # where steps are not watched
    ("executor", "facts"),
    ("router", "on_lost"),  # a replica that is gone
    ("sampler", "can_shard"),  # several ranks
    ("sampler", "deferred_bytes"),  # an accelerator
    ("logits_processor", "deferred_bytes"),
    ("model", "load_random"),  # weights that mean nothing
    ("attention_backend", "copy_blocks"),  # an allocator that copies
    ("host_processor", "mask"),  # by `mask_rows`, see there
}
"""Methods that these runs do not call; others test them."""
AT_THE_START = {
    ("scheduler", "window"),
    ("scheduler", "skip_ahead"),
    ("scheduler", "max_rekeys"),
    ("cost_model", "kv_bytes"),
    ("router", "prefix_blocks"),
    ("executor", "capacity"),
    ("kv_allocator", "works_by_block"),
    ("model", "load"),
    ("attention_backend", "allocate"),
    ("attention_backend", "bytes_per_block"),
    ("sampler", "variants"),
    ("sampler", "shard_variants"),
    ("logits_processor", "stage"),
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
    ("kv_allocator", "works_by_block"): {"flag"},
    ("kv_allocator", "extend"): {"none"},  # gives way, then no progress
    ("workload", "num_requests"): {"huge"},  # a report says how many did not come
    ("workload", "initial"): {"empty"},
    ("workload", "follow"): {"empty"},
    ("workload", "notes"): {"text", "empty"},
    ("workload", "shares_prefixes"): {"flag"},
    ("cost_model", "seconds"): {"flag"},
    ("cost_model", "kv_bytes"): {"none"},
    ("sampler", "variant"): {"none"},
    ("logits_processor", "add_row"): {"flag"},
    ("host_processor", "start"): {"flag"},
    ("router", "prefix_blocks"): {"huge"},  # a bound
    ("model", "logits"): {"wide", "double"},  # padded, and in another type
}
"""Answers that mean something, odd as they are."""


class Case(NamedTuple):
    kind: str
    method: str
    fault: str

    @property
    def is_fast(self) -> bool:
        share = 40 if KINDS[self.kind].computes else 14
        return zlib.crc32(repr(self).encode()) % share == 0 or self.fault == "raises"


def faults_of(kind: str, method: str, answer: Answer) -> set[str]:
    """The faults that a method can have."""
    found = set(RAISING) | FURTHER.get((kind, method), set())
    if method == "check" or (kind, method) in SPEAKS_FOR_ITSELF:
        found -= {"raises_ours"}
    if answer.is_read:
        found |= set(SCALARS)
        found |= {f"{field}={value}" for field in answer.fields for value in FIELDS}
    if answer.has_arrays:
        found |= OF_ARRAYS.get(kind, OF_TENSORS)
    if method in ITERATED:
        found |= set(ENDLESS)
    assert found <= {*RAISING, *SCALARS, *ARRAYS, *ENDLESS} | {f for f in found if "=" in f}
    return found - MEANINGFUL.get((kind, method), set())


def cases() -> Iterator[Any]:
    for kind in KINDS:
        for method, answer in answers(kind).items():
            if (kind, method) in NOT_CALLED:
                continue
            for fault in sorted(faults_of(kind, method, answer)):
                case = Case(kind, method, fault)
                marks = () if case.is_fast else (pytest.mark.slow,)
                yield pytest.param(case, id="-".join(case), marks=marks)


def settings(kind: str, **fault: Any) -> list[str]:
    options = ", ".join([f"{name}: {value}" for name, value in fault.items()])
    folder = Path(__file__).parent
    chosen = KINDS[kind]
    component = f"{{name: {chosen.name}{', ' * bool(options)}{options}}}"
    if chosen.computes:
        return [
            f"plugins.load=[{folder / 'computing.py'}]",
            "engine={max_model_len: 64, max_num_seqs: 3, device: cpu}",
            "kv_allocator={block_size: 4, num_blocks: 40}",
            "sampling={temperature: 0, ignore_eos: true}",
            *(
                f"{section}={component if section == chosen.section else '{name: faulty}'}"
                for section in ("sampler", "attention_backend")
            ),
            f"model={{path: embedded:demo, {component[1:]}" if kind == "model" else "",
            f"logits_processors=[{component if kind == 'logits_processor' else '{name: faulty}'}]",
        ]
    pool = f"{{block_size: 4, num_blocks: 11, check_every: 3, {component[1:]}"
    if kind != "kv_allocator":
        pool = "{block_size: 4, num_blocks: 11, name: paged_prefix, check_every: 3}"
    if fault.get("method") == "kv_bytes":
        pool = "{block_size: 4}"
    hosts = "[{name: faulty_host}]" if kind == "executor" else ""
    return [
        "sim",
        f"plugins.load=[{folder / 'faulty.py'}]",
        "engine.max_model_len=40",
        "engine.max_num_seqs=3",
        "sampling={max_tokens: 16, temperature: 0, ignore_eos: true}",
        f"kv_allocator={pool}",
        f"scheduler={component}" if kind == "scheduler" else "scheduler={name: faulty}",
        "engine.replicas=2" if kind == "router" else "",
        f"router={component}" if kind == "router" else "",
        f"executor.cost_model={component}" if kind == "cost_model" else "",
        f"executor={component}" if kind == "executor" else "",
        f"input.workload={component}" if kind == "workload" else "",
        f"logits_processors=[{component}]" if kind == "host_processor" else "",
        f"logits_processors={hosts}" if hosts else "",
    ]


def run(folder: Path, kind: str, **fault: Any) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and results of `nanofw run`."""
    output, prompts = folder / "results.jsonl", folder / "prompts.jsonl"
    lines: list[dict[str, Any]] = [
        {"prompt": f"{'number' * 3} {i}", "id": f"r{i}", "client": f"c{i % 2}", "priority": -i}
        for i in range(NUM_REQUESTS)
    ]
    if KINDS[kind].computes:  # the last one ends alone
        lines = [{**line, "max_tokens": 2 + i} for i, line in enumerate(lines)]
    prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    words = [word for word in settings(kind, **fault) if word]
    logging.getLogger("nanofw").handlers.clear()  # the last one writes to an earlier test's stream
    source = [] if kind == "workload" else [f"input.file={prompts}"]
    code = main(["run", *words, *source, f"output.file={output}"])
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
    bad = [result for result in results if result["finish_reason"] not in ("length", "stop")]
    if case.method in TOLD_AT_THE_END:
        assert (code, bad) == (0, []), said
        told = said
    else:
        assert code in (1, 3), said
        told = said if code == 3 else "\n".join(str(result["error"]) for result in bad)
    chosen = KINDS[case.kind]
    assert f"{chosen.kind} '{chosen.name}' of " in told, told
    assert "faulty.py" in told or "computing.py" in told, told
    assert case.method in told, told
    assert "Traceback" not in said
    assert len(said) < 20_000
    if case.kind != "workload" and (case.kind, case.method) not in AT_THE_START:
        assert [result["id"] for result in results] == list(expected)
    for result in results:
        if result in bad:
            assert result["error"], result
        assert result["token_ids"] == expected[result["id"]][: len(result["token_ids"])]
