"""Contract `logits_processor/2` (stable): change logits before a token is sampled.

A processor that makes a request's favourite token more likely:

    class Favour(LogitsProcessor):
        def check(self, arguments): ...        # ValueError where they are not a token id
        def add_row(self, new):
            self.tokens[new.row] = new.arguments.get(self.config.name, -1)
            return self.tokens[new.row] >= 0   # whether there is something to do
        def apply(self, logits, rows, positions):
            for line, row in enumerate(rows.tolist()):
                logits[line, self.tokens[row]] += 5.0
            return logits

A processor declares in its manifest what it needs to know of the tokens before
(`needs_history`):

- `none`: nothing; its change depends on the request's arguments alone.
- `device`: counts or ids that it keeps on the device; it is told there of each sampled
  token (`sampled`), and nothing waits.
- `host`: the token ids, on the host. Such a processor is a `HostProcessor`; its rows run the
  forward pass first, wait for the masks, then sample, and only they do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.plan import NewRow
from nanofw.contracts.sampler import SamplerConfig
from nanofw.plugin_calls import place_of, raised

if TYPE_CHECKING:
    import torch


class LogitsProcessor(ABC):
    """Base of processors on the device. Only `apply` must be written.

    Rows persist: `add_row` and `remove_row` tell of changes, `apply` is called in each step in
    which at least one of its rows samples. State that must survive a preemption belongs to
    `NewRow.request_id`, and is dropped in `finish`. Random numbers come from
    `nanofw.kernels`, as a sampler's do, in a stream of their own (`STREAMS`). A method that is not
    overridden costs nothing. Arrays that a method is given are its own.

    Attributes:
        options: its validated options; None if the descriptor names no options.
        config: what it was constructed with.
        stage: "logits": before the sampler's biases and penalties; "scaled": after these and the
            temperature, before top-k, top-p and min-p.
    """

    stage: Literal["logits", "scaled"] = "logits"

    def __init__(self, options: Any, config: SamplerConfig) -> None:
        self.options = options
        self.config = config

    @property
    def deferred_bytes(self) -> int:
        """How many bytes of device memory it may allocate later, when requests need them. The KV
        pool leaves this room free."""
        return 0

    def check(self, arguments: Any) -> None:
        """Raise ValueError with the allowed values if the arguments of a request are wrong.

        `arguments` is None if the request has no arguments for this processor.
        """
        if arguments is not None:
            raise ValueError("this logits processor takes no arguments")

    def add_row(self, new: NewRow) -> bool:
        """A request entered a row; a request that was preempted brings its tokens.

        Returns whether the processor has anything to do for the request.
        """
        return True

    def remove_row(self, row: int) -> None:
        """The row is empty. Its request may return in another one."""

    def finish(self, request_id: str) -> None:
        """The request that had this `NewRow.request_id` has ended and will not return. Its row was
        already removed."""

    @abstractmethod
    def apply(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        """Change float32[s, vocab] logits, in place or not.

        Rows for which `add_row` said that there is nothing to do may be among them.

        Args:
            logits: of s rows.
            rows: int32[s] on the host; `rows[i]` is the row of logits[i].
            positions: int32[s] on the host, the position that the next token will have.

        Returns:
            float32[s, vocab], on the same device.
        """

    def sampled(self, rows: IntArray, token_ids: torch.Tensor) -> None:
        """`rows[i]` sampled `token_ids[i]`: int32[s] rows, and int32[s] tokens on the device.

        The tokens of a row so far are `NewRow.token_ids` and all tokens that this method has
        reported since. Called after each step in which at least one of its rows sampled, before
        the next `apply`. A request may finish with this token.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProcessorConfig:
    """What a host processor is constructed with.

    Attributes:
        vocab_size: token ids are below it.
        eos_token_ids: the model's end tokens.
        tokenizer_path: folder with `tokenizer.json`, or None.
        name: what the configuration calls it; requests carry its arguments under this name.
    """

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    tokenizer_path: str | None
    name: str = ""


class HostProcessor(ABC):
    """Base of processors that need the token ids on the host, as a grammar does. No torch.

    Only `mask` must be written. State is by request, not by row, so that it survives a
    preemption; it advances only on tokens that were committed.

    Attributes:
        options: its validated options; None if the descriptor names no options.
        config: what it was constructed with.
    """

    def __init__(self, options: Any, config: HostProcessorConfig) -> None:
        self.options = options
        self.config = config

    def check(self, arguments: Any) -> None:
        """Raise ValueError with the allowed values if the arguments of a request are wrong.

        `arguments` is None if the request has no arguments for this processor.
        """
        if arguments is not None:
            raise ValueError("this logits processor takes no arguments")

    def start(self, request_id: str, arguments: Any, prompt: IntArray) -> bool:
        """A request, or a further sample of it, was accepted. Returns whether it is constrained.

        After False, `advance`, `mask` and `finish` are not called for it.
        """
        return True

    def advance(self, request_id: str, token_ids: IntArray) -> None:
        """Tokens int32[k] were committed. A token after the end of a request is never passed."""

    @abstractmethod
    def mask(self, request_id: str, bits: IntArray) -> None:
        """Clear in `bits`, int32[ceil(vocab / 32)], the tokens that may not come next.

        Bit `v % 32` of word `v // 32` stands for token v. Use `bits.view(np.uint32)`, because
        bit 31 of an int32 is the sign. All bits are set at the start, and each processor clears
        some, in YAML order; so a token is allowed only if all processors allow it.
        """

    def mask_rows(self, request_ids: Sequence[str | None], bits: IntArray) -> Mapping[int, str]:
        """The masks of a whole step: clear in `bits[i]` what may not come next in request i.

        Args:
            request_ids: h ids, each at most once; None: leave `bits[i]` as it is.
            bits: int32[h, ceil(vocab / 32)], contiguous.

        Returns:
            A mapping from the index of a request to the reason why its mask could not be made; this
            request fails.
        """
        problems: dict[int, str] = {}
        for i, request_id in enumerate(request_ids):
            if request_id is None:
                continue
            try:
                self.mask(request_id, bits[i])
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                problems[i] = f"{raised(error)}{place_of(error)}"
        return problems

    def finish(self, request_id: str) -> None:
        """The request finished."""
