"""Room for the ranks of an engine: one bundle of resources each, all or none."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from nanofw.errors import ConfigError
from nanofw.runtime.ray.options import RayOptions


class Room:
    """Reserved when made.

    Args:
        size: ranks.
        with_gpu: each gets a GPU.

    Raises:
        ConfigError: the cluster has not so much, or not within `placement_timeout_s`.
    """

    def __init__(self, size: int, options: RayOptions, *, with_gpu: bool) -> None:
        self._bundle: dict[str, float] = {"CPU": options.cpus_per_rank}
        if with_gpu:
            self._bundle["GPU"] = 1
        strategy: Any = options.placement.upper()
        self._group = placement_group([self._bundle] * size, strategy=strategy)
        if not self._group.wait(options.placement_timeout_s):
            remove_placement_group(self._group)
            raise ConfigError(_no_room(self._bundle, size, options), key="executor.placement")

    def place(self, rank: int) -> dict[str, Any]:
        """Options of the actor that takes a rank's bundle."""
        return {
            "num_cpus": self._bundle["CPU"],
            "num_gpus": self._bundle.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=rank
            ),
        }

    def give_back(self) -> None:
        """Idempotent."""
        remove_placement_group(self._group)


def _no_room(bundle: dict[str, float], size: int, options: RayOptions) -> str:
    asked = " and ".join(f"{count:g} {name}" for name, count in bundle.items())
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    there = "; ".join(
        ", ".join(f"{node.get(name, 0):g} {name}" for name in bundle) for node in nodes
    )
    return (
        f"Ray found no room for {size} ranks with {asked} each ({options.placement}) within "
        f"{options.placement_timeout_s:g} s; its nodes have in all: {there}. Lower "
        "engine.tensor_parallel_size or executor.cpus_per_rank, choose another placement, or "
        "wait for what else runs there"
    )
