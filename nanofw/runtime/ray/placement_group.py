"""Room for actors: one bundle of resources each, all or none."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from nanofw.errors import ConfigError

_here: PlacementGroup | None = None


class Room:
    """Reserved when made.

    Args:
        what: it is for, in the plural.
        count: how many of them.
        bundle: what each gets: `{"CPU": 1, "GPU": 1}`.
        strategy: how they lie on the nodes, as Ray names it.
        timeout_s: longest time until there is room for all.

    Raises:
        ConfigError: the cluster has not so much, or not in time.
    """

    def __init__(
        self, what: str, count: int, bundle: dict[str, float], strategy: str, timeout_s: float
    ) -> None:
        self._bundle = bundle
        chosen: Any = strategy.upper()
        self._group = placement_group([bundle] * count, strategy=chosen)
        if not self._group.wait(timeout_s):
            remove_placement_group(self._group)
            raise ConfigError(
                f"Ray found no room for {count} {what} with {_text(bundle)} each ({strategy}) "
                f"within {timeout_s:g} s; its nodes have in all: {_nodes_text(bundle)}. Ask for "
                "less, choose another placement, or wait for what else runs there",
                key="executor.placement",
            )

    def place(self, index: int) -> dict[str, Any]:
        """Options of the actor that takes a bundle."""
        return place_in(self._group, self._bundle, index)

    def guest(self) -> dict[str, Any]:
        """Options of an actor beside the first bundle, which will fill all of them."""
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=0)
        return {"num_cpus": 0, "scheduling_strategy": strategy}

    @property
    def group(self) -> PlacementGroup:
        """For the guest, which remembers it (`RoomHere.remember`)."""
        return self._group

    def give_back(self) -> None:
        """Idempotent."""
        remove_placement_group(self._group)


class RoomHere:
    """The room that this process, an actor, was given to fill (`Room.guest`).

    Ray keeps what an actor has reserved until the job ends, even if the actor dies; so whoever
    starts it reserves for it.
    """

    def __init__(self, group: PlacementGroup, bundle: dict[str, float]) -> None:
        self._group, self._bundle = group, bundle

    def place(self, index: int) -> dict[str, Any]:
        """As of `Room`."""
        return place_in(self._group, self._bundle, index)

    def give_back(self) -> None:
        """It belongs to another process."""

    @staticmethod
    def remember(group: PlacementGroup | None) -> None:
        """What the next executor in this process shall fill."""
        global _here
        _here = group

    @staticmethod
    def of_this_process(bundle: dict[str, float]) -> RoomHere | None:
        """None: this process was given none."""
        return None if _here is None else RoomHere(_here, bundle)


def place_in(group: PlacementGroup, bundle: dict[str, float], index: int) -> dict[str, Any]:
    """Options of an actor that takes a bundle of a group."""
    return {
        "num_cpus": bundle["CPU"],
        "num_gpus": bundle.get("GPU", 0),
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=index
        ),
    }


def bundle_of(num_cpus: int, device: str) -> dict[str, float]:
    """What one process on a device needs; a number of the device is Ray's to choose.

    Raises:
        ConfigError: the device has one.
    """
    kind, _, index = device.partition(":")
    if index:
        raise ConfigError(f"is {device}, but Ray chooses the GPUs: say {kind}", key="engine.device")
    return {"CPU": num_cpus, "GPU": 1} if kind == "cuda" else {"CPU": num_cpus}


def _text(bundle: dict[str, float]) -> str:
    return " and ".join(f"{count:g} {name}" for name, count in bundle.items())


def _nodes_text(bundle: dict[str, float]) -> str:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return "; ".join(
        ", ".join(f"{node.get(name, 0):g} {name}" for name in bundle) for node in nodes
    )
