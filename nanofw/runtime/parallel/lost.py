"""The error of a rank that is not the cause."""

from __future__ import annotations

from nanofw.errors import ExecutorError


class RankLost(ExecutorError):
    """A collective failed because another rank is gone; the cause is there."""
