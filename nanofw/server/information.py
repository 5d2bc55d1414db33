"""Endpoints that say what there is: models, health, tokens, versions, metrics."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response

from nanofw import __version__
from nanofw.errors import RequestError
from nanofw.server.bodies import parsed_body
from nanofw.server.errors import ApiError, json_response
from nanofw.server.parameters import template_record
from nanofw.server.schemas import DetokenizeRequest, TokenizeRequest
from nanofw.server.service import Service, State


def _service(request: Request, *, guarded: bool = False) -> Service:
    """The server's state.

    Args:
        guarded: for those who have a key alone, where there are keys.
    """
    service: Service = request.app.state.service
    if guarded:
        service.door.identify(request.headers.get("authorization"))
    return service


async def health(request: Request) -> Response:
    """Whether the process lives: 503 once its engine has failed, and it should be started again."""
    service = _service(request)
    if service.state is State.FAILED:
        raise service.unavailable()
    return json_response({"status": str(service.state)})


async def ready(request: Request) -> Response:
    """Whether requests would be served now; of several replicas, which are gone and why."""
    service = _service(request)
    if service.state is not State.READY:
        raise service.unavailable()
    record: dict[str, object] = {"status": str(service.state)}
    if problems := service.llm.replica_problems:
        gone = {str(number): why for number, why in enumerate(problems) if why is not None}
        record["replicas"] = {"all": len(problems), "ready": len(problems) - len(gone)}
        record["gone"] = gone
    return json_response(record)


async def version(request: Request) -> Response:
    """The version of nanofw."""
    return json_response({"version": __version__})


async def models(request: Request) -> Response:
    """The names of the one model."""
    service = _service(request, guarded=True)
    data = [_model(service, name) for name in service.model_names]
    return json_response({"object": "list", "data": data})


async def model(request: Request) -> Response:
    """One of them."""
    service = _service(request, guarded=True)
    return json_response(_model(service, service.check_model(request.path_params["name"])))


def _model(service: Service, name: str) -> dict[str, object]:
    record: dict[str, object] = {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "nanofw",
        "root": service.model_names[0],
        "parent": None,
    }
    if service.state is State.READY:
        record["max_model_len"] = service.llm.max_model_len
    return record


CHATS_ONLY = frozenset(TokenizeRequest.model_fields) - {"model", "prompt", "messages"}
"""What `/tokenize` reads beside messages alone."""


async def tokenize(request: Request) -> Response:
    """The token ids of a text, or of a chat as its template writes it."""
    service = _service(request, guarded=True)
    llm = service.llm
    body = await parsed_body(request, TokenizeRequest, service.limits)
    service.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give either prompt or messages", param="prompt")
    record: dict[str, object] = {"prompt": body.prompt}
    if body.messages is not None:
        record = template_record(body, service.limits)
    elif unread := sorted(body.model_fields_set & CHATS_ONLY):
        raise ApiError(400, f"{unread[0]} needs messages; prompt has no template", param=unread[0])
    try:
        prompt = await llm.encode(record)
    except RequestError as error:
        raise ApiError(400, error.reason) from None
    assert prompt.token_ids is not None
    tokens = [int(token_id) for token_id in prompt.token_ids]
    return json_response(
        {"count": len(tokens), "max_model_len": llm.max_model_len, "tokens": tokens}
    )


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    service = _service(request, guarded=True)
    tokenizer = service.llm.tokenizer
    body = await parsed_body(request, DetokenizeRequest, service.limits)
    service.check_model(body.model)
    if tokenizer is None:
        raise ApiError(400, "this model has no tokenizer")
    if any(not 0 <= token_id < tokenizer.vocab_size for token_id in body.tokens):
        reason = f"tokens must be from 0 to {tokenizer.vocab_size - 1}"
        raise ApiError(400, reason, param="tokens")
    return json_response({"prompt": tokenizer.decode(body.tokens, skip_special_tokens=False)})


async def metrics(request: Request) -> Response:
    """Counters and latencies in the Prometheus text format."""
    text = await _service(request).metrics_text()
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)
