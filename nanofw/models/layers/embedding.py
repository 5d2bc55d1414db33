"""Token embedding and output head, split over ranks by ranges of the vocabulary."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from nanofw.contracts.communicator import Communicator
from nanofw.contracts.model_spec import vocabulary_of_rank
from nanofw.models.layers.layer import Layer
from nanofw.models.layers.linear import Linear
from nanofw.models.layers.loading import Targets, empty_parameter, fill


class VocabularyRange:
    """The tokens [start, stop) of this rank out of equally wide ranges.

    The last ranges may be shorter or empty; `width` counts their padding too.
    """

    def __init__(self, vocab_size: int, communicator: Communicator) -> None:
        self.vocab_size = vocab_size
        self.width: int = -(-vocab_size // communicator.size)
        tokens = vocabulary_of_rank(vocab_size, communicator.rank, communicator.size)
        self.start: int = tokens.start
        self.stop: int = tokens.stop

    def fill(self, parameter: nn.Parameter, tensor: torch.Tensor) -> None:
        """Copy this rank's rows of a whole [vocab, hidden] tensor; padding becomes zero."""
        if tensor.shape[0] != self.vocab_size:
            raise ValueError(f"has {tensor.shape[0]} rows where {self.vocab_size} are needed")
        num_rows = self.stop - self.start
        fill(parameter, parameter[:num_rows], tensor[self.start : self.stop])
        padding = parameter[num_rows:]
        fill(parameter, padding, torch.zeros_like(padding))


class VocabParallelEmbedding(Layer):
    """Token ids to vectors."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        communicator: Communicator,
    ) -> None:
        super().__init__()
        self.range: VocabularyRange = VocabularyRange(vocab_size, communicator)
        self._communicator = communicator
        self.weight: nn.Parameter = empty_parameter(
            self.range.width, hidden_size, dtype=dtype, device=device
        )

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int[t] token ids to [t, hidden], the same on every rank."""
        if self._communicator.size == 1:
            return functional.embedding(token_ids, self.weight)
        local = token_ids - self.range.start
        outside = (local < 0) | (local >= self.range.width)
        hidden = functional.embedding(local.masked_fill(outside, 0), self.weight)
        return self._communicator.all_reduce(hidden.masked_fill_(outside.unsqueeze(-1), 0))

    def targets(self, name: str) -> Targets:
        """Where the checkpoint's tensor `name` goes."""
        return {name: self._load}

    def _load(self, tensor: torch.Tensor) -> None:
        self.range.fill(self.weight, tensor)


class ParallelHead(Linear):
    """Hidden states to logits of this rank's range of the vocabulary, padding included.

    Args:
        tied: the embedding whose weight it shares; None: it has its own.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        tied: VocabParallelEmbedding | None = None,
        dtype: torch.dtype,
        device: torch.device,
        communicator: Communicator,
    ) -> None:
        self.range: VocabularyRange = VocabularyRange(vocab_size, communicator)
        num_rows = 0 if tied is not None else self.range.width
        super().__init__(hidden_size, num_rows, dtype=dtype, device=device)
        self._tied = tied
        if tied is not None:
            self.weight: nn.Parameter | None = tied.weight
            self._is_shared = True

    def finish_loading(self) -> None:
        """As of every linear layer; a tied embedding reads the weight as the head holds it."""
        super().finish_loading()
        if self._tied is not None and self._constant is not None:
            self._tied.weight = nn.Parameter(self._constant.readable(), requires_grad=False)

    def targets(self, name: str) -> Targets:
        """Where the checkpoint's tensor `name` goes; only for a head that is not tied."""
        return {name: self._load}

    def _load(self, tensor: torch.Tensor) -> None:
        assert self.weight is not None
        self.range.fill(self.weight, tensor)
