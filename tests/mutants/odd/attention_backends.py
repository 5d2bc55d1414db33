"""Attention backends that are right and odd."""

from __future__ import annotations

import torch

from nanofw.plugins import Plugin, hookimpl
from tests.mutants.collection import Collection
from tests.mutants.plain.attention_backends import Plain

sample = Collection(
    "attention_backend/2",
    {
        "devices": ("*",),
        "dtypes": ("float32", "bfloat16", "float16"),
        "head_dims": ("*",),
        "block_sizes": ("*",),
        "sliding_window": True,
        "soft_cap": True,
    },
)


@hookimpl
def attention_backend() -> list[Plugin]:
    return sample.plugins()


@sample()
class RowByRow(Plain):
    """It prepares nothing, and attends to the rows one after the other: slow and right."""


@sample(
    dtypes=("float32",), head_dims=(64,), block_sizes=(16,), sliding_window=False, soft_cap=False
)
class VeryNarrow(Plain):
    """It claims one type, one size of heads and one of blocks, and refuses all others."""

    def __init__(self, options, config):
        c = config
        found = (c.dtype, c.head_dim, c.block_size, c.soft_cap, set(c.sliding_windows) - {None})
        if found != (torch.float32, 64, 16, None, set()):
            raise ValueError(f"made for what it does not claim: {found}")
        super().__init__(options, config)


@sample()
class MetadataOfAnyType(Plain):
    """What `prepare` returns is the backend's own affair: here slots without padding."""

    def prepare(self, batch):
        real = batch.slots >= 0
        return {"real": real, "slots": batch.slots[real]}

    def store(self, key, value, kv, batch):
        flat = kv.view(2, -1, *kv.shape[3:])
        flat[0, batch.attention["slots"]] = key[batch.attention["real"]]
        flat[1, batch.attention["slots"]] = value[batch.attention["real"]]


@sample()
class MoreRoom(Plain):
    """The pool has a block of its own for padding, behind those that it was asked for."""

    def allocate(self, num_blocks):
        return super().allocate(num_blocks + 1)

    def store(self, key, value, kv, batch):
        flat = kv.view(2, -1, *kv.shape[3:])
        flat[0, batch.slots] = key  # slot -1 is in that block
        flat[1, batch.slots] = value


@sample()
class KeysAndValuesApart(Plain):
    """The pool's entry of a layer is a dictionary: its layout is the backend's own affair."""

    def allocate(self, num_blocks):
        return [{"kv": kv} for kv in super().allocate(num_blocks)]

    def copy_blocks(self, pool, copies):
        super().copy_blocks([entry["kv"] for entry in pool], copies)

    def forward(self, query, key, value, layer, kv, batch, scale):
        return super().forward(query, key, value, layer, kv["kv"], batch, scale)


@sample()
class KeyByKey(Plain):
    """Maximum and sum are updated with each key, in float64, as an online softmax does."""

    def attend(self, query, keys, values, layer, scale):
        seen = self.visible(len(query), len(keys), self.window(layer))
        keys, values = self.spread(keys).double(), self.spread(values).double()
        shape = query.shape[:2]
        highest = torch.full(shape, -1e300, dtype=torch.float64)
        total = torch.zeros(shape, dtype=torch.float64)
        summed = torch.zeros(query.shape).double()
        for k in range(len(keys)):
            scores = self.bounded((query.double() * keys[k]).sum(-1) * scale)
            scores = scores.masked_fill(~seen[:, k : k + 1], -1e300)
            new = torch.maximum(highest, scores)
            weight = torch.exp(scores - new) * seen[:, k : k + 1]
            decay = torch.exp(highest - new)
            total = total * decay + weight
            summed = summed * decay.unsqueeze(-1) + weight.unsqueeze(-1) * values[k]
            highest = new
        return (summed / total.unsqueeze(-1)).to(query.dtype)


@sample()
class ClearsWhatItStarts(Plain):
    """Whole blocks are read; the rest of a block that a pass begins is cleared first."""

    def store(self, key, value, kv, batch):
        size = self.config.block_size
        started = batch.slots[(batch.slots >= 0) & (batch.slots % size == 0)] // size
        kv[:, started] = 0
        super().store(key, value, kv, batch)

    def context(self, kv, batch, row):
        self.num_keys = int(batch.context_lens[row])
        blocks = batch.block_tables[row, : -(-self.num_keys // self.config.block_size)].long()
        keys, values = kv[:, blocks].flatten(1, 2)
        return keys, values

    def visible(self, num_queries, num_keys, window):
        seen = super().visible(num_queries, self.num_keys, window)
        unseen = seen.new_zeros(num_queries, num_keys - self.num_keys)
        return torch.cat((seen, unseen), dim=1)
