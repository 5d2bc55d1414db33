"""`AsyncLLM`: many callers of one engine, in asyncio."""

# What users give is looked at although it has a type.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nanofw.assembly import Selection
from nanofw.checkpoints.pooling import EmbeddingSpec
from nanofw.config.layers import PYTHON
from nanofw.config.load import LoadedConfig, load_config
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.requests import Pooling, SamplingParams
from nanofw.errors import RequestShed
from nanofw.llm.arguments import (
    CHAT_FIELD_NAMES,
    FIELD_NAMES,
    POOLED_FIELD_NAMES,
    check_fields,
    load,
)
from nanofw.llm.async_streams import AsyncInbox, AsyncStream, Sink
from nanofw.llm.chat_replies import chat_formats, event_with_replies, formats_of_run
from nanofw.llm.embeddings import POOLED, EmbeddingResult, chosen_spec, embedding_of, pooled
from nanofw.llm.engine_thread import EngineThread
from nanofw.llm.opening import open_session
from nanofw.llm.prompts import Prompt, PromptLike
from nanofw.llm.refusals import encode_prompt, read_prompt
from nanofw.llm.results import RequestResult, StreamEvent
from nanofw.llm.scores import ScoreResult, encode_pair, score_of
from nanofw.text.reply_formats import ReplyFormats
from nanofw.text.tokenizer import Tokenizer

INLINE_CHARACTERS = 2_000
"""Texts up to this length are encoded at once; longer ones in a thread, to keep the loop free."""


class AsyncLLM:
    """Serves prompts of many callers from one engine, which runs in a thread of its own.

        async with AsyncLLM("Qwen/Qwen3-0.6B") as llm:
            async for event in llm.generate("Once upon a time"):
                print(event.text, end="")

    For one event loop; making one blocks until the model is loaded. Leaving an iterator, or
    cancelling its task, aborts the request. A simulated machine answers in real time.

    Args:
        model, keywords: as for `LLM`.
        max_requests: requests that may be in the engine, waiting ones included. Further
            callers wait until one ends.
        admission_timeout_s: how long they wait before they are refused; None: without a limit.
        observers: who watches the steps, in the engine's thread; of a single engine.
        selection: the components of `model`, when they were chosen before.
    """

    def __init__(
        self,
        model: str | Path | LoadedConfig | None = None,
        *,
        max_requests: int = 4096,
        admission_timeout_s: float | None = None,
        observers: Sequence[StepObserver] = (),
        selection: Selection | None = None,
        **keywords: object,
    ) -> None:
        if not isinstance(max_requests, int) or max_requests < 1:
            raise ValueError(f"max_requests is {max_requests!r}; it must be at least 1")
        if admission_timeout_s is not None and not admission_timeout_s >= 0:
            raise ValueError(
                f"admission_timeout_s is {admission_timeout_s!r}; it must be at least 0, or None"
            )
        self.loaded: LoadedConfig = load(model, keywords)
        self._timeout_s, self._max_requests = admission_timeout_s, max_requests
        self._permits = asyncio.Semaphore(max_requests)
        self._inbox: AsyncInbox | None = None
        self._thread = EngineThread(
            lambda: open_session(
                self.loaded, selection=selection, real_time=True, observers=observers
            )
        )
        self._formats = formats_of_run(self.loaded, self.template_has)

    @classmethod
    def from_config(
        cls, config: str | Path | None = None, *overrides: str, **options: Any
    ) -> AsyncLLM:
        """From a YAML file or preset and `key=value` strings; `options` as for the class."""
        return cls(load_config(config, overrides, named_by=PYTHON), **options)

    @property
    def failure(self) -> BaseException | None:
        """What ended the engine; None while it can serve."""
        return self._thread.failure

    @property
    def is_simulated(self) -> bool:
        """Whether a modelled machine answers, in real time."""
        return self._thread.is_simulated

    @property
    def replica_problems(self) -> tuple[str | None, ...]:
        """By replica, why it does not serve now; None: it serves. Empty for a single engine."""
        return self._thread.replica_problems

    @property
    def sampling(self) -> SamplingParams:
        """The sampling parameters of requests that bring none."""
        return self._thread.default_sampling

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None for a model that is used with token ids only."""
        return self._thread.tokenizer

    @property
    def max_model_len(self) -> int:
        """The largest number of tokens of a request, its prompt included."""
        return self._thread.max_model_len

    @property
    def hidden_size(self) -> int:
        """Numbers of an embedding."""
        return self._thread.spec.hidden_size

    @property
    def template_variables(self) -> frozenset[str]:
        """Variables that the model's chat templates read, beside those of every chat."""
        return self._thread.encoder.template_variables

    def template_has(self, text: str) -> bool:
        """Whether some chat template of the model contains a text."""
        return self._thread.encoder.template_has(text)

    async def generate(
        self,
        prompt: PromptLike | Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        arguments: Mapping[str, object] | None = None,
        queue_timeout_s: float | None = None,
        **fields: object,
    ) -> AsyncGenerator[StreamEvent]:
        """Continue a prompt, text as it comes; the last event holds the result.

        A prompt that cannot be served gives a single event whose result is refused.

        Args:
            prompt: what `encode` gave is served as it is.
            arguments: of plugins, by their name.
            queue_timeout_s: how long it may wait for its first step; its result is `shed` then.

        Raises:
            ValueError: a keyword that there is not.
            RequestShed: no request ended in time.
            ExecutorError: the engine failed before, or was closed.
        """
        check_fields(fields, FIELD_NAMES, 1)
        params = self.sampling if sampling_params is None else sampling_params
        encoded = await self._encode(read_prompt(prompt, params, arguments, fields))
        lists = self.generate_lists(encoded, queue_timeout_s=queue_timeout_s)
        async with contextlib.aclosing(lists):
            async for events in lists:
                for event in events:
                    yield event

    async def generate_lists(
        self,
        prompt: Prompt,
        *,
        queue_timeout_s: float | None = None,
        arrival: float | None = None,
        sink: Sink | None = None,
    ) -> AsyncGenerator[list[StreamEvent]]:
        """What `generate` gives, as lists of all that has come since the last one was taken.

        Args:
            prompt: what `encode` gave.
            queue_timeout_s: as for `generate`.
            arrival: when the prompt came, on the machine's monotonic clock; None: now.
            sink: is offered what comes while the next list is waited for; the lists have what it
                does not take, and the result.

        Raises:
            RequestShed, ExecutorError: as `generate` does.
        """
        release = await self._take_permit(prompt) if prompt.refusal is None else _nothing
        loop = asyncio.get_running_loop()
        if self._inbox is None or self._inbox.loop is not loop:
            self._inbox = AsyncInbox(loop)
        stream = AsyncStream(self._inbox, release, sink)
        try:
            self._thread.add_prompt(stream, prompt, arrival)
        except BaseException:
            release()
            raise
        timer = None
        if queue_timeout_s is not None:
            reason = f"it waited {queue_timeout_s:g} s and was not started; try again later"
            timer = loop.call_later(queue_timeout_s, self._thread.shed, stream, reason)
        try:
            while True:
                events = await stream.take()
                yield events
                if events[-1].result is not None:
                    return
        finally:
            if timer is not None:
                timer.cancel()
            if not stream.ended:
                self._thread.abort(stream)

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        sampling_params: SamplingParams | None = None,
        *,
        queue_timeout_s: float | None = None,
        **fields: object,
    ) -> AsyncGenerator[StreamEvent]:
        """Continue a conversation through the model's chat template, as `generate` does.

        Args:
            queue_timeout_s: as for `generate`.
            fields: those of `generate`, and the keys of a chat in a JSONL line (`tools`,
                `chat_template_kwargs`, `continue_final_message`).

        Raises:
            ValueError: a keyword that there is not.
        """
        check_fields(fields, CHAT_FIELD_NAMES, 1)
        record: dict[str, object] = {"messages": messages, **fields}
        events = self.generate(record, sampling_params, queue_timeout_s=queue_timeout_s)
        return self._chat_events(events, chat_formats(self._formats, record))

    @staticmethod
    async def _chat_events(
        events: AsyncGenerator[StreamEvent], formats: ReplyFormats
    ) -> AsyncGenerator[StreamEvent]:
        async with contextlib.aclosing(events):
            async for event in events:
                yield event_with_replies(event, formats)

    async def embed(
        self,
        prompt: PromptLike,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        **fields: object,
    ) -> EmbeddingResult:
        """The pooled hidden states of a prompt; arguments and errors as those of `LLM.embed`."""
        check_fields(fields, POOLED_FIELD_NAMES, 1)
        spec = self.embedding_spec(pooling, normalize)
        read = await self._encode(pooled(read_prompt(prompt, POOLED, None, fields), spec.pooling))
        return embedding_of(await self._result(read), normalize=spec.normalize)

    async def score(
        self, prompt: PromptLike, continuation: str | Sequence[int], **fields: object
    ) -> ScoreResult:
        """The log probability of a continuation; arguments and errors as those of `LLM.score`."""
        check_fields(fields, POOLED_FIELD_NAMES, 1)
        return score_of(await self._result(await self.encode_pair(prompt, continuation, fields)))

    def embedding_spec(
        self, pooling: Pooling | None = None, normalize: bool | None = None
    ) -> EmbeddingSpec:
        """How embeddings are made: as the caller says, else as the checkpoint does."""
        return chosen_spec(self._thread.spec, pooling, normalize)

    async def encode_pair(
        self, prompt: PromptLike, continuation: object, fields: Mapping[str, object] | None = None
    ) -> Prompt:
        """A prompt and its continuation as a request for their score."""
        encoder = self._thread.encoder
        return await asyncio.to_thread(encode_pair, encoder, prompt, continuation, fields or {})

    async def _result(self, prompt: Prompt) -> RequestResult:
        result: RequestResult | None = None
        async for event in self.generate(prompt):
            result = event.result
        assert result is not None
        return result

    async def encode(
        self, prompt: PromptLike, sampling_params: SamplingParams | None = None
    ) -> Prompt:
        """The prompt with its text and token ids, for `generate`.

        Raises:
            RequestError: it cannot be read or encoded.
        """
        params = self.sampling if sampling_params is None else sampling_params
        made = await self._encode(read_prompt(prompt, params))
        if made.refusal is not None:
            raise made.refusal
        return made

    async def metrics(self) -> str:
        """Counters and latencies in the Prometheus text format."""
        return await asyncio.wrap_future(self._thread.call(lambda session: session.metrics()))

    async def stats(self) -> Mapping[str, object]:
        """`Engine.stats()`, read between two steps."""
        return await asyncio.wrap_future(self._thread.call(lambda s: s.engine.stats()))

    async def close(self) -> None:
        """End the engine; open requests end with an error. Idempotent."""
        await asyncio.to_thread(self._thread.stop)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _encode(self, prompt: Prompt) -> Prompt:
        if prompt.messages is None and len(prompt.text or "") <= INLINE_CHARACTERS:
            return encode_prompt(self._thread.encoder, prompt)
        return await asyncio.to_thread(encode_prompt, self._thread.encoder, prompt)

    async def _take_permit(self, prompt: Prompt) -> Callable[[], None]:
        """Wait for a place in the engine; what gives it back."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._permits.acquire()
        except TimeoutError:
            raise RequestShed(
                prompt.id or "",
                f"{self._max_requests} requests are being served, and not one ended within "
                f"{self._timeout_s} s; try again later",
            ) from None
        return self._permits.release


def _nothing() -> None:
    """A refused request has no place in the engine."""
