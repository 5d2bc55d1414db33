"""The body of a request: read within bounds, parsed, and held to its model."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from pydantic_core import from_json
from starlette.requests import Request

from nanofw.config.schema import ServerLimits
from nanofw.errors import shown
from nanofw.server.errors import ApiError
from nanofw.server.reading import read_body
from nanofw.server.schemas import Body

B = TypeVar("B", bound=Body)


async def parsed_body(request: Request, model: type[B], limits: ServerLimits) -> B:
    """The body as a model.

    Raises:
        ApiError: it is too large, comes too slowly, is not JSON, or says what cannot be done.
        ClientDisconnect: the client went away.
    """
    return parsed(await received(request, limits), model)


def parsed(data: bytes, model: type[B]) -> B:
    """A received body as a model.

    Raises:
        ApiError: it is not JSON, or says what cannot be done.
    """
    try:
        value: object = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    return read_body(value, model)


async def received(request: Request, limits: ServerLimits) -> bytes:
    """The body as it came.

    Raises:
        ApiError: it is too large, comes too slowly, or is not said to be JSON.
        ClientDisconnect: the client went away.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"send Content-Type: application/json, not {shown(kind)}")
    most = limits.max_body_bytes
    length = request.headers.get("content-length", "0")
    too_large = ApiError(413, f"the body is larger than {most} bytes: server.limits.max_body_bytes")
    if length.isdecimal() and int(length) > 2 * most:
        raise too_large
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(limits.read_timeout_s):
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes <= most:
                    parts.append(part)
                elif num_bytes > 2 * most:
                    break  # what is a little too large is read, so that its sender hears of it
    except TimeoutError:
        reason = f"the body did not come within {limits.read_timeout_s:g} s"
        raise ApiError(408, reason) from None
    if num_bytes > most:
        raise too_large
    return b"".join(parts)
