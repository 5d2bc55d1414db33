"""A request that the engine has, and the text of its samples so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.outputs import RequestOutput, TokenDelta
from nanofw.contracts.requests import FinishReason
from nanofw.llm.logprobs import PositionLogprobs, readable
from nanofw.llm.prompts import Prompt
from nanofw.llm.results import Completion, RequestResult, Timings, make_timings, refused
from nanofw.text.stream import TextStream
from nanofw.text.tokenizer import Tokenizer


@dataclass(slots=True)
class LiveSample:
    """One of a request's samples.

    Attributes:
        text: None when the text is not needed before the end.
        times: when each token came, if that is asked for.
        completion: what it became; None while it runs.
        num_kept: tokens at which `stop_when` ended it; None: it did not.
    """

    text: TextStream | None
    times: list[float] = field(default_factory=list[float])
    completion: Completion | None = None
    output: RequestOutput | None = None
    num_kept: int | None = None


class LiveRequest:
    """A request from the moment the engine accepted it.

    Args:
        show: its text is reported as it comes.
        token_times: note when each token came.

    Attributes:
        has_started: a step has run it.
        shed_reason: why it is given up before it was started; empty: it is not.
    """

    def __init__(
        self,
        ticket: int,
        request_id: str,
        prompt: Prompt,
        tokenizer: Tokenizer | None,
        *,
        show: bool,
        token_times: bool,
    ) -> None:
        self.ticket = ticket
        self.request_id = request_id
        self.show = show
        assert prompt.token_ids is not None, "the prompt is not encoded"
        self.prompt_text: str | None = prompt.text
        self.metadata: object = prompt.metadata
        self.prompt_token_ids: tuple[int, ...] = _plain(prompt.token_ids)
        self._sampling, self._tokenizer = prompt.sampling, tokenizer
        self._stop_when = prompt.stop_when
        self._token_times = token_times
        self.has_started = False
        self.shed_reason = ""
        is_watched = prompt.stop_strings is not None or prompt.stop_when is not None
        follows = tokenizer is not None and (show or is_watched)
        self.samples: list[LiveSample] = [
            LiveSample(_text_stream(tokenizer, prompt) if tokenizer and follows else None)
            for _ in range(prompt.sampling.n)
        ]

    def take_delta(
        self, delta: TokenDelta, end: RequestOutput | None, now: float
    ) -> tuple[str, list[int]]:
        """New tokens of a sample; returns its new text and the tokens that count.

        Args:
            end: the sample's output when these are its last tokens.
            now: seconds on the engine's clock.
        """
        sample = self.samples[delta.sample_index]
        token_ids: list[int] = delta.token_ids.tolist()
        text = sample.text
        shown = ""
        if text is not None:
            if text.match is not None or sample.num_kept is not None:
                return "", []
            num_before = len(text.token_ids)
            silent = end is not None and self._ends_in_silence(end)
            shown = text.push_tokens(token_ids[:-1] if silent else token_ids)
            if text.match is not None:
                token_ids = token_ids[: max(0, len(text.token_ids) - num_before)]
            elif end is None and self._ends_here(text):
                sample.num_kept = len(text.token_ids)
        if self._token_times:
            sample.times.extend([now] * len(token_ids))
        return shown, token_ids

    def _ends_here(self, text: TextStream) -> bool:
        """What the criterion of the request says."""
        if self._stop_when is None:
            return False
        try:
            return bool(self._stop_when(text.text, tuple(text.token_ids)))
        except Exception as error:
            raise RuntimeError(f"its stop_when raised {error!r}") from error

    def stopped_at(self, sample_index: int) -> int | None:
        """Tokens that the sample keeps when it has to end here, else None."""
        if (num_kept := self.samples[sample_index].num_kept) is not None:
            return num_kept
        text = self.samples[sample_index].text
        return len(text.token_ids) if text is not None and text.match is not None else None

    def finish_sample(self, output: RequestOutput) -> str:
        """A sample ended; returns the text that had waited for more tokens."""
        sample = self.samples[output.sample_index]
        rest = sample.text.finish() if sample.text is not None else ""
        sample.output = output
        sample.completion = self._completion(sample, output)
        return rest

    @property
    def is_finished(self) -> bool:
        """Whether all samples have ended."""
        return all(sample.completion is not None for sample in self.samples)

    @property
    def first_output(self) -> RequestOutput:
        """What the engine said of the first sample; for a request that ended."""
        output = self.samples[0].output
        assert output is not None
        return output

    def result(self) -> RequestResult:
        """The result of a request that ended."""
        if self.shed_reason:
            return refused(self.request_id, self.shed_reason, self.prompt_text, FinishReason.SHED)
        outputs = [sample.output for sample in self.samples if sample.output is not None]
        first = self.first_output
        return RequestResult(
            request_id=self.request_id,
            prompt=self.prompt_text,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[sample.completion for sample in self.samples if sample.completion is not None],
            error=next((output.error for output in outputs if output.error), None),
            retry_after_s=first.retry_after_s,
            timings=self._timings(),
            num_cached_tokens=first.num_cached_tokens,
            num_preemptions=sum(output.num_preemptions for output in outputs),
            prompt_logprobs=self._prompt_logprobs(first),
            metadata=self.metadata,
            embedding=first.embedding,
        )

    def failed(self, reason: str) -> RequestResult:
        """Its result when the engine failed before it ended; samples that had ended stay."""
        outputs = [
            sample.completion or Completion(index=index, finish_reason=FinishReason.ERROR)
            for index, sample in enumerate(self.samples)
        ]
        return RequestResult(
            request_id=self.request_id,
            prompt=self.prompt_text,
            prompt_token_ids=self.prompt_token_ids,
            outputs=outputs,
            error=reason,
            metadata=self.metadata,
        )

    def _prompt_logprobs(self, output: RequestOutput) -> list[PositionLogprobs | None] | None:
        """By position; a prompt of one token has none but the first one's, which is None."""
        found, tokens = output.prompt_logprobs, self.prompt_token_ids
        if found is not None:
            return [None, *readable(found, tokens[1:], self._tokenizer)]
        is_asked = self._sampling.prompt_logprobs is not None
        return [None] if is_asked and len(tokens) == 1 and output.finish_reason.is_served else None

    def _completion(self, sample: LiveSample, output: RequestOutput) -> Completion:
        token_ids = tuple(output.token_ids.tolist())
        reason, stop_reason = output.finish_reason, None
        match = sample.text.match if sample.text is not None else None
        if sample.text is not None and match is not None and reason.is_served:
            token_ids = token_ids[: len(sample.text.token_ids)]
            text, reason, stop_reason = sample.text.text, FinishReason.STOP, match
        else:
            text = self._text(
                sample, token_ids[:-1] if self._ends_in_silence(output) else token_ids
            )
            if reason is FinishReason.STOP and token_ids[-1] in self._sampling.stop_token_ids:
                stop_reason = token_ids[-1]
        logprobs = output.logprobs
        return Completion(
            index=output.sample_index,
            text=text,
            token_ids=token_ids,
            finish_reason=reason,
            stop_reason=stop_reason,
            limit=self._limit(token_ids) if reason is FinishReason.LENGTH else None,
            logprobs=None if logprobs is None else readable(logprobs, token_ids, self._tokenizer),
        )

    def _limit(self, token_ids: Sequence[int]) -> str:
        """What kept a sample from going on."""
        most = self._sampling.max_tokens
        return "max_model_len" if most is None or len(token_ids) < most else "max_tokens"

    def _ends_in_silence(self, output: RequestOutput) -> bool:
        """Whether the last token ended the sample and has no place in its text."""
        stopped = output.finish_reason is FinishReason.STOP
        return stopped and not self._sampling.include_stop_str_in_output

    def _text(self, sample: LiveSample, token_ids: Sequence[int]) -> str:
        if sample.text is not None:
            return sample.text.text
        if self._tokenizer is None:
            return ""
        skip = self._sampling.skip_special_tokens
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip)

    def _timings(self) -> Timings:
        """Those of the sample that ended last, with the earliest start of them all."""
        last = max(self.samples, key=lambda s: s.output.finished if s.output else 0.0)
        outputs = [sample.output for sample in self.samples if sample.output is not None]
        assert last.output is not None
        assert last.completion is not None
        return make_timings(outputs, last.output, len(last.completion.token_ids), last.times)


def _plain(token_ids: Sequence[int] | IntArray) -> tuple[int, ...]:
    """Token ids without a type of numpy."""
    if not isinstance(token_ids, np.ndarray) and set(map(type, token_ids)) == {int}:
        return tuple(token_ids)
    return tuple(map(int, token_ids))


def _text_stream(tokenizer: Tokenizer, prompt: Prompt) -> TextStream:
    sampling = prompt.sampling
    return TextStream(
        tokenizer,
        stop=prompt.stop_strings,
        include_stop=sampling.include_stop_str_in_output,
        min_tokens=sampling.min_tokens,
        skip_special_tokens=sampling.skip_special_tokens,
    )
