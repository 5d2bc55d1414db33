"""Contract `model/2` (experimental): the decoder's forward pass.

A family with the usual structure needs a few lines. Other families are built from
`nanofw.models.layers` or from their own layers:

    class MyForCausalLM(Decoder):
        def __init__(self, options, config):
            super().__init__(config, DecoderFeatures(qk_norm=True))

If nanofw cannot read the `config.json` of a family, the manifest names a function that can:
`Plugin(..., api="model/2", spec="my_pkg.spec:read")`, a torch-free `read(config_json, folder)` that
returns a `ModelSpec`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nanofw.contracts.attention_backend import AttentionBackend, ForwardBatch
from nanofw.contracts.communicator import Communicator
from nanofw.contracts.model_spec import ModelSpec
from nanofw.errors import ModelError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Facts that a model is constructed with, beside its options.

    Parameters are created without values on `device`; `load` fills them in place.

    Attributes:
        name: what the configuration calls it; requests carry its arguments under this name.
        spec: the description of the model, made by the plugin's own reader or by nanofw's.
        device: where the parameters and the tensors of a pass are.
        dtype: type of the weights and of the hidden states.
        communicator: the connection to the other ranks.
        attention_backend: it computes attention in each layer, for the heads of this rank.
        max_model_len: number of positions that the run uses, for tables of angles.
    """

    spec: ModelSpec
    device: torch.device
    dtype: torch.dtype
    communicator: Communicator
    attention_backend: AttentionBackend
    max_model_len: int
    name: str = ""


class Model(ABC):
    """Base of models. Constructed as `target(options, ModelConfig)`, empty."""

    def check(self, arguments: Any) -> None:
        """Raise ValueError with the allowed values if the arguments of a request are wrong.

        `arguments` is what the request has under the model's name; None if it has nothing.
        Requests with different arguments share nothing in the prefix cache.
        """
        if arguments is not None:
            raise ValueError("this model takes no arguments")

    @abstractmethod
    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take the checkpoint's tensors. Raises `ModelError` that lists what is missing or
        unexpected; a parameter that was never loaded is always an error."""

    def load_random(self) -> None:
        """Fill every parameter with random numbers on its device; for `model.weights: random`."""
        raise ModelError(f"{type(self).__name__} cannot be run with model.weights: random")

    @abstractmethod
    def forward(self, batch: ForwardBatch, pool: list[Any]) -> torch.Tensor:
        """Hidden states [s, hidden] at `batch.logits_indices`.

        With the capability `cuda_graph`, the pass may be captured and replayed. So the kernels that
        it launches may depend only on the shapes in the batch. Rows with arguments are never
        captured.
        """

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [s, vocab of this rank] of hidden states.

        Each rank has `ceil(vocab_size / ranks)` logits, in the order of the ranks. The last ones
        may be padding, which is removed when the logits are gathered.
        """
