"""What answers look like: whole, or as the events of a stream."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nanofw import __version__
from nanofw.llm.prompts import Prompt
from nanofw.llm.results import Completion, RequestResult, StreamEvent
from nanofw.narrowing import JsonObject
from nanofw.server.identifiers import new_identifier

FINGERPRINT = f"nanofw-{__version__}"


def usage_of(results: Sequence[RequestResult], num_dropped: int = 0) -> JsonObject:
    """The tokens of a request.

    Args:
        num_dropped: generated tokens that are not part of the answer.
    """
    num_prompt = sum(len(result.prompt_token_ids) for result in results)
    num_output = sum(result.num_output_tokens for result in results) - num_dropped
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {
            "cached_tokens": sum(result.num_cached_tokens for result in results)
        },
    }


@dataclass(slots=True)
class RunningUsage:
    """The tokens of a stream so far, of all its prompts and samples."""

    num_prompt_tokens: int
    num_output_tokens: int = 0

    @classmethod
    def of(cls, prompts: Sequence[Prompt]) -> RunningUsage:
        """Of encoded prompts; nothing of them was sent yet."""
        return cls(sum(len(p.token_ids) for p in prompts if p.token_ids is not None))

    def to_record(self) -> dict[str, int]:
        """As answers have it."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
        }


@dataclass(slots=True, kw_only=True)
class WholeFormat(ABC):
    """The answer to one request, in one body.

    Attributes:
        model: what the request called it.
    """

    model: str
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()), init=False)

    def __post_init__(self) -> None:
        self.id = f"{self._id_prefix()}-{new_identifier()}"

    @abstractmethod
    def _id_prefix(self) -> str: ...

    @abstractmethod
    def begin(self, prompts: Sequence[Prompt]) -> None:
        """Called with the encoded prompts, before anything else."""

    @abstractmethod
    def whole(self, results: Sequence[RequestResult]) -> JsonObject:
        """The answer. Raises `ApiError`."""


@dataclass(slots=True, kw_only=True)
class Format(WholeFormat):
    """An answer of text, whole or as a stream.

    Attributes:
        num_samples: of each prompt.
        token_ids: choices have those of their tokens.
        running_usage: of a stream whose events have it; None: they do not.
    """

    num_samples: int = 1
    token_ids: bool = False
    running_usage: RunningUsage | None = field(default=None, init=False)

    @abstractmethod
    def _object(self, *, is_chunk: bool) -> str:
        """The value of `object`."""

    @abstractmethod
    def opening(self, number: int) -> list[JsonObject]:
        """Events before the first one of a prompt's answer."""

    @abstractmethod
    def piece(self, number: int, event: StreamEvent) -> list[JsonObject]:
        """The events of a piece of text; none for one that has nothing to show."""

    @abstractmethod
    def ending(self, number: int, result: RequestResult) -> list[JsonObject]:
        """The events with which a prompt's answer ends."""

    @abstractmethod
    def choices(self, number: int, result: RequestResult) -> list[JsonObject]:
        """The choices of a prompt in an answer that is not streamed."""

    def num_dropped(self, results: Sequence[RequestResult]) -> int:
        """Generated tokens that are not part of the answer."""
        return 0

    def whole(self, results: Sequence[RequestResult]) -> JsonObject:
        """The answer that is not streamed."""
        choices = [c for number, r in enumerate(results) for c in self.choices(number, r)]
        usage = usage_of(results, self.num_dropped(results))
        return {**self._head(is_chunk=False), "choices": choices, "usage": usage}

    def usage_event(self, results: Sequence[RequestResult]) -> JsonObject:
        """The event with the usage, after all others."""
        usage = usage_of(results, self.num_dropped(results))
        return {**self._head(is_chunk=True), "choices": [], "usage": usage}

    def event(self, choice: Mapping[str, object]) -> JsonObject:
        """An event with one choice."""
        event = {**self._head(is_chunk=True), "choices": [choice]}
        if self.running_usage is not None:
            event["usage"] = self.running_usage.to_record()
        return event

    def _head(self, *, is_chunk: bool) -> JsonObject:
        return {
            "id": self.id,
            "object": self._object(is_chunk=is_chunk),
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }

    def index(self, number: int, sample_index: int) -> int:
        """Of a choice: prompt by prompt, and within a prompt sample by sample."""
        return number * self.num_samples + sample_index

    def reasons(self, output: Completion) -> JsonObject:
        """Why a choice ended."""
        return {"finish_reason": str(output.finish_reason), "stop_reason": output.stop_reason}

    def ids(self, output: Completion, result: RequestResult) -> JsonObject:
        """The ids of a choice's tokens, where they are wanted; its prompt's with the first."""
        if not self.token_ids:
            return {}
        record: JsonObject = {"token_ids": output.token_ids}
        if output.index == 0:
            record["prompt_token_ids"] = result.prompt_token_ids
        return record


@dataclass(slots=True, kw_only=True)
class ListFormat(WholeFormat):
    """Answers that are a list, one item for each prompt; nothing is generated."""

    def begin(self, prompts: Sequence[Prompt]) -> None:
        pass

    def whole(self, results: Sequence[RequestResult]) -> JsonObject:
        num_tokens = sum(len(result.prompt_token_ids) for result in results)
        return {
            "id": self.id,
            "object": "list",
            "created": self.created,
            "model": self.model,
            "data": [self._item(index, result) for index, result in enumerate(results)],
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }

    @abstractmethod
    def _item(self, index: int, result: RequestResult) -> JsonObject:
        """What the list has for a prompt. Raises `ApiError`."""
