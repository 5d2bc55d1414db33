"""LiteLLM's `openai/` and `hosted_vllm/` providers on the server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.clients.programs import needs
from tests.server.running import Running

pytestmark = [pytest.mark.clients, needs("litellm"), pytest.mark.filterwarnings("default")]
MESSAGES = [{"role": "user", "content": "Who art thou?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "go",
            "parameters": {
                "type": "object",
                "properties": {"far": {"type": "boolean"}},
                "required": ["far"],
                "additionalProperties": False,
            },
        },
    }
]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """At import it fetches the prices of models."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


@pytest.fixture(params=["openai", "hosted_vllm"])
def asked(request: pytest.FixtureRequest, server: Running) -> dict[str, Any]:
    return {
        "model": f"{request.param}/demo",
        "api_base": f"{server.url}/v1",
        "api_key": "none",
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 40,
    }


def test_answers_streams_and_tools(asked: dict[str, Any]) -> None:
    import litellm  # pyright: ignore[reportMissingImports]

    answer = litellm.completion(**asked)
    text = answer.choices[0].message.content
    assert text
    assert answer.usage.completion_tokens == 40
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    streamed = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(streamed) == text
    assert chunks[-1].usage.completion_tokens == 40
    forced = litellm.completion(
        **{**asked, "max_tokens": 120},
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
    )
    (call,) = forced.choices[0].message.tool_calls
    assert call.function.name == "go"
    assert call.function.arguments.replace(" ", "") in ('{"far":true}', '{"far":false}')


def test_text_completions_and_embeddings(server: Running) -> None:
    import litellm  # pyright: ignore[reportMissingImports]

    where = {"api_base": f"{server.url}/v1", "api_key": "none"}
    answer = litellm.text_completion(
        model="text-completion-openai/demo", prompt="And it came to pass", max_tokens=5, **where
    )
    assert answer.choices[0].text
    found = litellm.embedding(model="openai/demo", input=["And"], **where)
    assert len(found.data[0]["embedding"]) == 256
