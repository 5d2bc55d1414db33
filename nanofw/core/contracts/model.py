"""Contract `model/1` (experimental): the decoder's forward pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nanofw.core.contracts.attention_backend import ForwardBatch

if TYPE_CHECKING:
    import torch


@runtime_checkable
class Model(Protocol):
    """Implemented by models. Constructed as `target(spec, ModelContext)`."""

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take the checkpoint's tensors. Raises `ModelError` that lists what is missing or
        unexpected; a parameter that was never loaded is always an error."""
        ...

    def forward(self, batch: ForwardBatch, pool: list[Any]) -> torch.Tensor:
        """Hidden states [s, hidden] at `batch.logits_indices`."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [s, vocab of this rank] of hidden states."""
        ...


@runtime_checkable
class ModelContext(Protocol):
    """What a model is built with: device, dtype, the ranks beside it, the backend."""

    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def communicator(self) -> Any: ...
    @property
    def attention(self) -> Any:
        """The attention backend."""
        ...
