"""OpenAI's batches in `nanofw run`: answered as the server answers, errors line by line."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from nanofw import AsyncLLM
from nanofw.cli.main import main
from nanofw.config.load import load_config
from nanofw.server.app import make_app
from nanofw.server.service import Service
from tests.server.running import chat_model

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
EMBEDDING, SCORE = "/v1/embeddings", "/v1/score"
PROMPT = {"prompt": "And it came to pass", "max_tokens": 6, "temperature": 0}
GOOD: list[tuple[str, dict[str, Any]]] = [
    (COMPLETION, PROMPT),
    (COMPLETION, {**PROMPT, "prompt": [5, 6, 7], "n": 2, "temperature": 1.0, "seed": 3}),
    (COMPLETION, {**PROMPT, "echo": True, "logprobs": 1, "stop": ["e"]}),
    (
        CHAT,
        {"messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 5, "seed": 1},
    ),
    (
        CHAT,
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 3,
            "logprobs": True,
            "seed": 2,
        },
    ),
]
NUMBERS: list[tuple[str, dict[str, Any]]] = [
    (EMBEDDING, {"input": "And it came to pass"}),
    (EMBEDDING, {"input": [5, 6, 7], "pooling": "mean", "encoding_format": "base64"}),
    (SCORE, {"prompt": "And it came to pass", "continuation": " in the", "priority": 1}),
]


def line(custom_id: object, url: str, body: object, **more: object) -> dict[str, object]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more}


def run(folder: Path, lines: list[Any], *words: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of `nanofw run`, and what it wrote."""
    given, written = folder / "batch.jsonl", folder / "answers.jsonl"
    texts = [text if isinstance(text, str) else json.dumps(text) for text in lines]
    given.write_text("\n".join(texts) + "\n", encoding="utf-8")
    code = main(["run", "qwen3-demo", f"input.file={given}", f"output.file={written}", *words])
    found = written.read_text(encoding="utf-8").splitlines()
    return code, [json.loads(text) for text in found]


@pytest.fixture
def model(tmp_path: Path) -> str:
    (folder := tmp_path / "model").mkdir()
    return f"model.path={chat_model(folder)}"


def without_names(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in ("id", "created")}


async def served(model: str, requests: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """What the endpoints answer."""
    loaded = load_config("qwen3-demo", [model])
    service = Service(loaded, lambda: AsyncLLM(loaded))
    app = make_app(service)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client,
    ):
        while (await client.get("/ready")).status_code != 200:
            await asyncio.sleep(0.01)
        return [(await client.post(url, json=body)).json() for url, body in requests]


def test_a_batch_gets_the_answers_of_the_server(tmp_path: Path, model: str) -> None:
    lines = [line(f"r{number}", *item) for number, item in enumerate(GOOD)]
    code, found = run(tmp_path, lines, model)
    assert code == 0
    assert [item["custom_id"] for item in found] == [f"r{number}" for number in range(len(GOOD))]
    assert len({item["id"] for item in found}) == len(GOOD)
    assert all(item["error"] is None for item in found)
    assert all(item["response"]["status_code"] == 200 for item in found)
    expected = asyncio.run(served(model, GOOD))
    for item, answer in zip(lines, expected, strict=True):  # alone, as the server has them
        (alone,) = run(tmp_path, [item], model)[1]
        assert without_names(alone["response"]["body"]) == without_names(answer)


def numbers_of(answer: dict[str, Any]) -> np.ndarray:
    """What the answer to a request of `NUMBERS` says."""
    (item,) = answer["data"]
    if item["object"] == "score":
        return np.array([item["score"], *item["token_logprobs"]])
    found = item["embedding"]
    return np.frombuffer(base64.b64decode(found), "<f4") if isinstance(found, str) else found


def test_embeddings_and_scores_are_those_of_the_server(tmp_path: Path, model: str) -> None:
    lines = [line(f"r{number}", *item) for number, item in enumerate(NUMBERS)]
    code, found = run(tmp_path, lines, model)
    assert code == 0
    expected = asyncio.run(served(model, NUMBERS))
    for item, answer in zip(found, expected, strict=True):
        body = item["response"]["body"]
        assert numbers_of(body) == pytest.approx(numbers_of(answer), abs=1e-5)
        assert (body["usage"], body["object"]) == (answer["usage"], "list")
        assert item["response"]["request_id"] == body["id"]


BAD: list[tuple[Any, int | None, str]] = [
    (line("a", COMPLETION, {**PROMPT, "best_of": 3}), 400, "use n"),
    (line("b", COMPLETION, {"promt": "x"}), 400, "did you mean 'prompt'"),
    (line("c", COMPLETION, {**PROMPT, "temperature": -1}), 400, "temperature"),
    (line("d", COMPLETION, {**PROMPT, "model": "gpt-9"}), 404, "no model is named"),
    (line("e", COMPLETION, {**PROMPT, "stream": True}), 400, "no streams"),
    (line("f", COMPLETION, {**PROMPT, "prompt": ["x", "y"]}), 400, "a line for each"),
    (line("g", COMPLETION, "text"), 400, "must be a JSON object"),
    (line("h", "/v1/rerank", {"input": "x"}), 404, "url must be"),
    (line("k", EMBEDDING, {"input": ["x", "y"]}), 400, "a line for each"),
    (line("l", EMBEDDING, {"input": "x", "dimensions": 3}), 400, "dimensions"),
    (line("m", SCORE, {"prompt": "x", "continuation": ""}), 400, "no token of its own"),
    (line("good", COMPLETION, PROMPT), None, "occurs before"),
    (line(7, COMPLETION, PROMPT), None, "custom_id must be a text"),
    (line("i", COMPLETION, PROMPT, key=1), None, "unknown key 'key'"),
    ({**line("j", COMPLETION, PROMPT), "method": "GET"}, None, "method must be POST"),
    ("{oops", None, "not JSON"),
]


def test_what_is_wrong_with_a_line_is_told_in_its_place(tmp_path: Path) -> None:
    good = line("good", COMPLETION, PROMPT)
    lines = [good, *(item for item, _, _ in BAD), {"prompt": "an own line", "max_tokens": 2}]
    code, found = run(tmp_path, lines, "executor.name=sim")
    assert code == 1
    assert found[0]["response"]["status_code"] == 200
    for answer, (given, status, words) in zip(found[1:-1], BAD, strict=True):
        expected_id = given["custom_id"] if isinstance(given, dict) else None
        assert answer["custom_id"] == (expected_id if isinstance(expected_id, str) else None)
        if status is None:
            assert answer["response"] is None
            assert words in answer["error"]["message"]
        else:
            assert answer["error"] is None
            assert answer["response"]["status_code"] == status
            assert words in answer["response"]["body"]["error"]["message"]
    assert (found[-1]["index"], found[-1]["num_output_tokens"]) == (len(BAD) + 1, 2)


def test_requests_that_a_failed_run_lost_say_so(tmp_path: Path) -> None:
    (tmp_path / "fragile.py").write_text(
        "from nanofw.plugins import Plugin, Policy, hookimpl\n"
        "@hookimpl\n"
        "def scheduler():\n"
        "    return Plugin('fragile', ':Fragile', api='scheduler/2')\n"
        "class Fragile(Policy):\n"
        "    def key(self, request, view):\n"
        "        return 0\n"
        "    def on_progress(self, rows, num_tokens, view):\n"
        "        raise RuntimeError('fell asleep')\n",
        encoding="utf-8",
    )
    words = (f"plugins.load=[{tmp_path / 'fragile.py'}]", "scheduler.name=fragile")
    lines = [line("a", COMPLETION, PROMPT), line("b", COMPLETION, PROMPT)]
    code, found = run(tmp_path, lines, "executor.name=sim", *words)
    assert code == 3
    for answer in found:
        assert answer["response"]["status_code"] == 500
        assert "could not go on" in answer["response"]["body"]["error"]["message"]
