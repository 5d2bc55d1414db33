"""Replies of chats, a stop criterion in Python, and beam search."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from nanofw import LLM, AsyncLLM, beam_search
from nanofw.text.replies import Reply
from tests.models.family_folders import write_family
from tests.server.running import chat_model

CHAT = [{"role": "user", "content": "Who art thou?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("demo"))


def test_replies_of_chats_are_taken_apart_streaming_or_not(folder: Path) -> None:
    """A template that ends within the reasoning: everything up to its end tag is reasoning."""
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template + "<think>", encoding="utf-8")
    how: dict[str, Any] = {"max_tokens": 9, "temperature": 0}

    async def ended() -> Any:
        async with AsyncLLM(folder, device="cpu") as llm:
            return [event.result async for event in llm.chat(CHAT, **how)][-1]

    with LLM(folder, device="cpu") as llm:
        (whole,) = llm.chat(CHAT, **how)
        events = list(llm.stream_chat(CHAT, **how))
        plain = llm.generate("And it came", max_tokens=2)[0].outputs[0]
    other = asyncio.run(ended())
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    text = whole.outputs[0].text
    assert whole.outputs[0].reply == Reply(reasoning=text.lstrip())
    assert whole.outputs[0].tool_calls == ()
    last = events[-1].result
    assert last is not None
    assert "".join(event.text for event in events) == text
    assert last.outputs[0].reply == whole.outputs[0].reply
    assert other.outputs[0].reply == whole.outputs[0].reply
    assert plain.reply is None


def test_a_criterion_in_python_ends_a_sample_where_it_says() -> None:
    with LLM("embedded:demo", device="cpu") as llm:
        how: dict[str, Any] = {"max_tokens": 20, "temperature": 0}
        (whole,) = llm.generate("And it came to pass", **how)
        seen: list[int] = []

        def after_seven(text: str, token_ids: Any) -> bool:
            seen.append(len(token_ids))
            return len(token_ids) == 7

        (cut,) = llm.generate("And it came to pass", stop_when=after_seven, **how)
        streamed = list(llm.stream("And it came to pass", stop_when=after_seven, **how))
        never, failing, wrong = llm.generate(
            [
                {"prompt": "And it came to pass", "stop_when": lambda text, ids: False},
                {"prompt": "And it came to pass", "stop_when": lambda text, ids: 1 / 0},
                {"prompt": "And it came to pass", "stop_when": "soon"},
            ],
            **how,
        )
        assert not llm.engine.has_unfinished
    assert cut.outputs[0].token_ids == whole.outputs[0].token_ids[:7]
    assert (cut.finish_reason, seen[:7]) == ("stop", list(range(1, 8)))
    assert whole.outputs[0].text.startswith(cut.outputs[0].text)
    assert "".join(event.text for event in streamed) == cut.outputs[0].text
    assert never.outputs[0].token_ids == whole.outputs[0].token_ids
    assert "stop_when raised ZeroDivisionError" in str(failing.error)
    assert "stop_when must be a function" in str(wrong.error)


@pytest.mark.parametrize("penalty", [1.0, 0.0])
def test_beams_are_those_of_transformers(tmp_path: Path, penalty: float) -> None:
    model = write_family(tmp_path, "Granite", 3, max_position_embeddings=128, eos_token_id=[7, 50])
    prompts = [[5, 9, 33, 21, 8], [90, 2, 17]]
    wanted: list[list[tuple[list[int], float]]] = []
    for prompt in prompts:
        with torch.inference_mode():
            found = model.generate(
                torch.tensor([prompt]), num_beams=4, num_return_sequences=4, max_new_tokens=9,
                do_sample=False, length_penalty=penalty, eos_token_id=[7, 50], pad_token_id=0,
                return_dict_in_generate=True, output_scores=True,
            )  # fmt: skip
        ids = [row[len(prompt) :].tolist() for row in found.sequences]
        cut = [row[: next((i + 1 for i, t in enumerate(row) if t in (7, 50)), 9)] for row in ids]
        wanted.append(list(zip(cut, found.sequences_scores.tolist(), strict=True)))
    with LLM(tmp_path, device="cpu", dtype="float32", max_model_len=64) as llm:
        beams = beam_search(llm, prompts, beam_width=4, max_tokens=9, length_penalty=penalty)
        with pytest.raises(ValueError, match="beam_width is 0"):
            beam_search(llm, prompts, beam_width=0)
    for ours, theirs in zip(beams, wanted, strict=True):
        assert [list(beam.token_ids) for beam in ours] == [ids for ids, _ in theirs]
        assert [beam.score for beam in ours] == pytest.approx([s for _, s in theirs], abs=1e-3)
        assert all(math.isfinite(beam.logprob) for beam in ours)
