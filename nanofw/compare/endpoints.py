"""Arms that are endpoints: servers that run already, and are measured by their clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from nanofw.config.layers import override_layer
from nanofw.config.source import ConfigLayer, KeyPath

if TYPE_CHECKING:
    from nanofw.assembly import Selection
    from nanofw.compare.experiment import ExperimentOptions
    from nanofw.compare.run import RunResult
    from nanofw.compare.task import Task

ENDPOINT = "endpoint"
MeasureEndpoint: TypeAlias = "Callable[[Selection, ExperimentOptions, str, Task], RunResult]"
"""A run of a task against the endpoint at an address."""
NO_ENGINE = "an endpoint does not show it: leave it out"


def endpoints_of(options: ExperimentOptions) -> dict[str, str]:
    """The addresses of the arms that are endpoints."""
    return {arm: str(own[ENDPOINT]) for arm, own in options.arms.items() if ENDPOINT in own}


def root_of(url: str) -> str:
    """An address as it is used: a slash or `/v1` at its end makes no difference."""
    return url.rstrip("/").removesuffix("/v1")


def endpoint_problems(options: ExperimentOptions) -> Iterator[tuple[KeyPath, str]]:
    """What does not fit together: the key that is wrong, and why."""
    found = endpoints_of(options)
    if not found:
        return
    for arm, url in found.items():
        if not re.fullmatch(r"https?://\S+", url):
            yield ("arms", arm, ENDPOINT), f"must be an address, http://…, not {url!r}"
    if others := sorted(options.arms.keys() - found.keys()):
        yield (
            ("arms",),
            f"some arms are endpoints, and {', '.join(others)} not: compare like with like; "
            "nanofw serve makes an endpoint of a configuration",
        )
    if options.sweep is not None:
        yield ("sweep",), "changes configurations, and an endpoint runs its own"
    if options.loads is not None and options.capacity is None:
        yield ("loads",), "needs capacity: that of an endpoint is not searched; or give rates"
    for key in ("decisions", "records"):
        if getattr(options, key) is not None:
            yield (key,), NO_ENGINE
    if options.aa:
        reason = "sends the baseline prompts that its prefix cache has: set it to false"
        yield ("aa",), reason
    if options.host_time:
        yield ("host_time",), NO_ENGINE


def own_layers(own: ConfigLayer) -> tuple[ConfigLayer, ...]:
    """The layers of an arm. Of an endpoint nothing is computed here, so its executor is `sim`."""
    if ENDPOINT not in own.data:
        return (own,)
    data: Mapping[str, object] = {k: v for k, v in own.data.items() if k != ENDPOINT}
    sources = {place: source for place, source in own.sources.items() if place[0] != ENDPOINT}
    return ConfigLayer(own.name, data, sources), override_layer(["executor.name=sim"])
