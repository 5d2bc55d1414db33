"""Who may come in: keys, and bounds on what waits and runs, for all and for each client."""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from nanofw.config.schema import ClientSection, ServerLimits, ServerSection
from nanofw.errors import ConfigError
from nanofw.llm.results import RequestResult
from nanofw.server.errors import ApiError

T = TypeVar("T")
RETRY_AFTER_S = 1.0
"""What a client is told where it is not known when there will be room."""
MAX_CLIENTS = 10_000
"""Clients whose counts are kept while they have nothing open; names are what requests say."""


class Allowance:
    """So many units a minute. Up to those of a minute may be saved; what is taken too much is owed.

    Args:
        clock: seconds.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self._rate, self._most, self._clock = per_minute / 60, per_minute, clock
        self._left, self._then = per_minute, clock()

    def wait_s(self, units: float = 0.0) -> float:
        """Seconds until as many can be taken; more than a minute's count as a minute's."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._then) * self._rate)
        self._then = now
        missing = min(units, self._most) - self._left
        return max(0.0, missing / self._rate)

    def take(self, units: float) -> None:
        self._left -= units


@dataclass(slots=True)
class Client:
    """One client and what it has open.

    Attributes:
        section: its entry in the configuration; None: it has none.
        max_requests: prompts that may be open.
        num_open: prompts that wait or run.
    """

    name: str
    max_requests: int
    section: ClientSection | None = None
    num_open: int = 0
    requests: Allowance | None = None
    tokens: Allowance | None = None


@dataclass(slots=True)
class OpenPrompts:
    """Prompts of one request that are open. Leaving twice does nothing."""

    door: Door
    client: Client
    num_prompts: int
    is_open: bool = field(default=True)

    def leave(self, results: Iterable[RequestResult] = ()) -> None:
        """They have ended, with these results as far as there are any."""
        if self.is_open:
            self.is_open = False
            self.door.left(self, results)


class Door:
    """Counts what is open, and refuses what is too much.

    Args:
        clock: seconds, for tests.

    Raises:
        ConfigError: a client's key cannot be read.
    """

    def __init__(self, section: ServerSection, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits: ServerLimits = section.limits
        self._clock = clock
        self.num_open: int = 0
        self.num_turned_away: int = 0
        self._clients: dict[str, Client] = {}
        self._keys: list[tuple[bytes, Client]] = []
        for index, entry in enumerate(section.clients):
            client = self._client_of(entry)
            if entry.name in self._clients:
                raise ConfigError("two clients have this name", key=f"server.clients[{index}].name")
            self._clients[entry.name] = client
            self._keys.append((_digest(_read_key(entry, index)), client))
        self._named = frozenset(self._clients)

    def _client_of(self, section: ClientSection) -> Client:
        most = section.max_requests or self._limits.max_client_requests
        return Client(
            section.name,
            most or self._limits.max_requests,
            section,
            requests=self._allowance(section.requests_per_minute),
            tokens=self._allowance(section.tokens_per_minute),
        )

    def _allowance(self, per_minute: float | None) -> Allowance | None:
        return None if per_minute is None else Allowance(per_minute, self._clock)

    def identify(self, authorization: str | None) -> Client | None:
        """Whose key a request has; None where everyone may come in.

        Every key is compared, each in constant time.

        Raises:
            ApiError: it has no key, or a wrong one.
        """
        if not self._keys:
            return None
        kind, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        found: Client | None = None
        for digest, client in self._keys:
            if hmac.compare_digest(digest, given):
                found = client
        if found is None or kind.lower() != "bearer":
            reason = "send the header Authorization: Bearer KEY with a key of this server"
            raise ApiError(401, reason, code="invalid_api_key")
        return found

    def client_named(self, owner: Client | None, name: str | None) -> str:
        """For which client a request is.

        Args:
            owner: of its key.
            name: what the request says.

        Raises:
            ApiError: the key may not speak for others.
        """
        if owner is None:
            return name or ""
        if name is None or name == owner.name:
            return owner.name
        if owner.section is not None and owner.section.names_clients:
            return name
        reason = "the key says which client this is; leave client out"
        raise ApiError(403, reason, param="client")

    def enter(self, owner: Client | None, name: str, num_prompts: int) -> OpenPrompts:
        """Let a request in.

        Args:
            owner: of its key, whose bounds count; None: those of the client that it names.

        Raises:
            ApiError: there is no room, or the client has had its share.
        """
        client = owner or self._known(name)
        try:
            self._check(client, num_prompts)
        except ApiError:
            self.num_turned_away += num_prompts
            raise
        if client.requests is not None:
            client.requests.take(num_prompts)
        client.num_open += num_prompts
        self.num_open += num_prompts
        return OpenPrompts(self, client, num_prompts)

    def _check(self, client: Client, num_prompts: int) -> None:
        bounds = (
            (self.num_open, self._limits.max_requests, "this server"),
            (client.num_open, client.max_requests, f"client {client.name!r}"),
        )
        for num_open, most, whose in bounds:
            if num_prompts > most:
                reason = f"the request has {num_prompts} prompts; {whose} may have {most} open"
                raise ApiError(400, reason, param="prompt")
            if num_open + num_prompts > most:
                reason = f"{num_open} prompts of {whose} wait or run; at most {most} may"
                raise ApiError(429, reason, code="queue_full", retry_after_s=RETRY_AFTER_S)
        for allowance, units, what in (
            (client.requests, num_prompts, "requests"),
            (client.tokens, 1, "tokens"),
        ):
            wait_s = 0.0 if allowance is None else allowance.wait_s(units)
            if wait_s > 0:
                reason = f"client {client.name!r} has used its {what} of a minute"
                raise ApiError(429, reason, code="rate_limit_exceeded", retry_after_s=wait_s)

    def _known(self, name: str) -> Client:
        client = self._clients.get(name)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS + len(self._named):
                self._forget()
            most = self._limits.max_client_requests or self._limits.max_requests
            client = self._clients[name] = Client(name, most)
        return client

    def _forget(self) -> None:
        """Drop the clients that have nothing open and no entry in the configuration."""
        self._clients = {
            name: client
            for name, client in self._clients.items()
            if client.num_open or name in self._named
        }

    def left(self, entry: OpenPrompts, results: Iterable[RequestResult]) -> None:
        """Called by an entry that ends."""
        client = entry.client
        client.num_open -= entry.num_prompts
        self.num_open -= entry.num_prompts
        if client.tokens is not None:
            client.tokens.take(sum(len(r.prompt_token_ids) + r.num_output_tokens for r in results))

    def open_by_client(self) -> dict[str, int]:
        """Prompts that wait or run, by client, where there are any."""
        return {name: c.num_open for name, c in self._clients.items() if c.num_open}


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _read_key(section: ClientSection, index: int) -> str:
    """A client's key. Messages never quote it."""
    at = f"server.clients[{index}]"
    if (section.key_env is None) == (section.key_file is None):
        raise ConfigError("needs either key_env or key_file", key=at)
    if section.key_env is not None:
        key, at = os.environ.get(section.key_env, ""), f"{at}.key_env"
        problem = f"the environment variable {section.key_env} is not set"
    else:
        assert section.key_file is not None
        at, problem = f"{at}.key_file", f"{section.key_file} is empty"
        try:
            key = section.key_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"{section.key_file} cannot be read: {reason}", key=at) from None
    if not key:
        raise ConfigError(problem, key=at)
    return key
