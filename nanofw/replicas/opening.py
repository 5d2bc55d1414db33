"""From a selection to replicas: as processes, as actors of Ray, or in virtual time."""

from __future__ import annotations

from nanofw.assembly import Selection
from nanofw.plugins import Component
from nanofw.replicas.placement import Replicas
from nanofw.replicas.replicated_engine import ReplicatedEngine


def open_replicas(selection: Selection, *, real_time: bool = False) -> ReplicatedEngine:
    """Start the replicas of a selection and wait for them.

    Args:
        real_time: a simulated machine answers when the modelled one would, and not at once.

    Raises:
        NanofwError: what kept a replica from starting, or the router from being made.
    """
    router: Component = selection.components["router"]
    router.check_target()  # before models are loaded
    return ReplicatedEngine(selection, _start(selection, real_time=real_time))


def _start(selection: Selection, *, real_time: bool) -> Replicas:
    executor: Component = selection.components["executor"]
    if executor.plugin.capabilities.get("ray_actors"):
        from nanofw.replicas.actors import ReplicaActors

        return ReplicaActors(selection.loaded, executor.options, selection.device)
    if selection.virtual_time and not real_time:
        from nanofw.replicas.virtual import VirtualReplicas

        return VirtualReplicas(selection)
    from nanofw.replicas.processes import ReplicaProcesses

    return ReplicaProcesses(selection)
