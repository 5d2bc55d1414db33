"""Policies without a fault."""

from __future__ import annotations

from typing import Any

from nanofw.plugins import Policy, RequestView


class Plain(Policy):
    """First come, first served."""

    def key(self, request, view) -> Any:
        return request.arrival


class Following(Plain):
    """Knows all live requests, each sample on its own."""

    def __init__(self, options=None, config=None) -> None:
        super().__init__(options, config)
        self.live: dict[RequestView, None] = {}

    def on_arrival(self, request, view) -> None:
        self.live[request] = None

    def on_finish(self, request, reason, view) -> None:
        del self.live[request]
