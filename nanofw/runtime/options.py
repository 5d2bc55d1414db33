"""Options of the executor `torch`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from nanofw.plugins import Options


class TorchOptions(Options):
    """`executor: {name: torch, ...}`."""

    num_threads: PositiveInt | None = Field(
        None, description="CPU threads of one operation; null: as PyTorch decides."
    )
    all_reduce: Literal["collective", "one_shot"] = Field(
        "collective",
        description="With several ranks on GPUs: how small tensors are summed: as NCCL does, or "
        "in one kernel that reads the other ranks' memory.",
    )
    step_timeout_s: PositiveFloat = Field(
        300.0,
        description="With several ranks: a rank that is silent for so long ends the run.",
    )
    start_timeout_s: PositiveFloat = Field(
        1800.0, description="With several ranks: longest time until all of them are ready."
    )
