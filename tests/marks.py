"""Parameters of tests that run in every `make test`, and those that wait for `make slow`."""

from __future__ import annotations

from typing import Any

import pytest


def others_slow(first: Any, *others: Any) -> list[Any]:
    """Parameters of which the first is always tried, and the others in the slow set."""
    return [first, *(pytest.param(other, marks=pytest.mark.slow) for other in others)]
