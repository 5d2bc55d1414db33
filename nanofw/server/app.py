"""The application: routes, and what every answer has."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nanofw.server import information, page
from nanofw.server.chats import chat_completions
from nanofw.server.completions import completions
from nanofw.server.embeddings import embeddings
from nanofw.server.errors import ApiError
from nanofw.server.identifiers import new_identifier
from nanofw.server.scores import scores
from nanofw.server.service import Service

logger: logging.Logger = logging.getLogger(__name__)

_GIVEN_ID = re.compile(r"[!-~]{1,128}")
"""Ids of requests that are taken from their header: without blanks and controls."""

MISSING = {
    "/v1/rerank": "use /v1/score, or /v1/embeddings",
    "/v1/responses": "use /v1/chat/completions",
    "/v1/messages": "use /v1/chat/completions",
}
"""Endpoints of other servers, and what to say of them."""


class RequestIds:
    """Gives every request an id, its client's where it sent one, and every answer the same."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _id_of(scope)
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def _id_of(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            if _GIVEN_ID.fullmatch(text):
                return text
    return new_identifier()


def make_app(service: Service) -> Starlette:
    """The application over a server's state."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        service.start()
        yield
        await service.close()

    middleware = [Middleware(RequestIds)]
    if origins := service.section.cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"],
                allow_headers=["*"], expose_headers=["X-Request-Id", "Retry-After"],
            )
        )  # fmt: skip
    app = Starlette(
        routes=[
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/embeddings", embeddings, methods=["POST"]),
            Route("/v1/score", scores, methods=["POST"]),
            Route("/v1/models", information.models),
            Route("/v1/models/{name:path}", information.model),
            Route("/tokenize", information.tokenize, methods=["POST"]),
            Route("/detokenize", information.detokenize, methods=["POST"]),
            Route("/health", information.health),
            Route("/ready", information.ready),
            Route("/version", information.version),
            Route("/metrics", information.metrics),
            Route("/", page.page),
            Route("/overview", page.overview),
        ],
        middleware=middleware,
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            ClientDisconnect: _gone,
            Exception: _fault,
        },
        lifespan=lifespan,
    )
    app.state.service = service
    return app


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.to_response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    match error.status_code:
        case 404:
            hint = f": {MISSING[path]}" if path in MISSING else ""
            return ApiError(404, f"there is no {path[:200]}{hint}").to_response()
        case 405:
            response = ApiError(405, f"{path} does not take {request.method}").to_response()
            response.headers.update(error.headers or {})
            return response
        case status:
            return ApiError(status, str(error.detail)).to_response()


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _fault(request: Request, error: Exception) -> Response:
    """A mistake of ours: the log has it, the client hears that there was one."""
    logger.error("a request failed", exc_info=error)
    return ApiError(500, "the server made a mistake; its log says more").to_response()
