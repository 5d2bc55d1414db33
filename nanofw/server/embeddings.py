"""`/v1/embeddings`: the hidden states of texts."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from nanofw.contracts.requests import Pooling, SamplingParams
from nanofw.errors import ModelError
from nanofw.llm.async_llm import AsyncLLM
from nanofw.llm.embeddings import POOLED, embedding_of
from nanofw.llm.prompts import Prompt
from nanofw.llm.results import RequestResult
from nanofw.narrowing import JsonObject
from nanofw.server.answers import AnswerPlan, serve_text
from nanofw.server.errors import ApiError
from nanofw.server.formats import ListFormat
from nanofw.server.parameters import engine_record, prompt_records
from nanofw.server.schemas import EmbeddingRequest
from nanofw.server.service import Service


@dataclass(slots=True, kw_only=True)
class EmbeddingFormat(ListFormat):
    """Answers of `/v1/embeddings`.

    Attributes:
        normalize: an embedding is divided by its length.
        is_base64: the bytes of its float32 numbers are sent, and not the numbers.
    """

    normalize: bool
    is_base64: bool

    def _id_prefix(self) -> str:
        return "embd"

    def _item(self, index: int, result: RequestResult) -> JsonObject:
        found = embedding_of(result, normalize=self.normalize)
        if found.embedding is None:
            raise ApiError(500, str(found.error))
        numbers: Any = found.embedding.tolist()
        if self.is_base64:
            numbers = base64.b64encode(found.embedding.astype("<f4").tobytes()).decode()
        return {"object": "embedding", "index": index, "embedding": numbers}


def embedding_plan(service: Service, body: EmbeddingRequest, client: str) -> AnswerPlan:
    """What a request for embeddings asks for. Raises `ApiError`."""
    model = service.check_model(body.model)
    size = service.llm.hidden_size
    if body.dimensions not in (None, size):
        reason = f"embeddings of this model have {size} dimensions: leave dimensions out"
        raise ApiError(400, reason, param="dimensions")
    try:
        spec = service.llm.embedding_spec(body.pooling, body.normalize)
    except ModelError as error:
        raise ApiError(400, str(error)) from None
    answer = EmbeddingFormat(
        model=model, normalize=spec.normalize, is_base64=body.encoding_format == "base64"
    )
    common = engine_record(body, service.limits, client)
    records = prompt_records(body.input, "input", service.limits)
    encode = _pooled_encoder(spec.pooling)
    return AnswerPlan([{**record, **common} for record in records], POOLED, answer, encode)


def _pooled_encoder(pooling: Pooling) -> Any:
    async def encode(llm: AsyncLLM, record: JsonObject, sampling: SamplingParams) -> Prompt:
        return replace(await llm.encode(record, sampling), pooling=pooling)

    return encode


async def embeddings(request: Request) -> Response:
    """The endpoint."""
    return await serve_text(request, EmbeddingRequest, embedding_plan)
