"""Turn a prompt into engine input: token ids, compiled stop strings, bad words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.llm.prompts import Prompt
from nanofw.text.chat import ChatTemplate
from nanofw.text.stop import StopStrings
from nanofw.text.tokenizer import Tokenizer

MAX_STOP_SETS = 1024
"""Automata of stop strings that are kept for the next request that has the same ones."""


def engine_request(
    prompt: Prompt, request_id: str, *, arrival: float, stream: bool = False
) -> Request:
    """The engine's request of an encoded prompt that arrives at a time of the engine's clock."""
    assert prompt.token_ids is not None
    return Request(
        id=request_id,
        prompt_token_ids=prompt.token_ids,
        sampling=prompt.sampling,
        arrival=arrival,
        client=prompt.client,
        priority=prompt.priority,
        deadline=None if prompt.deadline is None else arrival + prompt.deadline,
        expected_output_tokens=prompt.expected_output_tokens,
        stream=stream,
        arguments=prompt.arguments,
        cache_salt=prompt.cache_salt,
    )


class Encoder:
    """Encodes prompts. Any thread may call it.

    Args:
        tokenizer: None for a model that is used with token ids only.
        chat: the model's chat templates.
    """

    def __init__(self, tokenizer: Tokenizer | None, chat: ChatTemplate) -> None:
        self._tokenizer, self._chat = tokenizer, chat
        self._stops: dict[tuple[str, ...], StopStrings] = {}

    def encode(self, prompt: Prompt) -> Prompt:
        """The prompt with token ids, compiled stop strings, and bad words as token ids.

        One that is encoded already stays as it is.

        Raises:
            ValueError: it needs a tokenizer or a template that is not there, or cannot be read.
        """
        try:
            text, token_ids = self._tokens(prompt)
        except (ValueError, TypeError):
            raise
        except Exception as error:  # tokenizers raises plain Exception
            raise ValueError(f"the tokenizer cannot encode the prompt: {error}") from error
        sampling = prompt.sampling
        if isinstance(sampling.bad_words, str) or not isinstance(sampling.bad_words, Sequence):
            raise ValueError(f"bad_words is {sampling.bad_words!r}; it must be a list of words")
        if any(isinstance(word, str) for word in sampling.bad_words):
            sampling = replace(sampling, bad_words=self._bad_words(sampling.bad_words))
        stops = self._stop_strings(sampling)
        return replace(
            prompt,
            text=text,
            token_ids=token_ids,
            messages=None,
            sampling=sampling,
            stop_strings=stops,
        )

    def _tokens(self, prompt: Prompt) -> tuple[str | None, Sequence[int] | IntArray]:
        if prompt.token_ids is not None:
            return prompt.text, prompt.token_ids
        tokenizer = self._needed("give prompt_token_ids")
        if prompt.messages is not None:
            text = self._chat.render(prompt.messages, **prompt.chat)
            return text, tokenizer.encode(text, add_special_tokens=False)
        text = prompt.text or ""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the prompt is not valid text: {error}") from None
        return text, tokenizer.encode(text)

    def _needed(self, instead: str) -> Tokenizer:
        if self._tokenizer is None:
            raise ValueError(f"this model has no tokenizer: {instead}")
        return self._tokenizer

    def _bad_words(self, words: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
        """Words as token ids, each as it stands at the beginning and after a blank."""
        tokenizer = self._needed("give bad_words as token ids")
        sequences: list[tuple[int, ...]] = []
        for word in words:
            if not isinstance(word, str):
                sequences.append(tuple(word))
                continue
            for text in (word, f" {word.lstrip()}"):
                sequences.append(tuple(tokenizer.encode(text, add_special_tokens=False)))
        return tuple(dict.fromkeys(sequences))

    def _stop_strings(self, sampling: SamplingParams) -> StopStrings | None:
        if not isinstance(sampling.stop, Sequence) or isinstance(sampling.stop, bytes):
            raise ValueError(f"stop is {sampling.stop!r}; it must be a text or a list of texts")
        strings = (sampling.stop,) if isinstance(sampling.stop, str) else tuple(sampling.stop)
        if not strings:
            return None
        self._needed("use stop_token_ids instead of stop")
        known = self._stops.get(strings)
        if known is None:
            if len(self._stops) >= MAX_STOP_SETS:
                self._stops.clear()
            known = self._stops[strings] = StopStrings(strings)
        return known
