"""Grammars of requests, compiled once: what a request writes, to matchers of `llguidance`."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from nanofw.checkpoints.tokenizer_files import TOKENIZER, tokenizer_json
from nanofw.contracts.logits_processor import HostProcessorConfig
from nanofw.errors import ConfigError, ModelError, shown
from nanofw.narrowing import is_object
from nanofw.samplers.logits_processors.schema_checks import check_schema
from nanofw.samplers.logits_processors.trial_process import TrialProcess

WHITESPACE: Mapping[str, Any] = {
    "none": {"whitespace_flexible": False},
    "space": {"whitespace_pattern": " ?"},
    "any": {},
}
"""What may stand between the parts of a JSON text, as options of llguidance's compiler."""

COPIES_PER_LEXER = 512
"""A lexer's states only grow (1 to 2 kB each): after this number of requests it is replaced."""

COPIES_IN_A_ROW = 4
"""Requests that get the same lexer before it is the next one's turn: a grammar that is asked for
seldom is compiled seldom."""

MAX_REASON = 200
"""Characters of a grammar that an error quotes."""

MAX_CHARACTERS = 1 << 20
"""Of a grammar; longer ones are refused."""

NUM_SAFE_CHARACTERS = 2048
"""Grammars up to this length cannot fill a stack; longer ones are tried in a process of their own
first."""

EXPLOSIVE = {"json_schema": re.compile('"multipleOf"'), "lark": re.compile("[&~]|%json")}
"""What can make a short grammar take minutes to compile: remainders, and products and complements
of automata. All others up to `NUM_SAFE_CHARACTERS` compile within a second or two."""

MAX_KEPT_PROBLEMS = 256
"""Grammars whose refusal is remembered."""


PROBE = "a b"
"""A text that tells whether the tokenizer's spelling of blanks is understood."""


class Grammar:
    """One compiled grammar.

    Copies of a matcher share its lexer, which one thread at a time can use: so there are as many
    lexers as threads, made one after the other as requests come.

    Args:
        source: the grammar as llguidance takes it.
        tokenizer: with the slices that suit it.

    Raises:
        ValueError: it cannot be compiled, with the reason.
    """

    def __init__(
        self, source: str, tokenizer: LLTokenizer, limits: LLParserLimits, num_lexers: int = 1
    ) -> None:
        self._source, self._tokenizer, self._limits = source, tokenizer, limits
        self._num_lexers = num_lexers
        self.renew()
        if self._prototypes[0].is_error():
            raise ValueError(reason(self._prototypes[0]))
        if _matches_nothing(self._prototypes[0].deep_copy()):
            raise ValueError("there is no text that it matches")

    def matcher(self) -> LLMatcher:
        """A matcher at the start, which shares its lexer with others: mostly microseconds."""
        if self._num_copies == self._num_lexers * COPIES_PER_LEXER:
            self.renew()
        place = self._num_copies // COPIES_IN_A_ROW % self._num_lexers
        if place == len(self._prototypes):
            self._prototypes.append(self.compile())
        self._num_copies += 1
        return self._prototypes[place].deep_copy()

    def compile(self) -> LLMatcher:
        """A matcher at the start with a lexer of its own: up to seconds, by the grammar."""
        return LLMatcher(self._tokenizer, self._source, log_level=0, limits=self._limits)

    def renew(self) -> None:
        """Give those who come later lexers without the states that were visited so far."""
        self._prototypes, self._num_copies = [self.compile()], 0


def _matches_nothing(matcher: LLMatcher) -> bool:
    """Whether not one token may come first, and the empty text does not match either."""
    matcher.compute_bitmask()
    return matcher.is_error() and "NoExtension" in matcher.get_error()


class Grammars:
    """The grammars that requests ask for, the last used of them compiled.

    Args:
        capacity: compiled grammars to keep.
        whitespace: a name in `WHITESPACE`, for JSON schemas.
        num_lexers: threads that use a grammar at once.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        limits: LLParserLimits,
        *,
        capacity: int,
        whitespace: str,
        num_lexers: int,
    ) -> None:
        self._tokenizers = {"json_schema": tokenizer.with_slices(LLTokenizer.json_slices())}
        self._tokenizer, self._limits = tokenizer, limits
        self._capacity, self._num_lexers = capacity, num_lexers
        self._json_options = WHITESPACE[whitespace]
        self._kept: OrderedDict[tuple[str, str], Grammar] = OrderedDict()
        self._problems: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._trials: TrialProcess | None = None

    @classmethod
    def of(
        cls,
        config: HostProcessorConfig,
        *,
        max_lexer_states: int,
        capacity: int,
        whitespace: str,
        num_lexers: int,
    ) -> Grammars:
        """Grammars over the tokenizer of a model.

        Raises:
            ConfigError: the tokenizer cannot be used.
        """
        limits = LLParserLimits(max_lexer_states=max_lexer_states, verbose_errors=False)
        return cls(
            read_tokenizer(config),
            limits,
            capacity=capacity,
            whitespace=whitespace,
            num_lexers=num_lexers,
        )

    def try_outside(self, trials: TrialProcess) -> None:
        """From now on try grammars that may crash or hang in that process first."""
        self._trials = trials

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, arguments: Any) -> Grammar:
        """The compiled grammar of a request's arguments.

        Raises:
            ValueError: they are not what is expected, or the grammar cannot be compiled.
        """
        kind, text = as_text(arguments)
        grammar = self._kept.get((kind, text))
        if grammar is None:
            self._check_size(kind, text)
            grammar = self.compile(kind, text)
            self._kept[kind, text] = grammar
            if len(self._kept) > self._capacity:
                self._kept.popitem(last=False)
        self._kept.move_to_end((kind, text))
        return grammar

    def _check_size(self, kind: str, text: str) -> None:
        """Raise ValueError when it is too long, or cannot be compiled without harm."""
        if len(text) > MAX_CHARACTERS:
            raise ValueError(
                f"{kind} has {len(text)} characters; at most {MAX_CHARACTERS} are read"
            )
        if self._trials is None or _is_harmless(kind, text):
            return
        key = kind, hash(text)
        problem = self._problems.get(key)
        if problem is None:
            problem = self._trials.problem(kind, text)
        if problem is None:
            return
        self._problems[key] = problem
        if len(self._problems) > MAX_KEPT_PROBLEMS:
            self._problems.popitem(last=False)
        raise ValueError(problem)

    def compile(self, kind: str, text: str) -> Grammar:
        """A grammar of the text that `as_text` gives. Raises ValueError when it cannot be used."""
        tokenizer = self._tokenizers.get(kind, self._tokenizer)
        try:
            if kind == "json_schema":
                check_schema(_loads(text))
                source = LLMatcher.grammar_from_json_schema(text, defaults=self._json_options)
            elif kind == "lark":
                source = LLMatcher.grammar_from_lark(text)
            else:
                source = LLMatcher.grammar_from_regex(text)
            return Grammar(source, tokenizer, self._limits, self._num_lexers)
        except ValueError as error:
            why = str(error) if kind == "lark" else re.sub(r"^at \d+\(\d+\): ", "", str(error))
            raise ValueError(f"{kind} cannot be used: {why}") from None


def _is_harmless(kind: str, text: str) -> bool:
    """Whether its compiler surely ends, within a second or two."""
    explosive = EXPLOSIVE.get(kind)
    return len(text) <= NUM_SAFE_CHARACTERS and not (explosive and explosive.search(text))


def as_text(arguments: object) -> tuple[str, str]:
    """Arguments as (one of `FORMS`, its text): equal arguments give equal pairs.

    Raises:
        ValueError: they are not a mapping with exactly one of `FORMS`, or its value is wrong.
    """
    if not is_object(arguments):
        raise ValueError(f"give one of {_listed()}, not {shown(arguments)}")
    if len(arguments) != 1 or next(iter(arguments)) not in FORMS:
        given = ", ".join(str(key) for key in arguments) or "nothing"
        raise ValueError(f"give exactly one of {_listed()}; there is {given}")
    ((kind, value),) = arguments.items()
    return kind, FORMS[kind](value)


def _schema(value: object) -> str:
    value = _loads(value) if isinstance(value, str) else value
    if value is False:
        raise ValueError("json_schema is false, which nothing matches")
    if value is not True and not is_object(value):
        raise ValueError(f"json_schema must be an object, or its JSON text, not {shown(value)}")
    return _dumps({} if value is True else value)


def _loads(text: str) -> object:
    with _problems_of_json():
        return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return made


def _dumps(value: object) -> str:
    with _problems_of_json():
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)


@contextmanager
def _problems_of_json() -> Generator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(f"json_schema is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("json_schema is nested too deeply") from None


def _plain(value: object) -> object:
    if is_object(value):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a type of JSON")


def _regex(value: object) -> str:
    return _string("regex", value)


def _lark(value: object) -> str:
    return _string("lark", value)


def _string(kind: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{kind} must be a string, not {shown(value)}")
    return value


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _choice(value: object) -> str:
    items = value if _is_sequence(value) else ()
    if not len(items):
        raise ValueError(f"choice must be a list of at least one string, not {shown(value)}")
    texts: list[str] = []
    for text in items:
        if not isinstance(text, str):
            raise ValueError(f"choice must be made of strings, not {shown(text)}")
        texts.append(text)
    return "|".join(f"(?:{re.escape(text)})" for text in dict.fromkeys(texts))


FORMS: Mapping[str, Callable[[object], str]] = {
    "json_schema": _schema,
    "regex": _regex,
    "choice": _choice,
    "lark": _lark,
}
"""What a request may ask for."""


def _listed() -> str:
    return ", ".join(FORMS)


def reason(matcher: LLMatcher) -> str:
    """Why a matcher failed, in one line without its state and without drawings."""
    first, *others = matcher.get_error().strip().splitlines()
    errors = [line.removeprefix("error: ") for line in others if line.startswith("error: ")]
    first = first if len(first) <= MAX_REASON else f"{first[:MAX_REASON]}…"
    return f"{first} {errors[0]}" if errors else first


def read_tokenizer(config: HostProcessorConfig) -> LLTokenizer:
    """The model's tokenizer as llguidance sees it: the bytes of each token.

    Raises:
        ConfigError: it is missing, it cannot be read, or the model has no end token.
    """
    key = "logits_processors.structured"
    if config.tokenizer_path is None:
        raise ConfigError("structured output needs a model with a tokenizer.json", key=key)
    ends = [token for token in config.eos_token_ids if 0 <= token < config.vocab_size]
    if not ends:
        raise ConfigError(
            "structured output needs a model with an end token: eos_token_id in its config.json "
            "or generation_config.json",
            key=key,
        )
    path = Path(config.tokenizer_path) / TOKENIZER
    try:
        text = tokenizer_json(path.parent)
    except (OSError, ModelError) as error:
        raise ConfigError(f"structured output cannot read its tokens: {error}", key=key) from error
    try:
        tokenizer = LLTokenizer(text, n_vocab=config.vocab_size, eos_token=ends)
    except ValueError as error:
        raise ConfigError(f"structured output cannot use {path}: {error}", key=key) from error
    if (found := tokenizer.decode_str(tokenizer.tokenize_str(PROBE)).strip(" ")) != PROBE:
        problem = f"its tokens of {PROBE!r} are read as {found!r}; its decoder is not understood"
        raise ConfigError(f"structured output cannot use {path}: {problem}", key=key)
    return tokenizer
