"""Settings of `nanofw bench serve`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from nanofw.config.schema import Section
from nanofw.config.slo import Slo

Share = Annotated[float, Field(ge=0, lt=0.5)]
MAX_CONNECTIONS = 1 << 16


class ServeOptions(Section):
    """Settings of `nanofw bench serve`."""

    url: Annotated[str, Field(pattern=r"^https?://\S+$")] = "http://127.0.0.1:8000"
    """Address of the endpoint, with or without /v1."""
    model: Annotated[str, Field(min_length=1)] | None = None
    """Name of the model in the requests; null: the first that the endpoint offers."""
    api: Literal["completions", "chat"] = "completions"
    """Which of the endpoint's two paths the requests go to."""
    prompts: Literal["auto", "ids", "text"] = "auto"
    """ids: the workload's token ids, for completions only; text: their text, which needs the
    model's tokenizer; auto: ids for completions, text for a chat."""
    api_key_env: Annotated[str, Field(min_length=1)] | None = None
    """Environment variable with the API key, which is never written to any output; null: requests
    have no key."""
    rates: Annotated[tuple[PositiveFloat, ...], Field(min_length=1, max_length=1000)] | None = None
    """Requests per second; one run for each rate; null: as the workload says."""
    repeats: PositiveInt = 1
    """Runs at each rate, each with traffic of the next seed."""
    seed: NonNegativeInt = 0
    """Seed of the first run's traffic."""
    slo: Slo = Slo()
    """Limits that a request must meet to count for goodput."""
    warm_up: Share = 0.1
    """Share of the time of arrivals that is not counted at the start."""
    drain: Share = 0.1
    """Share of the time of arrivals that is not counted at the end."""
    hints: bool = True
    """Send `client`, `priority`, `deadline_s` and `expected_output_tokens`, if the workload has
    them. Other servers may refuse these keys."""
    body: Mapping[str, object] = {}
    """Further keys of each request; a key with the value null is left out of the request."""
    max_open: Annotated[int, Field(ge=1, le=MAX_CONNECTIONS)] = 4096
    """How many connections may be open at once. Further requests wait for a connection, and this
    wait counts as latency."""
    timeout_s: PositiveFloat = 600.0
    """Longest time without an event during an answer."""
