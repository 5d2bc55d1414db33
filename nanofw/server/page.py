"""The live page at `/`, and what it reads: one file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

from nanofw.errors import ExecutorError
from nanofw.server.errors import json_response
from nanofw.server.overview import MAX_ENDED
from nanofw.server.service import Service, State

_PAGE = resources.files("nanofw.server").joinpath("page.html").read_bytes()


def _hash_of(element: bytes) -> str:
    """The source of an element as a policy of contents names it."""
    found = re.search(rb"<%b>(.*?)</%b>" % (element, element), _PAGE, re.DOTALL)
    assert found is not None
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1]).digest()).decode()}'"


_HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash_of(b'script')}",
            f"style-src {_hash_of(b'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""The page runs its own script alone, and speaks to this server alone."""


async def page(request: Request) -> Response:
    """The page. It holds no figures: those need a key where there are keys."""
    return Response(_PAGE, headers=_HEADERS, media_type="text/html; charset=utf-8")


async def overview(request: Request) -> Response:
    """What the page shows, as JSON."""
    service: Service = request.app.state.service
    service.door.identify(request.headers.get("authorization"))
    config = service.loaded.config
    record: dict[str, object] = {
        "state": str(service.state),
        "trouble": "" if service.failure is None else str(service.failure),
        "model": service.model_names[0],
        "policy": config.scheduler.name,
        "executor": config.executor.name,
        "simulated": False,
        "uptime_s": service.overview.uptime_s,
        "max_ended": MAX_ENDED,
    }
    if service.state is State.READY:
        llm = service.llm
        record |= {"simulated": llm.is_simulated, "has_chat": llm.template_has("")}
        try:
            record |= service.overview.record(await llm.stats())
        except ExecutorError as error:
            record["trouble"] = str(error)
    return json_response(record, headers={"Cache-Control": "no-store"})
