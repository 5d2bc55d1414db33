"""The exceptions that users meet.

NanofwError
├── ConfigError            a key, a value or a file of the configuration (also a ValueError)
├── PluginError            finding, loading or validating a plugin
│   ├── UnknownPlugin      no provider has that name
│   ├── DuplicatePlugin    two distributions provide one name
│   ├── PluginLoadError    the selected plugin failed to import or to validate
│   └── ApiMismatch        the plugin was written for another version of the contract
├── CapabilityError        the chosen components cannot work together
├── ModelError             a checkpoint that cannot be loaded
├── RequestError           one request is refused; the others go on (also a ValueError)
│   └── RequestShed        the policy refused it
├── PolicyError            a policy returned nonsense or lets nothing progress
├── RouterError            a router returned nonsense or raised
├── AllocatorError         the block accounting does not add up
├── ExecutorError          the forward pass failed or a worker died
└── ObserverError          who watched the steps of an engine failed; the run went on

Every message says what was wrong, where (configuration key, file, line), and what to do; `near`
suggests what a mistyped name may have meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_WORD = 200
"""Longer words are not compared with others: that takes the square of their length."""


class NanofwError(Exception):
    """Base of every error that nanofw raises on purpose.

    Attributes:
        plugin: the plugin that is to blame, with its distribution; empty: no single one is.
    """

    plugin: str = ""


class ConfigError(NanofwError, ValueError):
    """A configuration that cannot be used.

    Attributes:
        key: dotted configuration key, or None when the whole file is at fault.
        source: file, preset or command line the value came from, or None.
        line: one-based line in `source`, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        source: str | None = None,
        line: int | None = None,
    ) -> None:
        self.key = key
        self.source = source
        self.line = line
        self.message = message
        super().__init__(self._text())

    def _text(self) -> str:
        place = self.source or ""
        if self.line is not None:
            place = f"{place}:{self.line}" if place else f"line {self.line}"
        key = self.key or ""
        if len(key) > MAX_WORD:
            key = f"{key[:MAX_WORD]}…"
        head = ": ".join(part for part in (place, key) if part)
        return f"{head}: {self.message}" if head else self.message


class PluginError(NanofwError):
    """A plugin cannot be found, loaded or used."""


class UnknownPlugin(PluginError):
    """No installed distribution and no local file provides the name."""


class DuplicatePlugin(PluginError):
    """Two distributions provide the same name, and nothing says which one is meant."""


class PluginLoadError(PluginError):
    """The selected plugin failed to import, to register or to validate."""


class ApiMismatch(PluginError):
    """The plugin was written against another version of its contract."""


class CapabilityError(NanofwError):
    """The chosen components cannot do together what the configuration asks for."""


class ModelError(NanofwError):
    """A checkpoint that is missing something, has too much, or is not supported."""


class RequestError(NanofwError, ValueError):
    """One request is refused; nothing else is affected.

    Attributes:
        request_id: the id of the refused request.
        reason: the sentence for its user.
    """

    def __init__(self, request_id: str, reason: str) -> None:
        self.request_id = request_id
        self.reason = reason
        super().__init__(f"request {request_id!r}: {reason}" if request_id else reason)


class RequestShed(RequestError):
    """The policy refused the request on arrival.

    Attributes:
        retry_after_s: when it may be worth to try again, in seconds from now, if that is known.
    """

    def __init__(self, request_id: str, reason: str, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(request_id, reason)


class PolicyError(NanofwError):
    """A scheduling policy returned nonsense, raised, or lets nothing progress."""


class RouterError(NanofwError):
    """A router returned nonsense or raised. It refuses the request that it was asked about."""


class AllocatorError(NanofwError):
    """The block accounting does not add up, or an allocator returned nonsense."""


class ExecutorError(NanofwError):
    """The forward pass failed, or a worker died."""


class ObserverError(NanofwError):
    """An observer of an engine's steps failed, and saw only a part of them."""


def shown(value: object, limit: int = 120) -> str:
    """A value as messages quote it, however large it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; a list in itself
        return f"a very large {type(value).__name__}"
    return text if len(text) <= limit else f"{text[:limit]}…"


def refusal_reason(error: BaseException) -> str:
    """What the sender of a request is told of an error that it caused."""
    match error:
        case RequestError():
            return error.reason
        case NanofwError() | ValueError() | TypeError():
            return str(error)
        case RecursionError():
            return "the request is nested too deeply"
        case _:
            return f"{type(error).__name__}: {error}"


def near(word: str, known: Iterable[str], *, count: int = 3) -> str:
    """`"; did you mean 'fcfs'"`, or nothing when no known word is close."""
    matches = nearest(word, known, count=count)
    if not matches:
        return ""
    return f"; did you mean {' or '.join(repr(match) for match in matches)}"


def nearest(word: str, known: Iterable[str], *, count: int = 3, cutoff: float = 0.6) -> list[str]:
    """Up to `count` known words close to `word`, the closest first. Case is ignored."""
    if len(word) > MAX_WORD:
        return []
    spelling = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), spelling, n=count, cutoff=cutoff)
    return [spelling[match] for match in found]


def misspelt(word: str, known: Iterable[str]) -> str:
    """As `near`, where many names are alike: only those that are one slip away.

    A slip is another case, two neighbours that changed places, or a letter too many or too few.
    A letter in another's place is another name: Mixtral is not a misspelt Mistral.
    """
    matches = [name for name in known if _is_slip(word.lower(), name.lower())]
    return f"; did you mean {' or '.join(repr(match) for match in matches)}" if matches else ""


def _is_slip(word: str, name: str) -> bool:
    if word == name:
        return True
    if abs(len(word) - len(name)) == 1:
        short, long = sorted((word, name), key=len)
        gaps = (i for i, letter in enumerate(long) if not letter.isdigit())
        return any(long[:i] + long[i + 1 :] == short for i in gaps)
    swaps = (name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in range(len(name) - 1))
    return len(word) == len(name) and word in swaps
