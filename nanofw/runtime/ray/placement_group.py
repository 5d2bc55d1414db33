"""Placement groups: a bundle of resources for each actor, all of them or none."""

from __future__ import annotations

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from nanofw.errors import ConfigError

_inherited: PlacementGroup | None = None


class ReservedPlacementGroup:
    """Reserved when made; released by the process that made it.

    Args:
        what: the actors, in the plural, for messages.
        count: how many of them.
        bundle: what each gets: `{"CPU": 1, "GPU": 1}`.
        strategy: how Ray spreads them over nodes.
        timeout_s: longest time until all bundles are reserved.

    Raises:
        ConfigError: the cluster does not have the resources, or not in time.
    """

    def __init__(
        self, what: str, count: int, bundle: dict[str, float], strategy: str, timeout_s: float
    ) -> None:
        self._bundle = bundle
        chosen: object = strategy.upper()
        self._group = placement_group([bundle] * count, strategy=chosen)
        if not self._group.wait(timeout_s):
            remove_placement_group(self._group)
            raise ConfigError(
                f"Ray found no room for {count} {what} with {_text(bundle)} each ({strategy}) "
                f"within {timeout_s:g} s; its nodes have in all: {_nodes_text(bundle)}. Ask for "
                "less, choose another placement, or wait for what else runs there",
                key="executor.placement",
            )

    def bundle_options(self, index: int) -> dict[str, object]:
        """Options of the actor that takes a bundle."""
        return _bundle_options(self._group, self._bundle, index)

    def inheritor_options(self) -> dict[str, object]:
        """Options of an actor on the node of the first bundle that will fill all bundles."""
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=0)
        return {"num_cpus": 0, "scheduling_strategy": strategy}

    @property
    def group(self) -> PlacementGroup:
        """For the inheritor, which keeps it (`InheritedPlacementGroup.keep`)."""
        return self._group

    def release(self) -> None:
        """Idempotent."""
        remove_placement_group(self._group)


class InheritedPlacementGroup:
    """The placement group that this process, an actor, was given to fill.

    Ray keeps what an actor has reserved until the job ends, even if the actor dies; so the
    process that starts the actor reserves for it.
    """

    def __init__(self, group: PlacementGroup, bundle: dict[str, float]) -> None:
        self._group, self._bundle = group, bundle

    def bundle_options(self, index: int) -> dict[str, object]:
        """As of `ReservedPlacementGroup`."""
        return _bundle_options(self._group, self._bundle, index)

    def release(self) -> None:
        """Nothing to do: it belongs to another process."""

    @staticmethod
    def keep(group: PlacementGroup | None) -> None:
        """Set what the next executor in this process fills."""
        global _inherited
        _inherited = group

    @staticmethod
    def of_this_process(bundle: dict[str, float]) -> InheritedPlacementGroup | None:
        """None: this process did not inherit a placement group."""
        return None if _inherited is None else InheritedPlacementGroup(_inherited, bundle)


def _bundle_options(
    group: PlacementGroup, bundle: dict[str, float], index: int
) -> dict[str, object]:
    """Options of an actor that takes a bundle of a placement group."""
    return {
        "num_cpus": bundle["CPU"],
        "num_gpus": bundle.get("GPU", 0),
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=index
        ),
    }


def bundle_of(num_cpus: int, device: str) -> dict[str, float]:
    """What one process on a device needs. Ray chooses which GPU.

    Raises:
        ConfigError: the device names its number.
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
