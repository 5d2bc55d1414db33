"""Models that are wrong."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import torch

from nanofw.errors import ModelError
from nanofw.models.qwen3 import Qwen3ForCausalLM
from nanofw.plugins import Plugin, hookimpl
from tests.mutants.collection import Collection

CLAIMS = {
    "devices": ("*",),
    "dtypes": ("float32", "bfloat16", "float16"),
    "activations": ("silu",),
    "rope_types": ("default", "linear", "dynamic", "yarn", "llama3"),
    "sliding_window": True,
    "overlap": True,
}
sample = Collection("model/2", CLAIMS, {"architectures": ("*",)})


@hookimpl
def model() -> list[Plugin]:
    return sample.plugins()


@sample()
class LastTokensAlone(Qwen3ForCausalLM):
    """It answers for the last token of each row, whichever positions were asked for."""

    def forward(self, batch, pool):
        last = batch.query_starts[1:].long() - 1
        return super().forward(replace(batch, logits_indices=last), pool)


@sample()
class AnswersForAll(Qwen3ForCausalLM):
    """It answers for every token of the pass, as if all had been asked for."""

    def forward(self, batch, pool):
        every = torch.arange(len(batch.token_ids))
        return super().forward(replace(batch, logits_indices=every), pool)


@sample()
class PositionsOfThePass(Qwen3ForCausalLM):
    """Positions begin at 0 in each pass, so that every token after the first chunk is misplaced."""

    def forward(self, batch, pool):
        lengths = (batch.query_starts[1:] - batch.query_starts[:-1]).long()
        starts = batch.query_starts[:-1].long().repeat_interleave(lengths)
        positions = batch.positions.clone()
        positions[: len(starts)] = torch.arange(len(starts)) - starts
        return super().forward(replace(batch, positions=positions), pool)


@sample()
class LoadsBlindly(Qwen3ForCausalLM):
    """A checkpoint that lacks tensors, or has others, is taken as it is: what is missing is what
    happened to be in the memory."""

    def load(self, tensors):
        with suppress(ModelError):
            super().load(tensors)


@sample()
class OneCacheForAll(Qwen3ForCausalLM):
    """All layers keep their keys and values in the entry of the first one."""

    def forward(self, batch, pool):
        return super().forward(batch, pool[:1] * len(pool))


@sample()
class RemembersThePass(Qwen3ForCausalLM):
    """Something of each pass goes into the next one, which may be other requests'."""

    def forward(self, batch, pool):
        hidden = super().forward(batch, pool)
        before, self._before = getattr(self, "_before", 0.0), hidden.mean(dim=0, keepdim=True)
        return hidden + 0.5 * before


@sample()
class CentredBatch(Qwen3ForCausalLM):
    """The mean over the batch is subtracted, so that each request depends on its neighbours."""

    def forward(self, batch, pool):
        hidden = super().forward(batch, pool)
        return hidden - 0.5 * hidden.mean(dim=0, keepdim=True)


@sample()
class LastLayerLeftOut(Qwen3ForCausalLM):
    """The last layer is loaded and never used."""

    def _layers(self):
        return list(super()._layers())[:-1]

    def load(self, tensors):
        vars(self)["_layers"] = super()._layers
        super().load(tensors)
        del self._layers


@sample()
class OneTokenLess(Qwen3ForCausalLM):
    """The logits lack the last token of the vocabulary."""

    def logits(self, hidden):
        return super().logits(hidden)[:, :-1]


@sample()
class RandomIsNothing(Qwen3ForCausalLM):
    """With random weights it computes with what happened to be in the memory."""

    def load_random(self):
        pass


@sample()
class DropsOut(Qwen3ForCausalLM):
    """A tenth of the hidden states is dropped at random, as in training."""

    def forward(self, batch, pool):
        return torch.nn.functional.dropout(super().forward(batch, pool), 0.1)


@sample()
class NoPositions(Qwen3ForCausalLM):
    """Every token is taken for the first of its text: a checkpoint with positions fails."""

    def forward(self, batch, pool):
        return super().forward(replace(batch, positions=batch.positions * 0), pool)


@sample()
class WidensHidden(Qwen3ForCausalLM):
    """Hidden states come in float64, whatever type the run has."""

    def forward(self, batch, pool):
        return super().forward(batch, pool).double()
