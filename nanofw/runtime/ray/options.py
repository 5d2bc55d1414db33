"""Options of the executor `ray`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from nanofw.runtime.options import Timeout, TorchOptions


class RayOptions(TorchOptions):
    """`executor: {name: ray, ...}`: those of `torch`, and where Ray puts the ranks."""

    address: str | None = Field(
        default=None,
        description="Address of the Ray cluster: host:port or auto; null: Ray decides (by "
        "RAY_ADDRESS, or a cluster on this host, or else a new one that ends with the engine).",
    )
    placement: Literal["strict_pack", "pack", "spread", "strict_spread"] = Field(
        default="strict_pack",
        description="Where the ranks of an engine run: all on one node; on one node if they "
        "fit; spread over nodes if possible; each on its own node.",
    )
    cpus_per_rank: PositiveInt = Field(
        default=1, description="CPUs that Ray reserves for each rank."
    )
    placement_timeout_s: Timeout = Field(
        default=60.0, description="Longest time until Ray has room for all ranks."
    )
    max_restarts: NonNegativeInt = Field(
        default=0, description="With engine.replicas: how often Ray starts each replica again."
    )
