"""An OpenAI endpoint as its clients see it: one streamed answer, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import httpx_sse
import msgspec

from nanofw.errors import ConfigError, ExecutorError, RequestError, RequestShed
from nanofw.narrowing import is_object

CONNECT_TIMEOUT_S = 10.0
TOO_MANY_REQUESTS = 429
MAX_MESSAGE = 500
"""Characters of an error of an endpoint that are kept."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an endpoint says that a request took, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of a stream.

    Attributes:
        text: new text; may be empty where a token has none yet.
        has_token: it brought a token, or several.
        finish_reason: in the event that ends the answer.
        usage: in the last event, of endpoints that send it.
    """

    text: str
    has_token: bool
    finish_reason: str | None
    usage: Usage | None


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class Endpoint:
    """Sends requests to one path of an endpoint.

    Args:
        path: `completions` or `chat/completions`.
    """

    def __init__(self, client: httpx.AsyncClient, path: str) -> None:
        self._client, self._path = client, path
        self._decode = msgspec.json.Decoder(_Event).decode

    async def stream(self, request_id: str, body: bytes) -> AsyncIterator[Chunk]:
        """The events of one answer.

        Raises:
            RequestShed: too many requests; RequestError: the endpoint refused this one.
            ExecutorError: the endpoint or the way to it failed.
        """
        has_token = ended = False
        try:
            async with httpx_sse.aconnect_sse(
                self._client, "POST", self._path, content=body,
                headers={"Content-Type": "application/json", "X-Request-Id": request_id},
            ) as source:  # fmt: skip
                if source.response.is_error:
                    raise await _refusal(request_id, source.response)
                async for event in source.aiter_sse():
                    if not event.data:
                        continue  # a comment that keeps the connection open
                    if event.data == "[DONE]":
                        ended = ended or has_token
                        continue  # to the end of the body, so that the connection can be used again
                    chunk = self._chunk(event.data)
                    has_token = has_token or chunk.has_token
                    ended = ended or chunk.finish_reason is not None
                    yield chunk
        except (httpx.HTTPError, httpx_sse.SSEError) as error:
            raise ExecutorError(f"{type(error).__name__}: {error}") from error
        if not ended:
            raise ExecutorError("the stream ended before the answer did")

    def _chunk(self, data: str) -> Chunk:
        try:
            event = self._decode(data)
        except msgspec.MsgspecError as error:
            raise ExecutorError(f"an event that cannot be read: {error}: {data[:200]}") from None
        if event.error is not None:
            raise ExecutorError(message_of({"error": event.error}))
        text, has_token, reason = "", False, None
        for choice in event.choices:
            found, comes = _content(choice)
            text, has_token = text + found, has_token or comes
            reason = choice.finish_reason or reason
        usage = None if event.usage is None else _usage(event.usage)
        return Chunk(text, has_token, reason, usage)


def _content(choice: _Choice) -> tuple[str, bool]:
    """The text of a choice, and whether a token came with it.

    A token may have no text yet, as the first byte of a character; the event that only names the
    role and the one that only ends the answer have no token.
    """
    delta = choice.delta
    if delta is None:
        return choice.text or "", bool(choice.text) or choice.finish_reason is None
    text = (delta.reasoning_content or "") + (delta.content or "")
    is_opening = delta.role is not None and not text
    comes = bool(text or delta.tool_calls) or (choice.finish_reason is None and not is_opening)
    return text, comes


def _usage(usage: _Usage) -> Usage:
    details = usage.prompt_tokens_details
    cached = (details.cached_tokens or 0) if details is not None else 0
    return Usage(usage.prompt_tokens, usage.completion_tokens, cached)


async def _refusal(request_id: str, response: httpx.Response) -> RequestError | ExecutorError:
    body = (await response.aread()).decode("utf-8", errors="replace")
    try:
        message = message_of(msgspec.json.decode(body))
    except msgspec.MsgspecError:
        message = body[:MAX_MESSAGE]
    reason = f"{response.status_code}: {message}"
    if response.status_code == TOO_MANY_REQUESTS:
        return RequestShed(request_id, reason)
    return RequestError(request_id, reason) if response.is_client_error else ExecutorError(reason)


def message_of(body: object) -> str:
    """The sentence in the body of an error, as OpenAI and others write it."""
    found: object = body
    for key in ("error", "message", "detail"):
        if is_object(found) and key in found:
            found = found[key]
    return str(found)[:MAX_MESSAGE]


@asynccontextmanager
async def connection(
    url: str, api_key: str | None, timeout_s: float
) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the endpoint at a URL, with or without `/v1` at its end."""
    base = url.rstrip("/").removesuffix("/v1") + "/v1/"
    async with httpx.AsyncClient(
        base_url=base,
        headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
        timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=False,  # no proxy between the generator and what it measures
    ) as client:
        yield client


async def served_model(client: httpx.AsyncClient) -> str:
    """The first model that an endpoint offers.

    Raises:
        ConfigError: the endpoint does not answer, or it lists no model.
    """
    listed: Any = []
    try:
        response = await client.get("models")
        response.raise_for_status()
        listed = response.json()["data"]
    except httpx.HTTPError as error:
        raise ConfigError(
            f"no endpoint answers at {client.base_url}: {error or type(error).__name__}; start the "
            "server first, or set bench.url",
            key="bench.url",
        ) from None
    except (KeyError, TypeError, ValueError):
        pass  # it names none
    if not listed:
        raise ConfigError("the endpoint names no model; set bench.model", key="bench.model")
    return str(listed[0]["id"])
