"""Real weights of the Llama family; see fetch_smollm2.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nanofw import LLM, SamplingParams
from nanofw.assembly import select
from nanofw.bench.verify import VerifyOptions, compare, make_prompts, run_engine
from nanofw.config.load import load_config
from tests.parity.reference import compare as compare_tokens
from tests.parity.reference import load_reference
from tests.parity.test_greedy import generate

FOLDER = os.environ.get("NANOFW_TEST_SMOLLM2")
pytestmark = [
    pytest.mark.weights,
    pytest.mark.skipif(
        FOLDER is None, reason="NANOFW_TEST_SMOLLM2 is not set; see tests/parity/fetch_smollm2.py"
    ),
]
QUESTIONS = [
    "What is the capital of France? Answer with one word.",
    "Name three primary colours.",
    "Why is the sky blue?",
    "Write one sentence about a cat that found a key.",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(str(FOLDER))


def prompts(folder: Path) -> list[list[int]]:
    """Chats, encoded as the model's template says."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]


@pytest.mark.parametrize("room", ["ample", "scarce"])
def test_greedy_tokens_are_those_of_transformers(folder: Path, room: str) -> None:
    levels: dict[str, Any] = {
        "batching": "mixed", "kv_allocator": "paged_prefix", "room": room, "chunk_tokens": 16,
        "overlap": room == "ample",
    }  # fmt: skip
    asked = prompts(folder)
    outputs, _ = generate(folder, asked, 24, levels)
    compare_tokens(load_reference(folder), asked, outputs).check()


def test_logits_are_those_of_transformers(folder: Path) -> None:
    selection = select(load_config("qwen3-demo", [f"model.path={folder}", "engine.device=cpu"]))
    texts = run_engine(selection, make_prompts(selection.spec.vocab_size, 100, 0), 8)
    found = compare(texts, str(folder), "float32", "cpu", VerifyOptions())
    assert all(item.is_within for item in found), found


def test_it_answers_through_its_chat_template(folder: Path) -> None:
    with LLM(str(folder), device="cpu", max_num_seqs=4, max_model_len=512) as llm:
        params = SamplingParams(temperature=0, max_tokens=16)
        result = llm.chat([{"role": "user", "content": QUESTIONS[0]}], params)
    first = result[0] if isinstance(result, list) else result
    assert "Paris" in first.outputs[0].text
