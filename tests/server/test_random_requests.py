"""Random requests with everything mixed, at once: each answer is that of `LLM`, token for token."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest

from nanofw import LLM
from nanofw.llm.results import RequestResult
from tests.server.running import Running, parsed_events, running, text_of

CONFIG = (
    "qwen3-demo",
    "model.dtype=float32",
    "logits_processors=[{name: structured}]",
    "engine.max_num_seqs=12",
    "kv_allocator.num_blocks=200",
)
TEXT = "And it came to pass in those days that the king of Judah said unto his servants, Go"
AT_ONCE = 16


def random_sampling(dice: random.Random) -> dict[str, Any]:
    """Parameters that a JSONL line and a request share."""
    sampling: dict[str, Any] = {
        "temperature": dice.choice([0.0, 0.7, 1.3]),
        "top_p": dice.choice([1.0, 0.9]),
        "max_tokens": dice.randint(1, 30),
        "seed": dice.randrange(1 << 40),
    }
    options: dict[str, Any] = {
        "n": dice.randint(2, 3),
        "stop": dice.sample([" the", "e", ", and", "of Israel", "zz"], k=2),
        "top_k": dice.randint(1, 50),
        "min_p": 0.05,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {str(dice.randrange(4096)): dice.uniform(-5, 5) for _ in range(3)},
        "bad_words": ["LORD"],
        "min_tokens": 1,
        "stop_token_ids": [dice.randrange(4096)],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "priority": dice.randint(-2, 2),
        "client": dice.choice(["ann", "bob"]),
        "cache_salt": "a",
        "logprobs": dice.randint(0, 3),
        "arguments": {"structured": {"regex": "[a-z ]{3,20}"}},
    }
    return sampling | {name: options[name] for name in options if dice.random() < 0.25}


def random_prompt(dice: random.Random) -> str | list[int]:
    if dice.random() < 0.3:
        return [dice.randrange(1, 4096) for _ in range(dice.randint(1, 40))]
    return " ".join(dice.choices(TEXT.split(), k=dice.randint(1, 60)))


class Case:
    """One request, and what it was answered."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        self.sampling = random_sampling(dice)
        prompts = [random_prompt(dice)]
        if dice.random() < 0.2:
            prompts.append(random_prompt(dice))
        is_text = isinstance(prompts[0], str)
        self.prompts = [p for p in prompts if isinstance(p, str) == is_text]
        self.stream, self.echo = dice.random() < 0.7, dice.random() < 0.2
        if self.echo and self.stream:
            self.sampling.pop("logprobs", None)
        self.body: dict[str, Any] = {
            **self.sampling,
            "prompt": self.prompts if len(self.prompts) > 1 else self.prompts[0],
            "stream": self.stream,
            "echo": self.echo,
            "return_token_ids": True,
        }
        self.events: list[dict[str, Any]] = []
        self.choices: dict[int, dict[str, Any]] = {}
        self.failed = False

    async def send(self, client: httpx.AsyncClient) -> None:
        response = await client.post("/v1/completions", json=self.body)
        if response.status_code == 500:
            self.failed = True
            return
        assert response.status_code == 200, response.text
        if not self.stream:
            self.choices = {choice["index"]: choice for choice in response.json()["choices"]}
            return
        self.events = parsed_events(response.text)
        for event in self.events:
            if "error" in event:
                assert event["error"]["code"] == "failed", event
                self.failed = True
                return
            (choice,) = event["choices"]
            before = self.choices.get(choice["index"], {"finish_reason": None})
            assert before["finish_reason"] is None, "an event after the end"
            self.choices[choice["index"]] = choice

    def check(self, results: list[RequestResult]) -> None:
        if self.failed:  # a grammar and a ban may leave no token to sample
            assert not all(result.ok for result in results), self.body
            return
        outputs = [(result, output) for result in results for output in result.outputs]
        assert sorted(self.choices) == list(range(len(outputs)))
        for index, (result, output) in enumerate(outputs):
            choice = self.choices[index]
            text = text_of(self.events, index) if self.stream else choice["text"]
            if self.echo and result.prompt is not None:
                assert text.startswith(result.prompt)
                text = text.removeprefix(result.prompt)
            if not self.echo or result.prompt is not None:
                assert text == output.text, self.body
            assert tuple(choice["token_ids"]) == output.token_ids, self.body
            assert choice["finish_reason"] == output.finish_reason
            assert choice["stop_reason"] == output.stop_reason
            if output.index == 0:
                assert tuple(choice["prompt_token_ids"]) == result.prompt_token_ids


async def send_all(server: Running, cases: list[Case]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:

        async def send(case: Case) -> None:
            async with gate:
                await case.send(client)

        await asyncio.gather(*map(send, cases))


@pytest.mark.parametrize(
    "num_cases", [12, pytest.param(1000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_streams_are_the_offline_text(num_cases: int) -> None:
    cases = [Case(seed) for seed in range(num_cases)]
    with running(*CONFIG) as server:
        asyncio.run(send_all(server, cases))
    with LLM.from_config(*CONFIG) as llm:
        for case in cases:
            key = "prompt" if isinstance(case.prompts[0], str) else "prompt_token_ids"
            records = [{key: prompt, **case.sampling} for prompt in case.prompts]
            case.check(llm.generate(records))
