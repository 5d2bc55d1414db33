"""Options of the executor `torch`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, NonNegativeInt, PositiveInt

from nanofw.plugins import Options

Timeout: TypeAlias = Annotated[float, Field(gt=0, le=1_000_000)]
"""Seconds; the bound (11 days) is what a system call that waits can be told."""


class TorchOptions(Options):
    """`executor: {name: torch, ...}`."""

    num_threads: Annotated[PositiveInt, Field(le=4096)] | None = Field(
        default=None,
        description="CPU threads of one operation; null: OMP_NUM_THREADS, else the cores "
        "that are free at the start.",
    )
    prefill_graph_tokens: NonNegativeInt | None = Field(
        default=None,
        description="With CUDA graphs: tokens of the largest step with prefill that is captured; "
        "0: such steps run eagerly; null: 512 to 16384, more for smaller layers. Larger ones "
        "cost memory.",
    )
    compile_threads: NonNegativeInt | None = Field(
        default=None,
        description="On an NVIDIA GPU: threads of each rank that compile kernels while weights "
        "are loaded; 0: each kernel is compiled at its first launch; null: up to 16, by the "
        "number of CPUs.",
    )
    all_reduce: Literal["auto", "collective", "one_shot"] = Field(
        default="auto",
        description="How several ranks on GPUs sum small tensors. collective: by NCCL. one_shot: "
        "in kernels that use the other ranks' memory. auto: one_shot if it works.",
    )
    step_timeout_s: Timeout = Field(
        default=300.0,
        description="With several ranks: if a rank is silent for this long, the run ends.",
    )
    start_timeout_s: Timeout = Field(
        default=1800.0, description="With several ranks: longest time until all of them are ready."
    )
