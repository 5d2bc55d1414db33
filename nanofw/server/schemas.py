"""What requests may say, as pydantic models: OpenAI's parameters, and those of nanofw.

A parameter that is not here is refused by its name; `unsupported.py` says why.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, GetCoreSchemaHandler, Tag

from nanofw.contracts.requests import Pooling
from nanofw.narrowing import JsonObject, is_object

T = TypeVar("T")


class _FailsFast:
    """The first wrong item of a list is told, not each of a million."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return {**handler(source), "fail_fast": True}


List: TypeAlias = Annotated[list[T], _FailsFast()]


Name: TypeAlias = Annotated[str, Field(max_length=256)]
"""Of a client or a user: counts, metrics and policies keep thousands of them."""


class Body(BaseModel):
    """Base of all: strict, without keys that nothing reads."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, frozen=True, protected_namespaces=()
    )


class StreamOptions(Body):
    """How a stream is sent."""

    include_usage: bool = False
    """A last event without choices has the usage."""
    continuous_usage_stats: bool = False
    """Every event has the usage so far."""


class EngineRequest(Body):
    """What all requests have in common that the engine serves."""

    model: str | None = None
    user: Name | None = None
    """Written into the log of requests."""
    # for policies and plugins
    client: Name | None = None
    priority: int | None = None
    deadline_s: float | None = None
    expected_output_tokens: int | None = None
    arguments: JsonObject | None = None
    cache_salt: str | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes as events."""
        return False

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return False

    @property
    def wants_running_usage(self) -> bool:
        """Whether every event of a stream has the usage so far."""
        return False


class Generation(EngineRequest):
    """What a completion and a chat have in common."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    stop: str | List[str] | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    # sampling beyond OpenAI's
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    bad_words: List[str] | None = None
    stop_token_ids: List[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    """Choices have the ids of their tokens, and the first event of each those of its prompt."""

    @property
    def is_stream(self) -> bool:
        return bool(self.stream)

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wants_running_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


class CompletionRequest(Generation):
    """`POST /v1/completions`."""

    prompt: str | List[str] | List[int] | List[List[int]]
    echo: bool | None = None
    logprobs: int | None = None


class EmbeddingRequest(EngineRequest):
    """`POST /v1/embeddings`."""

    input: str | List[str] | List[int] | List[List[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    # beyond OpenAI's
    pooling: Pooling | None = None
    normalize: bool | None = None


class ScoreRequest(EngineRequest):
    """`POST /v1/score`."""

    prompt: str | List[int]
    continuation: str | List[str] | List[int] | List[List[int]]


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchema(Body):
    """A schema with its name."""

    name: str = ""
    description: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None
    """Schemas are always enforced."""


class JsonSchemaFormat(Body):
    """JSON that a schema allows."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


def _format_type(value: object) -> str:
    kind: object = value.get("type") if is_object(value) else getattr(value, "type", None)
    return str(kind)


ResponseFormat: TypeAlias = Annotated[
    Annotated[TextFormat, Tag("text")]
    | Annotated[JsonObjectFormat, Tag("json_object")]
    | Annotated[JsonSchemaFormat, Tag("json_schema")],
    Discriminator(
        _format_type,
        custom_error_type="response_format",
        custom_error_message="its type must be text, json_object or json_schema",
    ),
]


class Function(Body):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.\-]{1,128}$")]
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    """Arguments keep to `parameters` wherever a call is forced."""


class Tool(Body):
    """A tool of a chat."""

    type: Literal["function"]
    function: Function


class FunctionName(Body):
    """A function by its name."""

    name: str


class NamedTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: FunctionName


class ChatRequest(Generation):
    """`POST /v1/chat/completions`."""

    messages: List[JsonObject]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: List[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    # of the chat template
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class TokenizeRequest(Body):
    """`POST /tokenize`."""

    model: str | None = None
    prompt: str | None = None
    messages: List[JsonObject] | None = None
    tools: List[Tool] | None = None
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class DetokenizeRequest(Body):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: List[int]
