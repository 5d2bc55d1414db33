"""The chosen plugins by name: whom the arguments of a request can be for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b

from nanofw.contracts.requests import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginNames:
    """What the configuration calls the plugins of a run.

    Attributes:
        policy, model: of these kinds; empty where a test has none.
        others: of further plugins that take arguments.
        executor: the executor in messages, with its distribution.
    """

    policy: str = ""
    model: str = ""
    others: tuple[str, ...] = ()
    executor: str = ""

    @property
    def all(self) -> set[str]:
        """Every name that arguments can be for."""
        return {self.policy, self.model, *self.others} - {""}

    def salt(self, request: Request) -> int:
        """64 bits that keep apart, in the prefix cache, requests whose KV must not be shared.

        0 where the request has neither a salt nor arguments for the model, which may change
        what the model computes.
        """
        arguments = request.arguments.get(self.model)
        if not request.cache_salt and arguments is None:
            return 0
        content = json.dumps([request.cache_salt, arguments], sort_keys=True, default=repr)
        return int.from_bytes(blake2b(content.encode(), digest_size=8).digest(), "little") or 1
