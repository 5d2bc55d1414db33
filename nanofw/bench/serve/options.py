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
    """Of the endpoint, with or without /v1."""
    model: Annotated[str, Field(min_length=1)] | None = None
    """Its name there; null: the first that the endpoint offers."""
    api: Literal["completions", "chat"] = "completions"
    """The path that requests go to."""
    prompts: Literal["auto", "ids", "text"] = "auto"
    """What prompts are sent as; auto: ids to completions, texts to a chat."""
    api_key_env: Annotated[str, Field(min_length=1)] | None = None
    """Environment variable that has the API key; null: none is sent."""
    rates: Annotated[tuple[PositiveFloat, ...], Field(min_length=1, max_length=1000)] | None = None
    """Requests per second, a run each; null: as the workload says."""
    repeats: PositiveInt = 1
    """Runs at each rate, each with traffic of its own seed."""
    seed: NonNegativeInt = 0
    """Of the first run's traffic; the next ones count on from it."""
    slo: Slo = Slo()
    """Limits for goodput."""
    warm_up: Share = 0.1
    """Share of the arrivals' time that is cut at the start."""
    drain: Share = 0.1
    """Share of the arrivals' time that is cut at the end."""
    hints: bool = True
    """Send what the workload says of priorities, deadlines, expected lengths and clients."""
    body: Mapping[str, object] = {}
    """Keys that are added to the body of every request; null: the key is left out."""
    max_open: Annotated[int, Field(ge=1, le=MAX_CONNECTIONS)] = 4096
    """Connections at once; further requests wait, which counts as latency."""
    timeout_s: PositiveFloat = 600.0
    """Longest silence of an endpoint in the middle of an answer."""
