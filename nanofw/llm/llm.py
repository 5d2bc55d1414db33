"""`LLM`: an engine and its text, in one object."""

# What users give is looked at although it has a type.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

from nanofw.config.layers import PYTHON
from nanofw.config.load import LoadedConfig, load_config
from nanofw.contracts.requests import Pooling, SamplingParams
from nanofw.engine.base import BaseEngine
from nanofw.llm.arguments import (
    FIELD_NAMES,
    POOLED_FIELD_NAMES,
    as_list,
    chat_fields,
    check_fields,
    load,
    params_for_each,
)
from nanofw.llm.chat_replies import (
    chat_formats,
    event_with_replies,
    formats_of_run,
    with_replies,
)
from nanofw.llm.embeddings import POOLED, EmbeddingResult, chosen_spec, embedding_of, pooled
from nanofw.llm.interrupt import Hold, postponed, postponing
from nanofw.llm.opening import open_session
from nanofw.llm.progress import run_progress
from nanofw.llm.prompts import PromptLike
from nanofw.llm.refusals import chosen_ids, read_prompt
from nanofw.llm.results import RequestResult, StreamEvent
from nanofw.llm.scores import SCORED, ScoreResult, encode_pair, paired, score_of
from nanofw.llm.session import SessionStep
from nanofw.text.tokenizer import Tokenizer

Message = Mapping[str, object]


class LLM:
    """Runs a model on prompts.

        with LLM("Qwen/Qwen3-0.6B", max_num_seqs=64) as llm:
            for result in llm.generate(["Once upon a time"], SamplingParams(max_tokens=32)):
                print(result.outputs[0].text)

    For use from one thread; `AsyncLLM` serves many callers.

    Args:
        model: folder, hub id or `embedded:demo`; or a configuration that was loaded.
        keywords: keys of the configuration's `engine` and `model` sections by their names
            (`max_num_seqs`, `dtype`), other sections as mappings, components also by their
            name (`scheduler="fcfs"`).

    Attributes:
        partial_results: what a call that failed or was interrupted had finished, in input
            order; None for those that it had not.

    Raises:
        NanofwError: the configuration cannot be used, or the model cannot be loaded.
    """

    def __init__(self, model: str | Path | LoadedConfig | None = None, **keywords: object) -> None:
        self.loaded: LoadedConfig = load(model, keywords)
        self._session = open_session(self.loaded)
        self._inbox: dict[int, deque[StreamEvent]] = {}
        self._closed = False
        self._formats = formats_of_run(self.loaded, self._session.encoder.template_has)
        self.partial_results: list[RequestResult | None] = []

    @classmethod
    def from_config(cls, config: str | Path | None = None, *overrides: str) -> LLM:
        """From a YAML file or a preset's name and `key=value` strings, as on the command line."""
        return cls(load_config(config, overrides, named_by=PYTHON))

    @property
    def engine(self) -> BaseEngine:
        """The engine, for its counters; requests go through this object.

        With `engine.replicas` it is a `ReplicatedEngine`, which has no scheduler and no executor.
        """
        return self._session.engine

    @property
    def sampling(self) -> SamplingParams:
        """The sampling parameters of requests that bring none."""
        return self._session.default_sampling

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        arguments: Mapping[str, object] | None = None,
        progress: bool = False,
        **fields: object,
    ) -> list[RequestResult]:
        """Continue all prompts; results come in their order.

        A prompt that cannot be served gives a result with `finish_reason` "refused" and an
        `error`; the others are served.

        Args:
            prompts: one or many: a text, token ids, or an object as a line of JSONL.
            sampling_params: one for all, one for each, or None: those of the configuration.
            arguments: of plugins, by their name, for prompts that bring none:
                `{"structured": {"regex": "[0-9]+"}}`.
            progress: show a progress bar on standard error.
            fields: other keys of a JSONL line (`max_tokens`, `stop`, `client`), for prompts that
                do not bring them.

        Raises:
            ValueError: another number of sampling parameters than of prompts, something that is
                neither, or a keyword that there is not.
            NanofwError: the run cannot go on; `partial_results` has what was finished.
        """
        wanted = as_list(prompts)
        check_fields(fields, FIELD_NAMES, len(wanted))
        params = params_for_each(sampling_params, self.sampling, len(wanted))
        return self._run(wanted, params, arguments, fields, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, object] | Callable[..., object]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        progress: bool = False,
        **fields: object,
    ) -> list[RequestResult]:
        """Continue one conversation or several, through the model's chat template.

        Args:
            messages: `[{"role": "user", "content": "Hello"}]`, or a list of such lists.
            tools: functions with types and a docstring, or their JSON descriptions.
            chat_template: which of the model's named templates.
            chat_template_kwargs: variables of the template, like `enable_thinking`.
            fields: other keys of a JSONL line (`continue_final_message`, `max_tokens`,
                `arguments`), and variables that the model's template reads.

        Raises:
            ValueError: as `generate`.
        """
        several = isinstance(messages, Sequence) and bool(messages)
        chats = messages if several and isinstance(messages[0], (list, tuple)) else [messages]
        names = self._session.encoder.template_variables
        common = chat_fields(
            fields, len(chats), names, tools=tools, template=chat_template,
            template_kwargs=chat_template_kwargs,
        )  # fmt: skip
        prompts = [{"messages": chat, **common} for chat in chats]
        results = self.generate(prompts, sampling_params, progress=progress)
        formats = chat_formats(self._formats, common)
        return [with_replies(result, formats) for result in results]

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, object] | Callable[..., object]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        **fields: object,
    ) -> Iterator[StreamEvent]:
        """Continue one conversation as `chat` does, text as it comes, as `stream` gives it."""
        names = self._session.encoder.template_variables
        common = chat_fields(
            fields, 1, names, tools=tools, template=chat_template,
            template_kwargs=chat_template_kwargs,
        )  # fmt: skip
        formats = chat_formats(self._formats, common)
        events = self._stream({"messages": messages, **common}, sampling_params, None, {})
        with closing(events):
            for event in events:
                yield event_with_replies(event, formats)

    def stream(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        arguments: Mapping[str, object] | None = None,
        **fields: object,
    ) -> Iterator[StreamEvent]:
        """Continue one prompt, text as it comes; the last event holds the result.

        Several streams may be open at once and share steps. Closing one aborts its request.

        Args:
            arguments, fields: as for `generate`.
        """
        check_fields(fields, FIELD_NAMES, 1)
        return self._stream(prompt, sampling_params, arguments, fields)

    def _stream(
        self,
        prompt: object,
        sampling_params: SamplingParams | None,
        arguments: Mapping[str, object] | None,
        fields: Mapping[str, object],
    ) -> Generator[StreamEvent]:
        inbox = deque[StreamEvent]()
        ticket = -1
        try:
            with postponed():
                params = self.sampling if sampling_params is None else sampling_params
                ticket = self._add(prompt, params, arguments, fields, stream=True)
                self._inbox[ticket] = inbox
            while True:
                while not inbox:
                    self._check_open()
                    with postponed():
                        self._step()
                event = inbox.popleft()
                yield event
                if event.result is not None:
                    return
        finally:
            self._session.abort(ticket)
            self._inbox.pop(ticket, None)

    def embed(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        progress: bool = False,
        **fields: object,
    ) -> list[EmbeddingResult]:
        """The pooled hidden states of all prompts, in their order.

        Args:
            pooling, normalize: None: as the checkpoint says, else the last hidden state and true.
            fields: keys of a JSONL line that are not about sampling.

        Raises:
            ValueError: a pooling that there is not, or a keyword that there is not.
            NanofwError: the run cannot go on, or the checkpoint describes what is not supported.
        """
        wanted = as_list(prompts)
        check_fields(fields, POOLED_FIELD_NAMES, len(wanted))
        spec = chosen_spec(self.engine.spec, pooling, normalize)
        read = [pooled(read_prompt(item, POOLED, None, fields), spec.pooling) for item in wanted]
        results = self._run(read, [POOLED] * len(read), None, {}, progress)
        return [embedding_of(result, normalize=spec.normalize) for result in results]

    def score(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        continuations: str | Sequence[int] | Sequence[str | Sequence[int]],
        *,
        progress: bool = False,
        **fields: object,
    ) -> list[ScoreResult]:
        """The log probability of each continuation after its prompt.

        A text goes on where the prompt's text ends, as one text: its tokens are those that the
        prompt alone does not have.

        Args:
            continuations: one for each prompt; one prompt goes with every continuation.
            fields: as for `embed`.

        Raises:
            ValueError: another number of continuations than of prompts, or an unknown keyword.
            NanofwError: the run cannot go on.
        """
        pairs = paired(as_list(prompts), as_list(continuations))
        check_fields(fields, POOLED_FIELD_NAMES, len(pairs))
        encoder = self._session.encoder
        read = [encode_pair(encoder, prompt, more, fields) for prompt, more in pairs]
        results = self._run(read, [SCORED] * len(read), None, {}, progress)
        return [score_of(result) for result in results]

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None for a model that is used with token ids only."""
        return self._session.tokenizer

    def get_tokenizer(self) -> Tokenizer | None:
        """`tokenizer`, under another name."""
        return self.tokenizer

    def metrics(self) -> str:
        """Counters and latencies in the Prometheus text format."""
        return self._session.metrics()

    def close(self) -> None:
        """Give back devices and processes. Idempotent."""
        if not self._closed:
            self._closed = True
            self._session.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- requests -------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this LLM is closed")

    def _add(
        self,
        prompt: object,
        sampling: SamplingParams,
        arguments: Mapping[str, object] | None,
        fields: Mapping[str, object],
        *,
        stream: bool = False,
    ) -> int:
        self._check_open()
        read = read_prompt(prompt, sampling, arguments, fields)
        return self._session.add_prompt(read, stream=stream)

    def _run(
        self,
        prompts: Sequence[object],
        params: Sequence[SamplingParams],
        arguments: Mapping[str, object] | None,
        fields: Mapping[str, object],
        progress: bool,
    ) -> list[RequestResult]:
        results: dict[int, RequestResult | None] = {}
        self._session.reserve(chosen_ids([*prompts, fields]))
        try:
            with postponing() as hold:
                for prompt, sampling in zip(prompts, params, strict=True):
                    with hold:
                        results[self._add(prompt, sampling, arguments, fields)] = None
                self._collect(results, hold, progress)
        except BaseException:
            if self.engine.has_failed:  # what had ended in the very step that failed
                step = self._session.fail("the engine failed")
                results.update(
                    (ticket, result)
                    for ticket, result in step.results
                    if ticket in results and ticket in step.outputs
                )
            self.partial_results = list(results.values())
            for ticket in results:
                self._session.abort(ticket)
            raise
        return cast("list[RequestResult]", list(results.values()))

    def _collect(
        self, results: dict[int, RequestResult | None], hold: Hold, progress: bool
    ) -> None:
        """Step until all tickets have their result."""
        num_missing = len(results)
        with run_progress(num_missing, enabled=progress) as bar:
            while num_missing:
                with hold:
                    step = self._step()
                    mine = [item for item in step.results if item[0] in results]
                    results.update(mine)
                num_missing -= len(mine)
                bar.update(len(mine), step.report)

    def _step(self) -> SessionStep:
        """One step for everyone; what belongs to an open stream goes there."""
        step = self._session.step()
        for ticket, event in step.events:
            if ticket in self._inbox:
                self._inbox[ticket].append(event)
        return step
