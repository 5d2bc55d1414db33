"""Lines of an OpenAI batch: requests to endpoints, and what these would answer."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nanofw.cli.inputs import InputPrompt
from nanofw.errors import ConfigError, shown
from nanofw.llm.elsewhere import BATCH_KEYS
from nanofw.llm.embeddings import chosen_spec
from nanofw.llm.prompts import Prompt, parse_prompt
from nanofw.llm.results import RequestResult
from nanofw.llm.scores import encode_pair
from nanofw.narrowing import is_object

if TYPE_CHECKING:
    from nanofw.checkpoints.pooling import EmbeddingSpec
    from nanofw.config.load import LoadedConfig
    from nanofw.config.schema import ServerLimits
    from nanofw.contracts.reply_format import ReasoningFormat, ToolFormat
    from nanofw.contracts.requests import Pooling
    from nanofw.llm.session import Session
    from nanofw.server.answers import AnswerPlan
    from nanofw.server.errors import ApiError
    from nanofw.server.parameters import Defaults
    from nanofw.text.tokenizer import Tokenizer

PACKAGES = ("starlette", "prometheus_client")
URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/score")


def is_batch_line(value: object) -> bool:
    """Whether a line is a request of an OpenAI batch: it has a body, and says where it goes."""
    return is_object(value) and "body" in value and len(BATCH_KEYS & set(value)) > 1


def has_batch_lines(prompts: Sequence[InputPrompt]) -> bool:
    """Whether any line is one.

    Raises:
        ConfigError: what reads such lines is not installed.
    """
    first = next((item for item in prompts if is_batch_line(item.value)), None)
    if first is None:
        return False
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"{first.place} is a line of an OpenAI batch, which needs {package}: "
                "pip install 'nanofw[serve]'",
                key="input.file",
            )
    return True


@dataclass(slots=True)
class _Line:
    """A line that was read.

    Attributes:
        plan: what it asks for; None: it cannot be served.
        refusal: what its endpoint answers instead.
        problem: why no endpoint has it at all.
    """

    custom_id: str | None
    id: str = field(default_factory=lambda: f"batch_req_{uuid.uuid4().hex}")
    plan: AnswerPlan | None = None
    refusal: ApiError | None = None
    problem: str | None = None


class _Model:
    """What bodies are read by, of the model of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._session.tokenizer

    @property
    def template_variables(self) -> frozenset[str]:
        return self._session.encoder.template_variables

    @property
    def hidden_size(self) -> int:
        return self._session.engine.spec.hidden_size

    def embedding_spec(self, pooling: Pooling | None, normalize: bool | None) -> EmbeddingSpec:
        return chosen_spec(self._session.engine.spec, pooling, normalize)


class BatchJob:
    """The lines of a run's input, those of a batch among them: how they are read and answered.

    A request is read as `nanofw serve` reads it, and gets the answer that this gives it.

    Args:
        read: reads the other lines.
        own_record: what is written of these.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        session: Session,
        read: Callable[[InputPrompt], Prompt],
        own_record: Callable[[int, RequestResult], dict[str, object]],
    ) -> None:
        from nanofw.server.parameters import Defaults
        from nanofw.server.reading import model_names
        from nanofw.text.reply_formats import formats_of

        self.limits: ServerLimits = loaded.config.server.limits
        self.defaults: Defaults = Defaults.of(loaded, session.default_sampling)
        self.llm: _Model = _Model(session)
        section = loaded.config.server
        template_has = session.encoder.template_has
        writes = formats_of(section.tool_format, section.reasoning, template_has)
        self.tools: ToolFormat | None = writes.tools
        self.reasoning: ReasoningFormat | None = writes.reasoning
        self._model_names, self._encoder, self._read = model_names(loaded), session.encoder, read
        self._own_record = own_record
        self._lines: dict[str, _Line] = {}
        self._custom_ids: set[str] = set()

    def check_model(self, name: str | None) -> str:
        """The name under which the model is served."""
        from nanofw.server.reading import known_model

        return known_model(name, self._model_names)

    # -- the way in -----------------------------------------------------------------------

    def read(self, item: InputPrompt) -> Prompt:
        """The prompt of a line. Raises ValueError: it cannot be served."""
        from nanofw.server.errors import ApiError

        if not is_object(item.value) or not is_batch_line(item.value):
            return self._read(item)
        line = self._lines[item.place] = _Line(_custom_id(item.value))
        try:
            line.problem = self._problem(line, item.value)
            if line.problem is not None:
                raise ValueError(line.problem)
            line.plan = self._plan(item.value)
            return self._prompt(line.plan)
        except ApiError as error:
            line.refusal, line.plan = error, None
            raise ValueError(error.message) from None

    def _problem(self, line: _Line, value: Mapping[str, object]) -> str | None:
        """What keeps a line from being a request."""
        if line.custom_id is None:
            return (
                f"custom_id must be a text of one letter or more, not {_shown(value, 'custom_id')}"
            )
        if line.custom_id in self._custom_ids:
            return f"custom_id {shown(line.custom_id)} occurs before"
        self._custom_ids.add(line.custom_id)
        for name in value:
            if name not in BATCH_KEYS:
                return f"unknown key {shown(name)}; a line has {', '.join(sorted(BATCH_KEYS))}"
        if value.get("method") != "POST":
            return f"method must be POST, not {_shown(value, 'method')}"
        return None

    def _plan(self, value: Mapping[str, object]) -> AnswerPlan:
        from nanofw.server import schemas
        from nanofw.server.chats import chat_plan
        from nanofw.server.completions import completion_plan
        from nanofw.server.embeddings import embedding_plan
        from nanofw.server.errors import ApiError
        from nanofw.server.reading import read_body
        from nanofw.server.scores import score_plan

        given = value["body"]
        body: schemas.EngineRequest
        match value.get("url"):
            case "/v1/chat/completions":
                body = chat = read_body(given, schemas.ChatRequest)
                plan = chat_plan(self, chat, body.client or "")
            case "/v1/completions":
                body = completion = read_body(given, schemas.CompletionRequest)
                plan = completion_plan(self, completion, body.client or "")
            case "/v1/embeddings":
                body = embedding = read_body(given, schemas.EmbeddingRequest)
                plan = embedding_plan(self, embedding, body.client or "")
            case "/v1/score":
                body = score = read_body(given, schemas.ScoreRequest)
                plan = score_plan(self, score, body.client or "")
            case url:
                raise ApiError(404, f"url must be {', '.join(URLS)}, not {shown(url)}", param="url")
        if body.is_stream:
            raise ApiError(400, "a batch has no streams; leave stream out", param="stream")
        if len(plan.records) != 1:
            reason = f"a line has one prompt, not {len(plan.records)}; write a line for each"
            raise ApiError(400, reason, param="prompt")
        return plan

    def _prompt(self, plan: AnswerPlan) -> Prompt:
        record: dict[str, object] = {**plan.records[0], "id": plan.format.id}
        if plan.continuations is not None:
            prompt = encode_pair(self._encoder, record, plan.continuations[0], {})
            if prompt.refusal is not None:
                raise prompt.refusal
        else:
            prompt = self._encoder.encode(parse_prompt(record, plan.sampling))
            prompt = replace(prompt, pooling=plan.pooling)
        plan.format.begin([prompt])
        return prompt

    # -- the way out ----------------------------------------------------------------------

    def to_record(self, item: InputPrompt, index: int, result: RequestResult) -> dict[str, object]:
        """The result of a line: an answer of its endpoint, or nanofw's own record."""
        from nanofw.server.errors import ApiError, error_of

        if item.error is None and not is_batch_line(item.value):
            return self._own_record(index, result)
        line = self._lines.get(item.place)
        if line is None:  # the line cannot be read, or the run ended before it
            custom_id = _custom_id(item.value) if is_object(item.value) else None
            line = self._lines[item.place] = _Line(custom_id, problem=item.error)
        problem = line.problem
        if line.plan is None and line.refusal is None:
            problem = problem or result.error
        if problem is not None:
            error = {"code": "invalid_request" if line.problem else "not_run", "message": problem}
            return _answer(line, None, error)
        refusal = line.refusal or error_of(result)
        if refusal is None and line.plan is not None:
            try:
                body = line.plan.format.whole([result])
            except ApiError as error:
                refusal = error
            else:
                return _answer(line, (200, line.plan.format.id, body), None)
        refusal = refusal or ApiError(500, "the request was not served")
        return _answer(line, (refusal.status, result.request_id, refusal.to_record()), None)


def _answer(
    line: _Line, response: tuple[int, str, dict[str, object]] | None, error: dict[str, str] | None
) -> dict[str, object]:
    made: dict[str, object] | None = None
    if response is not None:
        status, request_id, body = response
        made = {"status_code": status, "request_id": request_id, "body": body}
    return {
        "id": line.id,
        "custom_id": line.custom_id,
        "response": made,
        "error": error,
    }


def _custom_id(value: Mapping[str, object]) -> str | None:
    found = value.get("custom_id")
    return found if isinstance(found, str) and found else None


def _shown(value: Mapping[str, object], key: str) -> str:
    return shown(value[key]) if key in value else "missing"
