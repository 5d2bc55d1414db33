"""Models that are right and odd."""

from __future__ import annotations

import torch

from nanofw.models.layers import Decoder, DecoderFeatures
from nanofw.models.qwen3 import Qwen3ForCausalLM
from nanofw.plugins import Plugin, hookimpl
from tests.mutants.broken.models import CLAIMS
from tests.mutants.collection import Collection

sample = Collection("model/2", CLAIMS, {"architectures": ("*",)})


@hookimpl
def model() -> list[Plugin]:
    return sample.plugins()


@sample()
class LouderLogits(Decoder):
    """Its logits are twice as large: what a family's numbers mean is its own affair."""

    def __init__(self, options, config):
        super().__init__(config, DecoderFeatures(qk_norm=True, logits_scale=2.0))


@sample()
class ListensToRequests(Qwen3ForCausalLM):
    """Requests may bring a number, by which their hidden states alone are multiplied."""

    def check(self, arguments):
        if arguments is not None and not isinstance(arguments, (int, float)):
            raise ValueError("it must be a number")

    def forward(self, batch, pool):
        hidden = super().forward(batch, pool)
        if not any(row in batch.arguments for row in batch.rows.tolist()):
            return hidden
        ends = batch.query_starts[1:].long()
        lines = torch.searchsorted(ends, batch.logits_indices, right=True)
        factors = [float(batch.arguments.get(row, 1.0)) for row in batch.rows.tolist()]
        return hidden * torch.tensor(factors, dtype=hidden.dtype)[lines][:, None]


@sample()
class ReadsInAnyOrder(Qwen3ForCausalLM):
    """It takes the tensors in an order of its own."""

    def load(self, tensors):
        super().load(sorted(tensors, key=lambda pair: pair[0], reverse=True))


@sample()
class MadeWhenNeeded(Qwen3ForCausalLM):
    """A table of factors, all of them one, is made by the first pass."""

    def forward(self, batch, pool):
        hidden = super().forward(batch, pool)
        if "factors" not in vars(self):
            vars(self)["factors"] = torch.ones(hidden.shape[1], dtype=hidden.dtype)
        return hidden * vars(self)["factors"]


@sample()
class NewTensors(Qwen3ForCausalLM):
    """Its logits are not contiguous in memory."""

    def logits(self, hidden):
        return super().logits(hidden).t().contiguous().t()
