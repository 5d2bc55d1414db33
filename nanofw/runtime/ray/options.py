"""Options of the executor `ray`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from nanofw.runtime.options import Timeout, TorchOptions


class RayOptions(TorchOptions):
    """`executor: {name: ray, ...}`: those of `torch`, and where Ray puts the ranks."""

    address: str | None = Field(
        None,
        description="Of the Ray cluster, host:port or auto; null: as Ray decides (RAY_ADDRESS, a "
        "cluster that runs on this host, else one of its own that ends with the engine).",
    )
    placement: Literal["strict_pack", "pack", "spread", "strict_spread"] = Field(
        "strict_pack",
        description="Ranks of an engine on one node, on one if they fit, over nodes if they "
        "can, or each on a node of its own.",
    )
    cpus_per_rank: PositiveInt = Field(1, description="CPUs that Ray keeps for each rank.")
    placement_timeout_s: Timeout = Field(
        60.0, description="Longest time until Ray has room for all ranks."
    )
    max_restarts: NonNegativeInt = Field(
        0, description="With engine.replicas: how often Ray starts each replica again."
    )
