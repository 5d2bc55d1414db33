"""Contract `sampler/2` (stable): how a token is sampled from logits.

A sampler that takes the most likely token:

    class Greedy(Sampler):
        def sample(self, logits, rows, positions, *, scaled=False, sharded=False):
            highest, token_ids = logits.max(dim=-1)
            return SampledTokens(token_ids=token_ids.int(), failed=~highest.isfinite())

Logits pass through these steps: the model makes them, logits processors change them, masks of the
host forbid tokens, `edit` adds biases and penalties, `sample` samples. If a row has a processor of
the stage "scaled", `scale` and these processors come between `edit` and `sample`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.plan import NewRow
from nanofw.contracts.requests import SamplingParams

if TYPE_CHECKING:
    import torch

    from nanofw.contracts.communicator import Communicator


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerConfig:
    """Facts that a sampler or a logits processor is constructed with.

    Attributes:
        vocab_size: number of tokens in the vocabulary; logits past this number are padding.
        max_num_seqs: number of rows.
        max_model_len: number of positions.
        device: where the logits live.
        name: what the configuration calls it; requests carry its arguments under this name.
        eos_token_ids: the model's end tokens, which `min_tokens` forbids at first.
        communicator: the ranks among which the vocabulary is split, or None.
    """

    vocab_size: int
    max_num_seqs: int
    max_model_len: int
    device: torch.device
    name: str = ""
    eos_token_ids: tuple[int, ...] = ()
    communicator: Communicator | None = None


@dataclass(slots=True, kw_only=True)
class SampledTokens:
    """What a sampler gives back for s rows, on the device.

    Attributes:
        token_ids: int32[s].
        failed: bool[s], rows without any finite logit, or with a logit that is NaN or +inf. The
            token ids of these rows have no meaning, but must be in the vocabulary.
    """

    token_ids: torch.Tensor
    failed: torch.Tensor


class Sampler(ABC):
    """Base of samplers. Only `sample` must be written.

    Random numbers come from a counter: (seed, sample index, position, stream, global token
    id), so a sampled token depends on nothing else: not on the batch, the policy or the rank.

    A method that is not overridden costs nothing. Arrays that a method is given are its own.
    `nanofw.samplers.LogitEdits` does all that parameters do to single logits.

    Attributes:
        options: its validated options; None if the descriptor names no options.
        config: what it was constructed with.
    """

    def __init__(self, options: Any, config: SamplerConfig) -> None:
        self.options = options
        self.config = config

    @property
    def deferred_bytes(self) -> int:
        """How many bytes of device memory the sampler may allocate later, when requests need them.
        The KV pool leaves this room free."""
        return 0

    def check(self, sampling: SamplingParams, arguments: Any) -> None:
        """Raise ValueError, naming what is allowed, if a parameter is not supported.

        The engine has checked the ranges of all parameters before.

        Args:
            arguments: what the request has under the sampler's name; None if it has nothing.
        """
        if arguments is not None:
            raise ValueError("this sampler takes no arguments")

    def add_row(self, new: NewRow) -> None:
        """A request entered a row; a request that was preempted brings its tokens."""

    def remove_row(self, row: int) -> None:
        """The row is empty. Its request may return in another one."""

    def finish(self, request_id: str) -> None:
        """The request that had this `NewRow.request_id` has ended and will not return. Its row was
        already removed."""

    def edit(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        """Change single logits: biases, bans, penalties. The arguments are those of `sample`.

        Returns float32[s, vocab], perhaps the same tensor. A logit that is NaN or +inf must stay
        so.
        """
        return logits

    def scale(self, logits: torch.Tensor, rows: IntArray) -> torch.Tensor:
        """Apply the temperatures, for processors of the stage "scaled".

        Returns float32[s, vocab] logits whose softmax is the distribution before top-k, top-p and
        min-p. In rows that take the most likely token, the order of the logits does not change.
        """
        return logits

    @abstractmethod
    def sample(
        self,
        logits: torch.Tensor,
        rows: IntArray,
        positions: IntArray,
        *,
        scaled: bool = False,
        sharded: bool = False,
    ) -> SampledTokens:
        """Sample one token for each of s rows.

        The executor finds log probabilities for every sampler, from the logits as the model
        made them.

        Args:
            logits: float32[s, vocab], after logits processors, host masks and `edit`; may be
                overwritten.
            rows: int32[s] on the host; `rows[i]` is the row of logits[i].
            positions: int32[s] on the host, the position that the sampled token will have.
            scaled: the temperatures were applied by `scale`.
            sharded: `can_shard` allowed it: logits are float32[s, tokens of this rank]
                (`vocabulary_of_rank`), and were not given to `edit`. The ranks agree on a token
                through `SamplerConfig.communicator`. They must sample the same token as from all
                logits.
        """

    def can_shard(self, rows: IntArray) -> bool:
        """Whether int32[s] rows can be sampled if each rank has only the logits of its own tokens.

        All ranks must give the same answer.
        """
        return False


class DeviceSampler(Sampler):
    """Base of samplers that keep the parameters of their rows on the device.

    `sample_on_device` needs nothing from the host, so it can be captured in a CUDA graph, once
    per variant. There is one row more than `SamplerConfig.max_num_seqs`, the last: greedy, for
    padding.

    Attributes:
        variants: names of the variants of `sample_on_device`; each is one sequence of kernels.
        shard_variants: the variants that also work if each rank has only the logits of its own
            tokens.
    """

    variants: tuple[str, ...] = ()
    shard_variants: tuple[str, ...] = ()

    @abstractmethod
    def variant(self, rows: IntArray) -> str | None:
        """The variant that serves all of int32[s] rows; None: they need `edit` and `sample`."""

    def sync(self) -> None:
        """Copy to the device what `add_row` changed. Called before each step that samples; it is
        never captured."""

    @abstractmethod
    def sample_on_device(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        variant: str,
        *,
        sharded: bool = False,
    ) -> SampledTokens:
        """Sample one token for each of s rows.

        Args:
            logits: [s, vocab] in any floating type; [s, tokens of this rank] if `sharded`. Do not
                change them.
            rows: int64[s] on the device.
            positions: int64[s] on the device, the position that the sampled token will have.
            sharded: the variant is one of `shard_variants`.
        """
