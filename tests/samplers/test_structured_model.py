"""Structured output with a real model, through the Python API and the command line."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanofw import LLM, AsyncLLM, SamplingParams
from nanofw.cli.main import main
from nanofw.contracts.requests import FinishReason
from tests.samplers.grammar_cases import problem, random_arguments
from tests.samplers.test_structured import EMPTY, make

NUM_CASES = 200
PROMPTS = ("And the LORD said", "In those days there was no king in Israel", "Now the sons of")


def record(index: int) -> dict[str, Any]:
    prompt = PROMPTS[index % len(PROMPTS)] * (1 + index % 4)
    record: dict[str, Any] = {"prompt": prompt, "seed": index}
    if index % 5 == 4:
        return {**record, "max_tokens": 20, "ignore_eos": True}
    return {**record, "arguments": {"structured": random_arguments(index)}}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="plain", marks=pytest.mark.slow),
        pytest.param(
            {
                "overlap": True,
                "chunk_tokens": 7,
                "kv_allocator": {"name": "paged_prefix", "block_size": 8, "num_blocks": 60},
            },
            id="overlap, chunked, preempted",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_output_of_the_embedded_model_is_valid(settings: dict[str, Any]) -> None:
    with LLM(
        "embedded:demo",
        dtype="float32",
        max_num_seqs=32,
        max_num_batched_tokens=256,
        logits_processors=[{"name": "structured", "num_threads": 1}],
        **settings,
    ) as llm:
        params = SamplingParams(max_tokens=200, temperature=1.0)
        results = llm.generate([record(index) for index in range(NUM_CASES)], params)
    num_cut = 0
    for index, result in enumerate(results):
        (output,) = result.outputs
        if index % 5 == 4:
            assert len(output.token_ids) == 20
            continue
        arguments = random_arguments(index)
        if output.finish_reason is FinishReason.STOP:
            assert problem(arguments, output.text) is None, (arguments, output.text)
        else:
            assert output.finish_reason is FinishReason.LENGTH
            num_cut += 1  # a number without an upper bound may go on
            judge = make()
            judge.start("cut", arguments, EMPTY)
            judge.advance("cut", np.array(output.token_ids, np.int32))
    assert num_cut < 0.1 * NUM_CASES
    preempted = [r for i, r in enumerate(results) if i % 5 != 4 and r.num_preemptions]
    assert bool(preempted) == bool(settings)


YAML = """
model: {path: "embedded:demo", dtype: float32}
logits_processors:
  - {name: structured, default: {choice: ["peace", "war"]}}
sampling: {temperature: 1.0, max_tokens: 40}
input: {file: prompts.jsonl}
output: {file: results.jsonl}
"""


def test_the_command_line_takes_arguments_by_line_and_a_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 3}
    lines = [
        "And the king of",
        {"prompt": "The names:", "arguments": {"structured": {"json_schema": schema}}, "n": 2},
        {"prompt": "The year:", "arguments": {"structured": {"regex": "[0-9]{4}"}}},
        {"prompt": "Broken:", "arguments": {"structured": {"regex": "["}}},
        {"prompt": "Free:", "arguments": {"structured": False}, "max_tokens": 3},
    ]
    text = "\n".join(json.dumps(line) for line in lines)
    (tmp_path / "prompts.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "run.yaml").write_text(YAML, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    main(["run", "run.yaml"])
    written = (tmp_path / "results.jsonl").read_text("utf-8").splitlines()
    results = [json.loads(line) for line in written]
    assert results[0]["text"] in ("peace", "war")
    assert len(results[1]["samples"]) == 2
    for sample in results[1]["samples"]:
        assert problem({"json_schema": schema}, sample["text"]) is None
    assert problem({"regex": "[0-9]{4}"}, results[2]["text"]) is None
    assert "unclosed character class" in results[3]["error"]
    assert len(results[4]["token_ids"]) == 3


def test_arguments_of_a_call_hold_for_all_its_prompts() -> None:
    digits = {"structured": {"regex": "[0-9]{3}"}}
    params = SamplingParams(max_tokens=20)

    async def streamed() -> str:
        async with AsyncLLM("embedded:demo", logits_processors=[{"name": "structured"}]) as llm:
            return "".join([e.text async for e in llm.generate("A", params, arguments=digits)])

    with LLM("embedded:demo", logits_processors=[{"name": "structured"}]) as llm:
        texts = [r.outputs[0].text for r in llm.generate(["A", "B"], params, arguments=digits)]
        texts.append("".join(e.text for e in llm.stream("C", params, arguments=digits)))
    for text in [*texts, asyncio.run(streamed())]:
        assert re.fullmatch("[0-9]{3}", text)


PAGE = Path(__file__).parents[2] / "docs" / "structured-output.md"
FENCE = re.compile(r"^```(\w+)\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_files_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _, name, text in FENCE.findall(PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "structured.yaml"]) == 0
    lines = (tmp_path / "prompts.jsonl").read_text("utf-8").splitlines()
    results = (tmp_path / "results.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == len(results) == 4
    for line, result in zip(map(json.loads, lines), map(json.loads, results), strict=True):
        assert result["finish_reason"] == "stop"
        if "lark" not in line["arguments"]["structured"]:
            assert problem(line["arguments"]["structured"], result["text"]) is None
