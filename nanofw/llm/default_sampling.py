"""Sampling of requests that do not state it; a sampler need not support nanofw's own defaults."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import combinations

from nanofw.config.load import LoadedConfig
from nanofw.config.source import DEFAULT
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.engine.base import BaseEngine
from nanofw.engine.engine import Engine

logger: logging.Logger = logging.getLogger(__name__)

_NEUTRAL = SamplingParams()


def settle_sampling(engine: BaseEngine, loaded: LoadedConfig) -> SamplingParams:
    """The configuration's sampling, without such defaults as the sampler does not support.

    A value that some layer of the configuration set stays: requests with it are refused.
    """
    sampling = loaded.config.sampling
    if not isinstance(engine, Engine) or _can_sample(engine, sampling):
        return sampling
    unset = [
        name
        for name in ("top_p", "temperature")
        if loaded.values.source(("sampling", name)) == DEFAULT
    ]
    for count in range(1, len(unset) + 1):
        for names in combinations(unset, count):
            tried = replace(sampling, **{name: getattr(_NEUTRAL, name) for name in names})
            if _can_sample(engine, tried):
                logger.warning(
                    "the sampler %s does not take the default %s: requests that bring none are "
                    "sampled without",
                    loaded.config.sampler.name,
                    " and ".join(f"{name} {getattr(sampling, name)}" for name in names),
                )
                return tried
    return sampling


def _can_sample(engine: Engine, sampling: SamplingParams) -> bool:
    try:
        engine.executor.check(Request(id="defaults", prompt_token_ids=[0], sampling=sampling))
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever is wrong: each request will be told
        return False
    return True
