"""Contract `logits_processor/1` (stable): change logits before a token is sampled.

A processor declares in its manifest what it needs to know of the tokens before
(`needs_history`):

- `none`: nothing; its change depends on the request's arguments alone.
- `device`: counts or ids that it keeps on the device; it is told there of each sampled
  token (`HearsSampledTokens`), and nothing waits.
- `host`: the token ids, on the host. Such a processor is a `HostProcessor`; its rows run the
  forward pass first, wait for the masks, then sample, and only they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.plan import NewRow

if TYPE_CHECKING:
    import torch


@runtime_checkable
class LogitsProcessor(Protocol):
    """A processor on the device. Constructed as `target(options, SamplerConfig)`.

    Rows persist: `add` and `remove` tell of changes, `apply` is called in each step in which
    at least one of its rows samples.
    """

    def check(self, arguments: Any) -> None:
        """Raise ValueError with the allowed values when a request's arguments are wrong.

        None: the request has none for this processor.
        """
        ...

    def add(self, new: NewRow) -> bool:
        """A request entered a row. Returns whether the processor has anything to do for it."""
        ...

    def remove(self, row: int) -> None:
        """The row is empty."""
        ...

    def apply(self, logits: torch.Tensor, rows: IntArray) -> torch.Tensor:
        """Change float32[s, vocab] logits, in place or not; `rows[i]` is the row of logits[i]."""
        ...


@runtime_checkable
class HearsSampledTokens(LogitsProcessor, Protocol):
    """A processor with `needs_history: device`.

    What comes before a row's next token is `NewRow.token_ids`, given to `add`, and every token
    that `on_sampled` told of since. Tokens of a step in flight are told before the next `apply`.
    """

    def on_sampled(self, rows: IntArray, token_ids: torch.Tensor) -> None:
        """Each of int32[s] rows sampled one of int32[s] tokens, which are on the device.

        Called after each step in which at least one of its rows sampled. A request may finish
        with this token; then the next one in its row starts with `add`.
        """
        ...


@runtime_checkable
class HostProcessor(Protocol):
    """A processor that needs the token ids on the host, as a grammar does. No torch.

    Constructed as `target(options, HostProcessorConfig)`. State is by request, not by row, so
    that it survives a preemption; it advances only on tokens that were committed.
    """

    def check(self, arguments: Any) -> None:
        """Raise ValueError with the allowed values when a request's arguments are wrong.

        None: the request has none for this processor.
        """
        ...

    def start(self, request_id: str, arguments: Any, prompt: IntArray) -> bool:
        """A request was accepted. Returns whether the processor constrains it."""
        ...

    def advance(self, request_id: str, token_ids: IntArray) -> None:
        """Tokens int32[k] were committed; a surplus token never gets here."""
        ...

    def mask(self, request_id: str, bits: IntArray) -> None:
        """Clear in `bits`, int32[ceil(vocab / 32)], the tokens that may not come next.

        Bit `v % 32` of word `v // 32` stands for token v. Bits come in set; several processors
        are thus intersected in YAML order.
        """
        ...

    def finish(self, request_id: str) -> None:
        """The request finished."""
        ...


@runtime_checkable
class MasksRows(Protocol):
    """Optional for a `HostProcessor`: the masks of a whole step in one call, instead of `mask`."""

    def mask_rows(self, request_ids: Sequence[str | None], bits: IntArray) -> Mapping[int, str]:
        """Clear in `bits[i]` the tokens that may not come next in request i, as `mask` does.

        Args:
            request_ids: h ids, each at most once; None: leave `bits[i]` as it is.
            bits: int32[h, ceil(vocab / 32)], contiguous.

        Returns:
            By index, why a mask could not be made; its request fails.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProcessorConfig:
    """What a host processor is built with.

    Attributes:
        tokenizer_path: folder with `tokenizer.json`, or None.
    """

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    tokenizer_path: str | None
