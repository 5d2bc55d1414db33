"""A small share of the fuzzer of requests; `make fuzz` sends many more."""

from __future__ import annotations

from tests.fuzz.requests import fuzz


def test_random_requests_are_served_or_refused_alone() -> None:
    fuzz(0, 60)
