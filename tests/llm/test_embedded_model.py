"""Text of the embedded model on the torch executor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from nanofw import LLM, SamplingParams
from nanofw.llm.results import RequestResult

PROMPT = "And it came to pass"
OVERRIDES = ("engine.max_num_seqs=16", "model.dtype=float32")


@pytest.fixture(scope="module", params=["false", "true"], ids=["alone", "overlapped"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM.from_config("qwen3-demo", f"engine.overlap={request.param}", *OVERRIDES) as made:
        yield made


def texts(results: list[RequestResult]) -> list[str]:
    return [result.outputs[0].text for result in results]


def test_a_stream_shows_what_a_call_returns(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=24)
    (result,) = llm.generate(PROMPT, params)
    assert "".join(event.text for event in llm.stream(PROMPT, params)) == result.outputs[0].text
    assert result.ok


def test_B098_a_stop_string_cuts_the_very_same_text(llm: LLM) -> None:
    whole = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=24))[0].outputs[0]
    stop = whole.text[30:34]
    place = whole.text.index(stop)
    params = SamplingParams(temperature=0, max_tokens=24, stop=[stop])
    (result,) = llm.generate(PROMPT, params)
    completion = result.outputs[0]
    assert completion.text == whole.text[:place]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert completion.token_ids == whole.token_ids[: len(completion.token_ids)]
    assert len(completion.token_ids) < len(whole.token_ids)
    shown = "".join(event.text for event in llm.stream(PROMPT, params))
    assert shown == completion.text


def test_equal_prompts_without_a_seed_differ_and_come_again() -> None:
    """The same samples in another run and under another policy."""
    runs: list[list[str]] = []
    for scheduler in ("fcfs", "fcfs", "shortest_job_first"):
        with LLM.from_config("qwen3-demo", f"scheduler.name={scheduler}", *OVERRIDES) as llm:
            params = SamplingParams(temperature=1.0, max_tokens=6)
            runs.append(texts(llm.generate([PROMPT] * 64, params)))
    assert runs[0] == runs[1] == runs[2]
    assert len(set(runs[0])) > 48


def test_a_chat_needs_a_template(llm: LLM) -> None:
    (result,) = llm.chat([{"role": "user", "content": "Hi"}])
    assert "no chat template" in str(result.error)


@pytest.mark.parametrize(
    ("lengths", "overrides"),
    [
        (range(60, 80), ()),  # a step of more tokens than the CPU computes at once: two passes
        ((2000, 61, 1500, 7), ("engine.max_num_batched_tokens=4096",)),  # prompts cut by passes
        ((300, 61, 150, 7), ("engine.max_num_batched_tokens=64",)),  # prompts cut by steps
    ],
    ids=["passes", "long-prompts", "chunks"],
)
def test_F056_log_probabilities_of_prompts_do_not_depend_on_the_neighbours(
    lengths: range | tuple[int, ...], overrides: tuple[str, ...]
) -> None:
    generator = np.random.default_rng(56)
    prompts = [generator.integers(0, 256, size=length).tolist() for length in lengths]
    params = SamplingParams(prompt_logprobs=0, temperature=0, max_tokens=1)
    config = ("model.dtype=float32", "engine.max_num_seqs=32", *overrides)
    with LLM.from_config("qwen3-demo", *config) as llm:
        together = llm.generate(prompts, params)
        alone = [llm.generate(prompt, params)[0] for prompt in prompts]
    for prompt, one, own in zip(prompts, together, alone, strict=True):
        values = prompt_logprobs(one)
        assert len(values) == len(prompt) - 1
        np.testing.assert_allclose(values, prompt_logprobs(own), atol=1e-3)


def prompt_logprobs(result: RequestResult) -> list[float]:
    """Of the prompt's own tokens, from the second on."""
    positions = result.prompt_logprobs or []
    ids = result.prompt_token_ids
    return [p[token].logprob for p, token in zip(positions, ids, strict=True) if p is not None]
