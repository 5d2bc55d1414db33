"""`/v1/score`: log probabilities of continuations that are given."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from nanofw.llm.results import RequestResult
from nanofw.llm.scores import SCORED, score_of
from nanofw.narrowing import JsonObject
from nanofw.server.answers import AnswerPlan, serve_text
from nanofw.server.errors import ApiError
from nanofw.server.formats import ListFormat
from nanofw.server.parameters import engine_record, prompt_records
from nanofw.server.reading import Reader
from nanofw.server.schemas import ScoreRequest


@dataclass(slots=True, kw_only=True)
class ScoreFormat(ListFormat):
    """Answers of `/v1/score`."""

    def _id_prefix(self) -> str:
        return "score"

    def _item(self, index: int, result: RequestResult) -> JsonObject:
        found = score_of(result)
        if found.logprob is None:
            raise ApiError(500, str(found.error))
        return {
            "object": "score",
            "index": index,
            "score": found.logprob,
            "token_ids": found.token_ids,
            "token_logprobs": found.token_logprobs,
            "is_greedy": found.is_greedy,
        }


def score_plan(reader: Reader, body: ScoreRequest, client: str) -> AnswerPlan:
    """What a request for scores asks for. Raises `ApiError`."""
    answer = ScoreFormat(model=reader.check_model(body.model))
    common = engine_record(body, reader.limits, client)
    key = "prompt" if isinstance(body.prompt, str) else "prompt_token_ids"
    given = prompt_records(body.continuation, "continuation", reader.limits)
    continuations = [continuation for record in given for continuation in record.values()]
    records = [{key: body.prompt, **common} for _ in continuations]
    return AnswerPlan(records, SCORED, answer, continuations=continuations)


async def scores(request: Request) -> Response:
    """The endpoint."""
    return await serve_text(request, ScoreRequest, score_plan)
