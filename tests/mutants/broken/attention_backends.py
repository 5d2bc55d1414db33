"""Attention backends that are wrong."""

from __future__ import annotations

from typing import ClassVar

import torch

from nanofw.attention_backends.sdpa import SdpaBackend
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
class HeadsTiled(Plain):
    """Query head h reads KV head h modulo their number, instead of its group's."""

    def spread(self, heads):
        return heads.repeat(1, self.config.num_heads // self.config.num_kv_heads, 1)


@sample()
class SeesTheFuture(Plain):
    """Within a chunk every query sees all keys."""

    def visible(self, num_queries, num_keys, window):
        return super().visible(1, num_keys, window).expand(num_queries, -1)


@sample()
class MissesItself(Plain):
    """A query does not see its own key, unless it is the first."""

    def visible(self, num_queries, num_keys, window):
        seen = super().visible(num_queries, num_keys, window)
        own = (
            torch.arange(num_keys)[None] == torch.arange(num_keys - num_queries, num_keys)[:, None]
        )
        return torch.where((seen & ~own).any(-1, keepdim=True), seen & ~own, seen)


@sample()
class WindowOfOneMore(Plain):
    """A window sees one key more than it may."""

    def window(self, layer):
        window = super().window(layer)
        return None if window is None else window + 1


@sample()
class NoWindow(Plain):
    """It claims windows, and every query sees all keys."""

    def window(self, layer):
        return None


@sample()
class FirstWindowForAll(Plain):
    """The window of the first layer is used in every layer."""

    def window(self, layer):
        return super().window(0)


@sample()
class OwnScale(Plain):
    """The scale is that of the usual models, whatever the model asks for."""

    def attend(self, query, keys, values, layer, scale):
        return super().attend(query, keys, values, layer, self.config.head_dim**-0.5)


@sample()
class NoBound(Plain):
    """It claims bounded scores, and does not bound them."""

    def bounded(self, scores):
        return scores


@sample()
class BoundBeforeScale(Plain):
    """Scores are bounded before they are scaled."""

    def attend(self, query, keys, values, layer, scale):
        self.scale = scale
        return super().attend(query, keys, values, layer, scale)

    def bounded(self, scores):
        return super().bounded(scores / self.scale) * self.scale


@sample()
class PaddingIsWritten(Plain):
    """Slot -1 is taken for the last slot of the pool, which may be somebody's."""

    def store(self, key, value, kv, batch):
        flat = kv.view(2, -1, *kv.shape[3:])
        flat[0, batch.slots] = key
        flat[1, batch.slots] = value


@sample()
class WholeBlocks(Plain):
    """Slots past the context are weighted with zero, and NaN that was left there comes through."""

    def context(self, kv, batch, row):
        count = int(batch.context_lens[row])
        blocks = batch.block_tables[row, : -(-count // self.config.block_size)].long()
        self.num_keys = count
        keys, values = kv[:, blocks].flatten(1, 2)
        return keys, values

    def visible(self, num_queries, num_keys, window):
        seen = super().visible(num_queries, self.num_keys, window)
        unseen = seen.new_zeros(num_queries, num_keys - self.num_keys)
        return torch.cat((seen, unseen), dim=1)


@sample()
class CopiesTheFirstLayer(Plain):
    """Blocks are copied in the first layer alone."""

    def copy_blocks(self, pool, copies):
        super().copy_blocks(pool[:1], copies)


@sample()
class CopiesKeysAlone(Plain):
    """Values are left behind when a block is copied."""

    def copy_blocks(self, pool, copies):
        for kv in pool:
            kv[0, copies[:, 1]] = kv[0, copies[:, 0]]


@sample()
class CopiesBackwards(Plain):
    """Source and target of a copy are confused."""

    def copy_blocks(self, pool, copies):
        super().copy_blocks(pool, copies.flip(1))


@sample()
class AnswersInFloat32(Plain):
    """The output is float32 whatever the type of the queries is."""

    def forward(self, query, key, value, layer, kv, batch, scale):
        return super().forward(query, key, value, layer, kv, batch, scale).float()


@sample()
class HalfTheBytes(Plain):
    """The size of a block forgets the values, so that a pool takes twice the memory there is."""

    def bytes_per_block(self):
        return super().bytes_per_block() // 2


@sample()
class OneLayerForAll(Plain):
    """All layers share one tensor, and overwrite each other's keys and values."""

    def allocate(self, num_blocks):
        return super().allocate(num_blocks)[:1] * self.config.num_layers


@sample()
class ChunksStartAgain(Plain):
    """The queries of a later chunk are masked as if they were the first tokens of the prompt."""

    def visible(self, num_queries, num_keys, window):
        seen = super().visible(num_queries, num_queries, window)
        return torch.cat((seen, seen.new_zeros(num_queries, num_keys - num_queries)), dim=1)


@sample()
class FirstRowForAll(Plain):
    """Every row reads the blocks of the first one."""

    def context(self, kv, batch, row):
        count = int(batch.context_lens[row])
        blocks = batch.block_tables[0, : -(-count // self.config.block_size)].long()
        keys, values = kv[:, blocks].flatten(1, 2)[:, :count]
        return keys, values


@sample()
class KeepsMetadata(SdpaBackend):
    """What is computed of a batch is kept for all of its shape, though their blocks differ."""

    def prepare(self, batch):
        kept = vars(self).setdefault("kept", {})
        shape = batch.block_tables.shape, tuple(batch.host_context_lens.tolist())
        if shape not in kept:
            kept[shape] = super().prepare(batch)
        return kept[shape]


@sample()
class FullBlocksAlone(Plain):
    """Keys of a block that is not full are not read, once there is a full one."""

    def context(self, kv, batch, row):
        keys, values = super().context(kv, batch, row)
        queries = int(batch.query_starts[row + 1] - batch.query_starts[row])
        size = self.config.block_size
        full = len(keys) // size * size
        if queries > 1 or not full:
            return keys, values
        return keys[:full], values[:full]


@sample()
class PoolOfTheClass(Plain):
    """The pool belongs to the class: two engines of a process write into each other's."""

    pools: ClassVar[dict] = {}

    def allocate(self, num_blocks):
        c = self.config
        key = num_blocks, c.num_layers, c.block_size, c.num_kv_heads, c.head_dim, c.dtype
        return self.pools.setdefault(key, super().allocate(num_blocks))


@sample()
class DecodesAlone(Plain):
    """Every row is taken for one that decodes: of a chunk only the last token is attended."""

    def attend(self, query, keys, values, layer, scale):
        out = torch.zeros_like(query)
        out[-1:] = super().attend(query[-1:], keys, values, layer, scale)
        return out


@sample()
class ForgetsEarlierChunks(Plain):
    """A chunk attends to its own tokens, not to those that were computed before it."""

    def attend(self, query, keys, values, layer, scale):
        if len(query) > 1:
            keys, values = keys[-len(query) :], values[-len(query) :]
        return super().attend(query, keys, values, layer, scale)
