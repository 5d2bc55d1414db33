"""Contract `model/1` (experimental): the decoder's forward pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nanofw.contracts.attention_backend import ForwardBatch
from nanofw.contracts.communicator import Communicator

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
        """Logits [s, vocab of this rank] of hidden states.

        Each rank has `ceil(vocab_size / ranks)` of them in rank order; the last ones may be
        padding, which is cut off when they are gathered.
        """
        ...


@runtime_checkable
class ModelContext(Protocol):
    """What a model is built with: device, dtype, the ranks beside it, the backend.

    Parameters are created empty on `device`; `load` fills each in its place.
    """

    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def communicator(self) -> Communicator: ...
    @property
    def max_model_len(self) -> int:
        """Positions that a run uses: for tables of angles."""
        ...

    @property
    def attention(self) -> Any:
        """The attention backend."""
        ...
