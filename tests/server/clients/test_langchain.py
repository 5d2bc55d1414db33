"""LangChain's chat model on the server: answers, streams, tools, structured outputs."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from tests.server.clients.programs import needs
from tests.server.running import Running

pytestmark = [
    pytest.mark.clients,
    needs("langchain_openai"),
    pytest.mark.filterwarnings("default"),
]
ASKED = "Who art thou?"


@pytest.fixture
def chat(server: Running) -> Any:
    from langchain_openai import ChatOpenAI  # pyright: ignore[reportMissingImports]

    return ChatOpenAI(
        model="demo",
        base_url=f"{server.url}/v1",
        api_key="none",
        temperature=0,
        max_tokens=160,
        max_retries=0,
        stream_usage=True,
    )


def test_answers_and_streams(chat: Any) -> None:
    answer = chat.invoke(ASKED)
    pieces = list(chat.stream(ASKED))
    assert answer.text
    assert "".join(piece.text for piece in pieces) == answer.text
    (usage,) = [piece.usage_metadata for piece in pieces if piece.usage_metadata]
    assert usage["output_tokens"] == answer.usage_metadata["output_tokens"] > 0
    first, second = chat.batch([ASKED, "Whence comest thou?"])
    assert first.text == answer.text != second.text


def test_tools_and_structured_outputs(chat: Any) -> None:
    from pydantic import BaseModel

    class go(BaseModel):
        """Go somewhere."""

        to: Literal["Egypt", "Canaan"]
        far: bool

    bound = chat.bind_tools([go], tool_choice="go", parallel_tool_calls=False)
    answer = bound.invoke(ASKED)
    (call,) = answer.tool_calls
    assert call["name"] == "go"
    assert go.model_validate(call["args"])
    merged = None
    for piece in bound.stream(ASKED):
        merged = piece if merged is None else merged + piece
    assert merged is not None
    assert [each["args"] for each in merged.tool_calls] == [call["args"]]
    found = chat.with_structured_output(go, method="json_schema").invoke(ASKED)
    assert isinstance(found, go)
