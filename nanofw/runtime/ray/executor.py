"""The target of executor `ray`."""

from __future__ import annotations

import sys

from nanofw.contracts.executor import Executor, ExecutorConfig
from nanofw.errors import ConfigError
from nanofw.runtime.executor import probe
from nanofw.runtime.parallel.executor import ParallelExecutor, check_all_reduce
from nanofw.runtime.parallel.transport import LOOPBACK, Place
from nanofw.runtime.ray.options import RayOptions
from nanofw.runtime.ray.transport import RayTransport

__all__ = ["probe", "ray_executor"]


def ray_executor(options: RayOptions | None, config: ExecutorConfig) -> Executor:
    """Every rank in an actor, also a single one; the engine plans in this process."""
    options = options or RayOptions.model_validate({})
    size = config.tensor_parallel_size
    check_all_reduce(options, config.device)
    transport = RayTransport(size, options, config.device, list(sys.path))
    try:
        options = for_places(options, transport.places)
    except ConfigError:
        transport.end_ranks()
        raise
    return ParallelExecutor(options, config, transport)


def for_places(options: RayOptions, places: list[Place]) -> RayOptions:
    """What these places allow: no GPU reads the memory of one in another host.

    Raises:
        ConfigError: the options insist on it.
    """
    if all(place.host == LOOPBACK for place in places) or options.all_reduce == "collective":
        return options
    if options.all_reduce == "one_shot":
        raise ConfigError(
            "one_shot needs all ranks on one node; choose auto, or another placement",
            key="executor.all_reduce",
        )
    return options.model_copy(update={"all_reduce": "collective"})
