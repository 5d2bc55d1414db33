"""`/v1/embeddings`: the hidden states of texts."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from nanofw.errors import ModelError
from nanofw.llm.embeddings import POOLED, embedding_of
from nanofw.llm.results import RequestResult
from nanofw.narrowing import JsonObject
from nanofw.server.answers import AnswerPlan, serve_text
from nanofw.server.errors import ApiError
from nanofw.server.formats import ListFormat
from nanofw.server.parameters import engine_record, prompt_records
from nanofw.server.reading import Reader
from nanofw.server.schemas import EmbeddingRequest


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


def embedding_plan(reader: Reader, body: EmbeddingRequest, client: str) -> AnswerPlan:
    """What a request for embeddings asks for. Raises `ApiError`."""
    model = reader.check_model(body.model)
    size = reader.llm.hidden_size
    if body.dimensions not in (None, size):
        reason = f"embeddings of this model have {size} dimensions: leave dimensions out"
        raise ApiError(400, reason, param="dimensions")
    try:
        spec = reader.llm.embedding_spec(body.pooling, body.normalize)
    except ModelError as error:
        raise ApiError(400, str(error)) from None
    answer = EmbeddingFormat(
        model=model, normalize=spec.normalize, is_base64=body.encoding_format == "base64"
    )
    common = engine_record(body, reader.limits, client)
    records = prompt_records(body.input, "input", reader.limits)
    records = [{**record, **common} for record in records]
    return AnswerPlan(records, POOLED, answer, pooling=spec.pooling)


async def embeddings(request: Request) -> Response:
    """The endpoint."""
    return await serve_text(request, EmbeddingRequest, embedding_plan)
