"""Logits processor `structured`: outputs that match a JSON schema, a regex, a list or a grammar.

A request asks for it with the argument `structured: {json_schema: …}`, or `regex`, `choice`,
`lark`. Masks come from `llguidance` (https://github.com/guidance-ai/llguidance): an Earley parser
over a lexer of regex derivatives, walked through the tree of the vocabulary's bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llguidance import LLExecutor, LLMatcher

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.logits_processor import HostProcessor, HostProcessorConfig
from nanofw.errors import ConfigError
from nanofw.machine import num_usable_cores
from nanofw.samplers.logits_processors.grammars import Grammar, Grammars, reason
from nanofw.samplers.logits_processors.trial_process import TrialProcess

MAX_THREADS = 16
"""More of them hardly gain anything with the rows of one step."""


@dataclass(slots=True)
class _Request:
    """A constrained request: where its grammar stands after the tokens committed so far."""

    grammar: Grammar
    matcher: LLMatcher
    token_ids: list[int] = field(default_factory=list[int])
    has_own_lexer: bool = False
    has_ended: bool = False


class Structured(HostProcessor):
    """Constructed as `Structured(options, config)`.

    State is by request and moves on committed tokens only; it knows nothing of rows, so that a
    preemption does not touch it. At the end of a grammar only end tokens are allowed.
    """

    def __init__(self, options: Any, config: HostProcessorConfig) -> None:
        super().__init__(options, config)
        num_threads = options.num_threads or _most_cores()
        settings = {
            "max_lexer_states": options.max_lexer_states,
            "capacity": options.max_cached_grammars,
            "whitespace": options.json_whitespace,
        }
        self._grammars = Grammars.of(config, **settings, num_lexers=num_threads)
        facts = {
            "vocab_size": config.vocab_size,
            "eos_token_ids": config.eos_token_ids,
            "tokenizer_path": config.tokenizer_path,
        }
        setup = {"config": facts, **settings, "num_lexers": 1}
        self._grammars.try_outside(TrialProcess(setup, options.compile_timeout_s))
        self._default = options.default
        self._end_ids = frozenset(config.eos_token_ids)
        self._executor = LLExecutor(num_threads)
        self._num_words = -(-config.vocab_size // 32)
        self._own: IntArray = np.empty((0, self._num_words), np.int32)
        self._live: dict[str, _Request] = {}
        try:
            self.check(self._default)
        except ValueError as error:
            raise ConfigError(str(error), key="logits_processors.structured.default") from None

    def check(self, arguments: object) -> None:
        """Compile the grammar, or raise ValueError with the reason.

        None stands for the option `default`, and False for no grammar.
        """
        self._grammar(arguments)

    def start(self, request_id: str, arguments: object, prompt: IntArray) -> bool:
        """A request was accepted; whether it is constrained. The prompt is not looked at."""
        grammar = self._grammar(arguments)
        if grammar is not None:
            self._live[request_id] = _Request(grammar, grammar.matcher())
        return grammar is not None

    def _grammar(self, arguments: Any) -> Grammar | None:
        if arguments is None:
            arguments = self._default
        return None if arguments is None or arguments is False else self._grammars.get(arguments)

    def advance(self, request_id: str, token_ids: IntArray) -> None:
        """Move past committed tokens. Raises ValueError when the grammar forbids one."""
        request = self._live[request_id]
        for token_id in token_ids.tolist():
            self._advance(request, token_id)

    def _advance(self, request: _Request, token_id: int) -> None:
        is_end = token_id in self._end_ids
        if request.has_ended:  # it goes on with `ignore_eos`
            if not is_end:
                raise ValueError(f"token {token_id} came after the end of the grammar")
            return
        request.token_ids.append(token_id)
        if not request.matcher.consume_token(token_id) and (problem := self._start_over(request)):
            raise ValueError(problem)
        request.has_ended = is_end and request.matcher.is_stopped()

    def mask(self, request_id: str, bits: IntArray) -> None:
        """Clear in `bits`, int32[words], what may not come next. Raises ValueError on failure."""
        for problem in self.mask_rows([request_id], bits[None]).values():
            raise ValueError(problem)

    def mask_rows(self, request_ids: Sequence[str | None], bits: IntArray) -> Mapping[int, str]:
        """Clear the lines of int32[h, words] together, in as many threads as there are."""
        lines = {i: self._live[key] for i, key in enumerate(request_ids) if key is not None}
        own = self._fill(lines, len(bits))
        problems: dict[int, str] = {}
        for i, request in lines.items():
            if not request.matcher.is_error():
                continue
            if problem := self._start_over(request):
                problems[i] = problem
                continue
            _fill_line(request.matcher, own[i])
            if request.matcher.is_error():
                problems[i] = reason(request.matcher)
        if len(lines) == len(bits):
            bits &= own
        else:
            places = list(lines)
            bits[places] &= own[places]
        return problems

    def _fill(self, lines: Mapping[int, _Request], num_lines: int) -> IntArray:
        """Allowed tokens of each request, int32[num_lines, words]; other lines hold anything."""
        if len(self._own) < num_lines:
            self._own = np.empty((num_lines, self._num_words), np.int32)
        own = self._own[:num_lines]
        if len(lines) == 1:
            ((i, request),) = lines.items()
            _fill_line(request.matcher, own[i])
        elif lines:
            self._executor.unsafe_compute_mask_ptr(
                [(request.matcher, i) for i, request in lines.items()],
                own.ctypes.data,
                own.strides[0],
                num_lines,
            )
        return own

    def _start_over(self, request: _Request) -> str | None:
        """Put a failed matcher back in place, with a lexer of its own; the reason if that fails.

        A lexer that many requests share may be full where one of their own is not.
        """
        problem = reason(request.matcher)
        if request.has_own_lexer:
            return problem
        request.grammar.renew()
        request.matcher, request.has_own_lexer = request.grammar.compile(), True
        if not request.matcher.consume_tokens(request.token_ids):
            return reason(request.matcher) or problem
        return None

    def finish(self, request_id: str) -> None:
        """The request ended."""
        self._live.pop(request_id, None)


def _most_cores() -> int:
    """Three quarters of the cores that this process may use, at most `MAX_THREADS`."""
    return min(MAX_THREADS, max(1, num_usable_cores() * 3 // 4))


def _fill_line(matcher: LLMatcher, line: IntArray) -> None:
    """Write the allowed tokens into int32[words]."""
    matcher.unsafe_compute_mask_ptr(line.ctypes.data, line.nbytes)
