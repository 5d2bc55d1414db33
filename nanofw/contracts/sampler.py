"""Contract `sampler/1` (stable): how a token is sampled from logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.plan import NewRow
from nanofw.contracts.requests import SamplingParams

if TYPE_CHECKING:
    import torch

    from nanofw.contracts.communicator import Communicator


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerConfig:
    """Facts that a sampler is built with, beside its options.

    Attributes:
        vocab_size: tokens in the vocabulary; all logits beyond are padding.
        max_num_seqs: rows.
        max_model_len: positions.
        device: where the logits live.
        eos_token_ids: the model's end tokens, which `min_tokens` holds back.
        communicator: the ranks among which the vocabulary is split, or None.
    """

    vocab_size: int
    max_num_seqs: int
    max_model_len: int
    device: torch.device
    eos_token_ids: tuple[int, ...] = ()
    communicator: Communicator | None = None


@dataclass(slots=True, kw_only=True)
class SampledTokens:
    """What a sampler gives back for s rows, on the device.

    Attributes:
        token_ids: int32[s].
        failed: bool[s], rows without any finite logit, or with NaN or infinity; their ids mean
            nothing.
    """

    token_ids: torch.Tensor
    failed: torch.Tensor


@runtime_checkable
class Sampler(Protocol):
    """Implemented by samplers. Constructed as `target(options, SamplerConfig)`.

    Random numbers come from a counter: (seed, sample index, position, stream, global token
    id), so a sampled token depends on nothing else: not on the batch, the policy or the rank.
    """

    def check(self, sampling: SamplingParams, vocab_size: int) -> None:
        """Raise ValueError, naming what is allowed, when a parameter is not supported.

        The engine has checked the ranges of all parameters before.
        """
        ...

    def add(self, new: NewRow) -> None:
        """A request entered a row."""
        ...

    def remove(self, row: int) -> None:
        """The row is empty."""
        ...

    def sample(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> SampledTokens:
        """Sample one token for each of s rows.

        The executor finds log probabilities for every sampler, from the logits as the model
        made them.

        Args:
            logits: float32[s, vocab], after logits processors and host masks; may be
                overwritten.
            rows: int32[s] on the host; `rows[i]` is the row of logits[i].
            positions: int32[s] on the host, the position that the sampled token will have.
        """
        ...


@runtime_checkable
class DefersMemory(Protocol):
    """Optional for samplers and logits processors that allocate when a request first asks.

    Attributes:
        deferred_bytes: device memory that requests may still make it keep; the pool of KV leaves
            room for it.
    """

    @property
    def deferred_bytes(self) -> int: ...


@runtime_checkable
class DeviceSampler(Sampler, Protocol):
    """A sampler that keeps the parameters of its rows on the device.

    `sample_on_device` needs nothing from the host, so it can be captured in a CUDA graph, once
    per variant. There is one row more than `SamplerConfig.max_num_seqs`, the last: greedy, for
    padding.

    Attributes:
        variants: names of the sequences of kernels that rows can need.
    """

    variants: tuple[str, ...]

    def variant(self, rows: IntArray) -> str | None:
        """The variant that serves all of int32[s] rows; None: they need `sample`."""
        ...

    def sync(self) -> None:
        """Bring to the device what `add` changed. Called before each step that samples,
        never captured."""
        ...

    def sample_on_device(
        self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, variant: str
    ) -> SampledTokens:
        """Sample one token for each of s rows.

        Args:
            logits: [s, vocab] in any floating type. Not changed.
            rows: int64[s] on the device.
            positions: int64[s] on the device, the position that the sampled token will have.
        """
        ...


@runtime_checkable
class ShardSampler(Sampler, Protocol):
    """A sampler that works while every rank has the logits of its own tokens alone.

    The ranks agree through `SamplerConfig.communicator`, and sample what `sample` would from all
    logits. All of them answer `on_shards` alike.
    """

    def on_shards(self, rows: IntArray) -> bool:
        """Whether int32[s] rows can be sampled like this."""
        ...

    def sample_shard(
        self, logits: torch.Tensor, rows: IntArray, positions: IntArray
    ) -> SampledTokens:
        """Like `sample`, from float32[s, tokens of this rank] (`vocabulary_of_rank`)."""
        ...


@runtime_checkable
class ShardDeviceSampler(DeviceSampler, Protocol):
    """A sampler whose `sample_on_device` also works on the logits of each rank's own tokens.

    Attributes:
        shard_variants: the variants that can be sampled like this.
    """

    shard_variants: tuple[str, ...]

    def sample_shard_on_device(
        self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, variant: str
    ) -> SampledTokens:
        """Like `sample_on_device`, from [s, tokens of this rank] (`vocabulary_of_rank`)."""
        ...
