"""What one must know of a run to read a request and to write its answer, with or without HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from nanofw.checkpoints.pooling import EmbeddingSpec
from nanofw.config.load import LoadedConfig
from nanofw.config.schema import ServerLimits
from nanofw.contracts.reply_format import ReasoningFormat, ToolFormat
from nanofw.contracts.requests import Pooling
from nanofw.errors import shown
from nanofw.narrowing import is_object
from nanofw.server.errors import ApiError
from nanofw.server.parameters import Defaults
from nanofw.server.schemas import Body
from nanofw.server.unsupported import unknown, without_neutral
from nanofw.text.tokenizer import Tokenizer

B = TypeVar("B", bound=Body)
MAX_BIASES = 1 << 14
"""Of a request's `logit_bias`: pydantic tells of each that is wrong."""


class TextSide(Protocol):
    """What one must know of the model: tokenizer, chat template, embeddings."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    @property
    def template_variables(self) -> frozenset[str]: ...

    @property
    def hidden_size(self) -> int: ...

    def embedding_spec(self, pooling: Pooling | None, normalize: bool | None) -> EmbeddingSpec: ...


class Reader(Protocol):
    """Who reads requests: a server, or a run of a batch."""

    limits: ServerLimits
    tools: ToolFormat | None
    reasoning: ReasoningFormat | None

    @property
    def defaults(self) -> Defaults: ...

    @property
    def llm(self) -> TextSide: ...

    def check_model(self, name: str | None) -> str:
        """The name under which the model is served. Raises `ApiError`: there is no such model."""
        ...


def model_names(loaded: LoadedConfig) -> tuple[str, ...]:
    """What requests may call the model."""
    return loaded.config.server.model_names or (_model_name(loaded),)


def _model_name(loaded: LoadedConfig) -> str:
    """`embedded:demo` and hub ids as they are; of a folder its name."""
    path = loaded.config.model.path or "model"
    return path.rstrip("/").rpartition("/")[2] if path.startswith(("/", ".", "~")) else path


def known_model(name: str | None, names: Sequence[str]) -> str:
    """The name of the model that a request means.

    Raises:
        ApiError: there is no such model.
    """
    if name is None or name in names:
        return name or names[0]
    reason = f"no model is named {name[:200]!r}; there is {', '.join(names)}"
    raise ApiError(404, reason, param="model", code="model_not_found")


def read_body(value: object, model: type[B]) -> B:
    """The body of a request, held to its model.

    Raises:
        ApiError: it says what cannot be done.
    """
    if not is_object(value):
        raise ApiError(400, f"the body must be a JSON object, not {shown(value)}")
    biases = value.get("logit_bias")
    if is_object(biases) and len(biases) > MAX_BIASES:
        reason = f"logit_bias has {len(biases)} tokens; at most {MAX_BIASES} are read"
        raise ApiError(400, reason, param="logit_bias")
    try:
        return model.model_validate(without_neutral(value))
    except ValidationError as error:
        raise _invalid(error, model) from None


def _invalid(error: ValidationError, model: type[Body]) -> ApiError:
    """The first of the problems, named by its parameter."""
    details = error.errors(include_url=False, include_context=True)
    extra = [detail for detail in details if detail["type"] == "extra_forbidden"]
    detail = (extra or details)[0]
    place = [str(part) for part in detail["loc"]]
    param = place[0] if place else None
    if extra and len(place) == 1:
        message = unknown(place[0], list(model.model_fields))
        return ApiError(400, message, param=param, code="unknown_parameter")
    return ApiError(400, _sentence(detail, place), param=param, code="invalid_value")


def _sentence(detail: ErrorDetails, place: list[str]) -> str:
    value: object = detail["input"]
    given = "" if detail["type"] == "missing" else f", not {shown(value)}"
    return f"{'.'.join(place)}: {detail['msg'][:1].lower()}{detail['msg'][1:]}{given}"
