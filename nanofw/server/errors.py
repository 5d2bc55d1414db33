"""Errors as OpenAI's clients read them."""

from __future__ import annotations

import math
import re

import msgspec
from starlette.responses import Response

from nanofw.contracts.requests import FinishReason
from nanofw.llm.results import RequestResult

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
"""By status; others are `server_error`."""

CODES = {FinishReason.SHED: "shed", FinishReason.ABORT: "aborted", FinishReason.ERROR: "failed"}

_FIRST_WORD = re.compile(r"[a-z][a-z_]*")


class ApiError(Exception):
    """What a request is answered with in place of a result.

    Attributes:
        status: of HTTP.
        message: a sentence for the user.
        param: the parameter that is at fault, or None.
        code: for programs, or None.
        retry_after_s: when it may be worth to try again, or None.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def to_record(self) -> dict[str, object]:
        """The error as a JSON object."""
        kind = TYPES.get(self.status, "server_error")
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def to_response(self) -> Response:
        """The error as an answer."""
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status in (408, 413):
            headers["Connection"] = "close"
        return json_response(self.to_record(), self.status, headers)


def json_response(
    record: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """An answer of JSON."""
    body = msgspec.json.encode(record)
    return Response(body, status, headers, media_type="application/json")


def refusal(reason: str, params: frozenset[str]) -> ApiError:
    """What to answer where a prompt cannot be served, with the parameter that is at fault."""
    word = _FIRST_WORD.match(reason)
    return ApiError(400, reason, param=word[0] if word and word[0] in params else None)


def error_of(result: RequestResult, params: frozenset[str] = frozenset()) -> ApiError | None:
    """What to answer for a request that was not served; None for one that was.

    Args:
        params: names of parameters; the reason may begin with one of them.
    """
    if result.ok:
        return None
    reason = result.finish_reason
    message = result.error or "the request was aborted"
    if reason is FinishReason.REFUSED:
        return refusal(message, params)
    if reason is FinishReason.SHED:
        after = 1.0 if result.retry_after_s is None else result.retry_after_s
        return ApiError(429, message, code=CODES[reason], retry_after_s=after)
    return ApiError(500, message, code=CODES.get(reason))
