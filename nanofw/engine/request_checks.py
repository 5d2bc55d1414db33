"""Whether a request can be served: refused alone, with a reason, before it queues."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields
from typing import Any, TypeGuard

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.limits import Limits
from nanofw.contracts.requests import POOLINGS, Request, SamplingParams
from nanofw.engine.request_state import SAMPLE_SEPARATOR
from nanofw.errors import shown

MAX_SEED = 1 << 64
MAX_SAMPLES = 1024
MAX_LOGPROBS = 64
MAX_INT32 = (1 << 31) - 1
MAX_INT64 = (1 << 63) - 1
PRIORITIES = f"an integer from {-MAX_INT64} to {MAX_INT64}, smaller is more urgent"
EXPECTED_LENGTHS = f"from 1 to {MAX_INT32}, or null"

INT64 = np.dtype(np.int64)
_ALL_BUT_NUMBERS: Callable[[SamplingParams], tuple[object, ...]] = operator.attrgetter(
    *(field.name for field in fields(SamplingParams) if field.name not in ("max_tokens", "seed"))
)
"""What requests of one client have in common."""

MAX_MIN_TOKENS = 1 << 30
"""A prompt and this number of tokens can be numbered by int32."""

MAX_ID_CHARACTERS = 1 << 12
"""Of a request, whose up to `MAX_SAMPLES` samples have ids that are made of it."""

MAX_BAD_WORD_BYTES = 4 << 20
"""Of a request's bad words, which samplers keep padded to the longest one, as int32."""


def check_id(request_id: object, is_used: Callable[[str], bool]) -> None:
    """Raise ValueError when the id cannot name a request, or names another one."""
    if not isinstance(request_id, str) or not request_id:
        raise ValueError(f"id is {shown(request_id)}; it must be a string that is not empty")
    if len(request_id) > MAX_ID_CHARACTERS:
        raise ValueError(
            f"id has {len(request_id)} characters; at most {MAX_ID_CHARACTERS} are taken, as each "
            "sample is named by it"
        )
    if SAMPLE_SEPARATOR in request_id:
        raise ValueError(f"id is {shown(request_id)}; it must not contain {SAMPLE_SEPARATOR!r}")
    if is_used(request_id):
        raise ValueError(
            "a request of this id is waiting or running, or its output was not handed out "
            "yet; ids must be unique"
        )


def check_request(
    request: Request,
    vocab_size: int,
    plugin_names: set[str],
    limits: Limits,
    checked: SamplingParams | None = None,
) -> tuple[IntArray, int]:
    """The prompt's tokens, and the most tokens that the request may have in all.

    Args:
        checked: sampling parameters that passed before and cannot change (`is_fixed`): requests
            of one call share them, or all but numbers, and what is shared is not looked at again.

    Raises ValueError with the reason when it cannot be served.
    """
    tokens = _prompt_tokens(request.prompt_token_ids, vocab_size)
    if checked is None or not _passes_like(request.sampling, checked):
        check_sampling(request.sampling, vocab_size)
    _check_fields(request)
    _check_pooling(request)
    _check_arguments(request, plugin_names)
    _check_word_lengths(request.sampling, limits)
    return tokens, _token_limit(len(tokens), request.sampling, limits)


def _prompt_tokens(prompt: Sequence[int] | IntArray, vocab_size: int) -> IntArray:
    """The prompt as int32[t]. Raises ValueError when it is empty or not made of token ids."""
    try:
        ids = np.asarray(prompt)
    except ValueError:  # nested sequences of different lengths
        ids = np.asarray(None)
    if ids.ndim == 1 and len(ids) == 0:
        raise ValueError("the prompt is empty; it needs at least one token")
    if ids.ndim == 1 and ids.dtype == object:  # an integer of more than 64 bits is outside, too
        for token in ids.tolist():
            if isinstance(token, int) and token.bit_length() > 63:
                raise _outside(token, vocab_size)
    if ids.ndim != 1 or not (ids.dtype.kind in "iu" or np.issubdtype(ids.dtype, np.integer)):
        raise ValueError("prompt_token_ids must be a flat sequence of integers")
    if _has_outside(ids, vocab_size):
        wrong = ids[(ids < 0) | (ids >= vocab_size)]
        raise _outside(int(wrong[0]), vocab_size)
    return ids.astype(np.int32)


def _outside(token: int, vocab_size: int) -> ValueError:
    return ValueError(f"token id {shown(token)} is outside the vocabulary (0 to {vocab_size - 1})")


def _has_outside(ids: np.ndarray, vocab_size: int) -> bool:
    """Whether an id is below 0 or not below `vocab_size`."""
    if ids.dtype == INT64:  # one pass: a negative number is a large one without its sign
        return int(ids.view(np.uint64).max()) >= vocab_size
    return bool(ids.min() < 0 or ids.max() >= vocab_size)


def _token_limit(num_prompt: int, sampling: SamplingParams, limits: Limits) -> int:
    """The largest number of tokens that the request may have in all.

    Raises ValueError when there is no room. The last token that is generated is never computed,
    so it needs no slot in the pool.
    """
    if num_prompt > limits.pool_tokens:
        needed = -(-num_prompt // limits.block_size)
        raise ValueError(
            f"the prompt needs {needed} KV blocks of {limits.block_size} tokens, the pool has "
            f"{limits.num_blocks}; shorten the prompt or raise kv_allocator.num_blocks"
        )
    if num_prompt >= limits.max_model_len:
        raise ValueError(
            f"the prompt has {num_prompt} tokens; at most {limits.max_model_len - 1} leave room "
            f"for an answer within max_model_len {limits.max_model_len}"
        )
    room = min(limits.max_model_len, limits.pool_tokens + 1)
    if sampling.max_tokens is None:
        return room
    # A numpy integer would keep its own width in the sum.
    return min(room, num_prompt + int(sampling.max_tokens))


def check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """Raise ValueError, naming the allowed range, for the first value outside it."""
    if not isinstance(sampling, SamplingParams):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"sampling is {shown(sampling)}; it must be a SamplingParams object")
    _check_integer(
        "max_tokens", sampling.max_tokens, f"from 1 to {MAX_INT32}, or null for no limit",
        low=1, high=MAX_INT32, optional=True,
    )  # fmt: skip
    _check_number("temperature", sampling.temperature, "a finite number, 0 or greater", low=0.0)
    _check_number("top_p", sampling.top_p, "greater than 0 and at most 1", low=0.0, high=1.0)
    if sampling.top_p == 0:
        raise ValueError("top_p is 0; it must be greater than 0 and at most 1")
    _check_number("min_p", sampling.min_p, "from 0 to 1", low=0.0, high=1.0)
    allowed = f"from 1 to {MAX_INT32}, or 0 or -1 for no limit"
    _check_integer("top_k", sampling.top_k, allowed, low=-1, high=MAX_INT32)
    _check_integer(
        "seed", sampling.seed, f"from 0 to {MAX_SEED - 1}", low=0, high=MAX_SEED - 1, optional=True
    )
    for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
        if not isinstance(getattr(sampling, name), (bool, np.bool_)):
            raise ValueError(
                f"{name} is {shown(getattr(sampling, name))}; it must be true or false"
            )
    _check_penalties(sampling)
    _check_counts(sampling)
    _check_tokens(sampling, vocab_size)


def _passes_like(sampling: SamplingParams, checked: SamplingParams) -> bool:
    """Whether parameters pass because others passed; False: they must be looked at."""
    if sampling is checked:
        return True
    if type(sampling) is not SamplingParams or checked.min_tokens:
        return False
    if not all(map(operator.is_, _ALL_BUT_NUMBERS(sampling), _ALL_BUT_NUMBERS(checked))):
        return False
    most, seed = sampling.max_tokens, sampling.seed
    return (most is None or (type(most) is int and 1 <= most <= MAX_INT32)) and (
        seed is None or (type(seed) is int and 0 <= seed < MAX_SEED)
    )


def is_fixed(sampling: SamplingParams) -> bool:
    """Whether nothing in sampling parameters that passed `check_sampling` can change."""
    return (
        type(sampling) is SamplingParams
        and sampling.logit_bias is None
        and type(sampling.bad_words) is tuple
        and not sampling.bad_words
        and type(sampling.stop_token_ids) is tuple
    )


def by_token_id(biases: Mapping[Any, object]) -> dict[object, object]:
    """A `logit_bias` as JSON and YAML can write it, whose keys may be strings of digits.

    Raises:
        ValueError: a string that is not a token id, or a token id that is there twice.
    """
    made = {_token_key(key): bias for key, bias in biases.items()}
    if len(made) != len(biases):
        raise ValueError("logit_bias names a token id twice")
    return made


def _token_key(key: object) -> object:
    if not isinstance(key, str):
        return key
    if not re.fullmatch(r"-?(?:0|[1-9][0-9]{0,18})", key) or key == "-0":
        raise ValueError(f"logit_bias key {shown(key)} is not a token id")
    return int(key)


def _check_pooling(request: Request) -> None:
    if request.pooling is not None and request.pooling not in POOLINGS:
        raise ValueError(
            f"pooling is {shown(request.pooling)}; it must be {', '.join(POOLINGS)}, or null"
        )


def _check_penalties(sampling: SamplingParams) -> None:
    repetition = sampling.repetition_penalty
    _check_number("repetition_penalty", repetition, "a finite number greater than 0", low=0.0)
    if repetition == 0:
        raise ValueError("repetition_penalty is 0; it must be a finite number greater than 0")
    for name in ("presence_penalty", "frequency_penalty"):
        _check_number(name, getattr(sampling, name), "from -2 to 2", low=-2.0, high=2.0)


def _check_counts(sampling: SamplingParams) -> None:
    _check_integer("n", sampling.n, f"from 1 to {MAX_SAMPLES}", low=1, high=MAX_SAMPLES)
    high = MAX_MIN_TOKENS
    allowed = f"from 0 to {high}"
    if sampling.max_tokens is not None and sampling.max_tokens < high:
        high = int(sampling.max_tokens)
        allowed = f"from 0 to max_tokens ({high})"
    _check_integer("min_tokens", sampling.min_tokens, allowed, low=0, high=high)
    for name in ("logprobs", "prompt_logprobs"):
        allowed = f"from 0 to {MAX_LOGPROBS}, or null for none"
        _check_integer(
            name, getattr(sampling, name), allowed, low=0, high=MAX_LOGPROBS, optional=True
        )


def _check_tokens(sampling: SamplingParams, vocab_size: int) -> None:
    """Token ids that the parameters name."""
    if sampling.logit_bias is not None:
        _check_mapping("logit_bias", sampling.logit_bias, "of token ids to numbers")
    for token, bias in (sampling.logit_bias or {}).items():
        allowed = f"named by a token id from 0 to {vocab_size - 1} (the vocabulary's size less one)"
        _check_integer("logit_bias key", token, allowed, low=0, high=vocab_size - 1)
        _check_number(f"logit_bias of {token}", bias, "from -100 to 100", low=-100.0, high=100.0)
    _check_listed("bad_words", sampling.bad_words, "sequences of token ids")
    _check_word_bytes(sampling)
    for word in sampling.bad_words:
        if isinstance(word, str):
            raise ValueError(f"bad_words has the word {shown(word)}; the engine takes token ids")
        _check_listed("a word of bad_words", word, "token ids")
        if len(word) == 0:
            raise ValueError("bad_words has an empty sequence; each must have at least one token")
        for token in word:
            allowed = f"made of token ids from 0 to {vocab_size - 1}"
            _check_integer("bad_words", token, allowed, low=0, high=vocab_size - 1)
    _check_listed("stop_token_ids", sampling.stop_token_ids, "token ids")
    if len(sampling.stop_token_ids) > vocab_size:
        raise ValueError(
            f"stop_token_ids has {len(sampling.stop_token_ids)} tokens; the vocabulary has "
            f"{vocab_size}"
        )
    for token in sampling.stop_token_ids:
        allowed = f"a token id from 0 to {vocab_size - 1}"
        _check_integer("stop_token_ids", token, allowed, low=0, high=vocab_size - 1)


def _check_word_bytes(sampling: SamplingParams) -> None:
    """Raise ValueError when bad words would fill memory; before each of their tokens is read."""
    words = sampling.bad_words
    longest = max((len(word) for word in words if hasattr(word, "__len__")), default=0)
    if (num_bytes := 4 * len(words) * longest) > MAX_BAD_WORD_BYTES:
        raise ValueError(
            f"bad_words would take {num_bytes} bytes ({len(words)} sequences, the longest of "
            f"{longest} tokens); at most {MAX_BAD_WORD_BYTES} are kept for a request"
        )


def _check_word_lengths(sampling: SamplingParams, limits: Limits) -> None:
    """Raise ValueError for bad words that no output has room for."""
    longest = max(map(len, sampling.bad_words), default=0)
    if longest > limits.max_model_len:
        raise ValueError(
            f"bad_words has a sequence of {longest} tokens; max_model_len is "
            f"{limits.max_model_len}, so that no output can have it"
        )


def _check_fields(request: Request) -> None:
    """Raise ValueError when a field that policies order by makes no sense."""
    for name in ("arrival", "deadline"):
        value = getattr(request, name)
        if value is not None and not is_finite(value):
            raise ValueError(f"{name} is {shown(value)}; it must be a finite number of seconds")
    for name, value in (("client", request.client), ("cache_salt", request.cache_salt)):
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"{name} is {shown(value)}; it must be a string")
    _check_integer("priority", request.priority, PRIORITIES, low=-MAX_INT64, high=MAX_INT64)
    _check_integer(
        "expected_output_tokens", request.expected_output_tokens, EXPECTED_LENGTHS,
        low=1, high=MAX_INT32, optional=True,
    )  # fmt: skip


def _check_arguments(request: Request, plugin_names: set[str]) -> None:
    """Raise ValueError when arguments name a plugin that the run does not use."""
    _check_mapping("arguments", request.arguments, "of plugins' names to their arguments")
    for name in request.arguments:
        if name not in plugin_names:
            chosen = ", ".join(sorted(plugin_names)) or "no plugin"
            raise ValueError(
                f"arguments are for {shown(name)}, which this run does not use (it can take "
                f"arguments for {chosen}); choose it in the configuration, or leave the "
                "arguments out"
            )


def _check_integer(
    name: str,
    value: object,
    allowed: str,
    *,
    low: int | None = None,
    high: int | None = None,
    optional: bool = False,
) -> None:
    if value is None and optional:
        return
    if _is_integer(value):
        number = int(value)
        if (low is None or number >= low) and (high is None or number <= high):
            return
    raise ValueError(f"{name} is {shown(value)}; it must be {allowed}")


def _check_number(
    name: str, value: object, allowed: str, *, low: float, high: float = math.inf
) -> None:
    if not is_finite(value) or not low <= float(value) <= high:
        raise ValueError(f"{name} is {shown(value)}; it must be {allowed}")


def _check_listed(name: str, value: object, what: str) -> None:
    """Refuses arrays: their truth value does not say whether they are empty."""
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, AbstractSet)):
        raise ValueError(f"{name} is {shown(value)}; it must be a list or tuple of {what}")


def _check_mapping(name: str, value: object, what: str) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is {shown(value)}; it must be a mapping {what}")


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (float, np.floating)) or _is_integer(value)


def is_finite(value: object) -> TypeGuard[float]:
    try:
        return _is_number(value) and math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False
