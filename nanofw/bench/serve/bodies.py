"""The bodies of the requests of a workload."""

from __future__ import annotations

from dataclasses import fields

import msgspec

from nanofw.bench.serve.options import ServeOptions
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.errors import ConfigError
from nanofw.text.tokenizer import Tokenizer

SENT_AS_THEY_ARE = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "max_tokens", "min_tokens", "seed", "stop_token_ids", "ignore_eos",
    "stop",
)  # fmt: skip
"""Sampling parameters by the names that endpoints know."""


class Bodies:
    """Makes the bodies of requests.

    Args:
        tokenizer: None for a model that is used with token ids only.
    """

    def __init__(self, options: ServeOptions, model: str, tokenizer: Tokenizer | None) -> None:
        self._options, self._model, self._tokenizer = options, model, tokenizer
        as_text = options.prompts == "text" or options.api == "chat"
        self._reader = tokenizer if as_text else None
        self._lacks_reader = as_text and tokenizer is None
        self._defaults = SamplingParams()

    def check(self) -> None:
        """Raise ConfigError where prompts cannot be sent as they should be."""
        if self._options.api == "chat" and self._options.prompts == "ids":
            raise ConfigError("a chat takes texts, not token ids", key="bench.prompts")
        if self._lacks_reader:
            raise ConfigError(
                "texts need the tokenizer of the model: name its folder as model.path, or set "
                "bench.api=completions and bench.prompts=ids",
                key="bench.prompts",
            )

    def make(self, request: Request) -> bytes:
        """The body of a request."""
        body: dict[str, object] = {"model": self._model}
        ids = [int(token_id) for token_id in request.prompt_token_ids]
        content: object = ids if self._reader is None else self._reader.decode(ids)
        if self._options.api == "chat":
            body["messages"] = [{"role": "user", "content": content}]
        else:
            body["prompt"] = content
        if self._reader is None:
            body["return_token_ids"] = True  # an event for each token, also where it has no text
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= self._sampling(request.sampling)
        if self._options.hints:
            body |= _hints(request)
        for key, value in self._options.body.items():
            if value is None:
                body.pop(key, None)
            else:
                body[key] = value
        return msgspec.json.encode(body)

    def _sampling(self, sampling: SamplingParams) -> dict[str, object]:
        """What differs from the defaults of endpoints."""
        made: dict[str, object] = {"temperature": sampling.temperature}
        for field in fields(sampling):
            value: object = getattr(sampling, field.name)
            if field.name in SENT_AS_THEY_ARE and value != getattr(self._defaults, field.name):
                made[field.name] = value
        made["max_tokens"] = sampling.max_tokens
        return made


def _hints(request: Request) -> dict[str, object]:
    made: dict[str, object] = {}
    if request.client:
        made["client"] = request.client
    if request.priority:
        made["priority"] = request.priority
    if request.deadline is not None and request.arrival is not None:
        made["deadline_s"] = request.deadline - request.arrival
    if request.expected_output_tokens is not None:
        made["expected_output_tokens"] = request.expected_output_tokens
    return made
