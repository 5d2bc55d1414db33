"""Turn a prompt into engine input: token ids, compiled stop strings, bad words."""

# What users give is looked at although it has a type.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.errors import ModelError, shown
from nanofw.llm.prompts import Prompt
from nanofw.text.chat import ChatTemplate
from nanofw.text.stop import StopStrings
from nanofw.text.tokenizer import Tokenizer

MAX_STOP_CHARACTERS = 1 << 15
"""Of a request's stop strings: their automaton takes some hundred bytes for each."""

MAX_KEPT_STOP_CHARACTERS = 1 << 17
"""Of the automata that are kept for the next request that has the same ones."""

MAX_WORD_CHARACTERS = 1 << 18
"""Of a request's bad words."""

ALWAYS_READ_CHARACTERS = 1 << 16
"""Texts up to this length are tokenized before anyone says that they are too long."""


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
        pooling=prompt.pooling,
    )


class Encoder:
    """Encodes prompts. Any thread may call it.

    Args:
        tokenizer: None for a model that is used with token ids only.
        chat: the model's chat templates.
        max_model_len: texts that cannot fit into as many tokens are not tokenized at all; None:
            there is no bound.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        chat: ChatTemplate,
        max_model_len: int | None = None,
    ) -> None:
        self._tokenizer, self._chat = tokenizer, chat
        self._max_model_len = max_model_len
        self._stops: dict[tuple[str, ...], StopStrings] = {}
        self._num_stop_characters = 0

    @property
    def template_variables(self) -> frozenset[str]:
        """Variables that the model's chat templates read, beside those of every chat."""
        return self._chat.variables

    def template_has(self, text: str) -> bool:
        """Whether some chat template of the model contains a text."""
        return self._chat.contains(text)

    def encode(self, prompt: Prompt) -> Prompt:
        """The prompt with token ids, compiled stop strings, and bad words as token ids.

        One that is encoded already stays as it is.

        Raises:
            ValueError: it needs a tokenizer or a template that is not there, or cannot be read.
            ModelError: its template is broken.
        """
        try:
            text, token_ids = self._tokens(prompt)
        except (ValueError, TypeError, ModelError):
            raise
        except Exception as error:  # tokenizers raises plain Exception
            raise ValueError(f"the tokenizer cannot encode the prompt: {error}") from error
        sampling = prompt.sampling
        if isinstance(sampling.bad_words, str) or not isinstance(sampling.bad_words, Sequence):
            raise ValueError(
                f"bad_words is {shown(sampling.bad_words)}; it must be a list of words"
            )
        if any(isinstance(word, str) for word in sampling.bad_words):
            sampling = replace(sampling, bad_words=self._bad_words(sampling.bad_words))
        if prompt.stop_when is not None:
            self._needed("stop_when reads texts")
        stops = self._stop_strings(sampling)
        if (
            token_ids is prompt.token_ids
            and sampling is prompt.sampling
            and stops is prompt.stop_strings
            and prompt.messages is None
        ):
            return prompt  # token ids with nothing to encode
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
            self._check_length(text)
            return text, tokenizer.encode(text, add_special_tokens=False)
        text = prompt.text or ""
        self._check_length(text)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the prompt is not valid text: {error}") from None
        return text, tokenizer.encode(text)

    def text_tokens(self, text: str, *, is_chat: bool) -> list[int]:
        """Token ids of a text, without such as a tokenizer puts behind every text.

        Args:
            is_chat: the text is a rendered template, which has its special tokens.
        """
        tokenizer = self._needed("give token ids")
        self._check_length(text)
        plain = tokenizer.encode(text, add_special_tokens=False)
        if is_chat:
            return plain
        whole = tokenizer.encode(text)
        places = range(len(whole) - len(plain) + 1)
        begin = next((i for i in places if whole[i : i + len(plain)] == plain), 0)
        return whole[: begin + len(plain)]

    def _check_length(self, text: str) -> None:
        """Raise ValueError for a text that is too long even if its tokens are the longest ones."""
        if self._tokenizer is None or self._max_model_len is None:
            return
        most = max(ALWAYS_READ_CHARACTERS, self._max_model_len * self._tokenizer.max_token_length)
        if len(text) > most:
            raise ValueError(
                f"the prompt has {len(text)} characters; no more than {most} can fit into "
                f"max_model_len {self._max_model_len}"
            )

    def _needed(self, instead: str) -> Tokenizer:
        if self._tokenizer is None:
            raise ValueError(f"this model has no tokenizer: {instead}")
        return self._tokenizer

    def _bad_words(self, words: Sequence[Sequence[int] | str]) -> tuple[tuple[int, ...], ...]:
        """Words as token ids, each as it stands at the beginning and after a blank."""
        tokenizer = self._needed("give bad_words as token ids")
        num_characters = sum(len(word) for word in words if isinstance(word, str))
        if num_characters > MAX_WORD_CHARACTERS:
            raise ValueError(
                f"bad_words has {num_characters} characters; at most {MAX_WORD_CHARACTERS} are read"
            )
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
            raise ValueError(
                f"stop is {shown(sampling.stop)}; it must be a text or a list of texts"
            )
        strings = (sampling.stop,) if isinstance(sampling.stop, str) else tuple(sampling.stop)
        if not strings:
            return None
        self._needed("use stop_token_ids instead of stop")
        size = sum(len(string) for string in strings if isinstance(string, str))
        if size > MAX_STOP_CHARACTERS:
            raise ValueError(f"stop has {size} characters; at most {MAX_STOP_CHARACTERS} are read")
        known = self._stops.get(strings)
        if known is None:
            known = StopStrings(strings)
            self._num_stop_characters += size + 1
            if self._num_stop_characters > MAX_KEPT_STOP_CHARACTERS:
                self._stops, self._num_stop_characters = {}, size + 1
            self._stops[strings] = known
        return known
