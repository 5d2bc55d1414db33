"""Options of the executor `torch`."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from nanofw.plugins import Options


class TorchOptions(Options):
    """`executor: {name: torch, ...}`."""

    num_threads: PositiveInt | None = Field(
        None, description="CPU threads of one operation; null: as PyTorch decides."
    )
