"""Drives a host processor as an engine does: requests that walk through allowed tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nanofw.contracts.arrays import BoolArray
from nanofw.contracts.logits_processor import HostProcessor, HostProcessorConfig

PROMPT = (11, 12, 13)
"""Of the first request; those of the others are longer."""


@dataclass(slots=True)
class MaskedRequest:
    """A request, its masks and the tokens that it took.

    Attributes:
        number: says which of the allowed tokens it takes.
        masks: bool[vocab] before each token.
    """

    number: int
    argument: object
    id: str = ""
    tokens: list[int] = field(default_factory=list[int])
    masks: list[BoolArray] = field(default_factory=list[BoolArray])

    def __post_init__(self) -> None:
        self.id = self.id or f"request-{self.number}"

    def __str__(self) -> str:
        return f"the request with {self.argument!r}"

    def difference(self, other: MaskedRequest) -> str:
        """Where the walk of another request parts from this one; empty: nowhere."""
        for number, (one, two) in enumerate(zip(self.masks, other.masks, strict=False)):
            wrong = np.flatnonzero(one != two)
            if len(wrong):
                return (
                    f"{self}: after {number} tokens the token {int(wrong[0])} is "
                    f"{'allowed' if two[wrong[0]] else 'forbidden'}, and was not before"
                )
        if len(self.masks) != len(other.masks):
            return f"{self}: {len(other.masks)} masks, and {len(self.masks)} before"
        return ""


class HostProcessorDriver:
    """One processor and its requests."""

    def __init__(
        self, processor: HostProcessor, config: HostProcessorConfig, num_steps: int
    ) -> None:
        self.processor: HostProcessor = processor
        self.config: HostProcessorConfig = config
        self.num_steps: int = num_steps
        self._num_words = -(-config.vocab_size // 32)

    def start(self, request: MaskedRequest) -> bool:
        """Whether the processor constrains the request."""
        self.processor.check(request.argument)
        prompt = np.array((*PROMPT, *range(request.number)), np.int32)
        answer: object = self.processor.start(request.id, request.argument, prompt)
        assert isinstance(answer, (bool, np.bool_)), (
            f"start() returned {answer!r} for {request.argument!r}, not True or False"
        )
        return bool(answer)

    def mask(self, request: MaskedRequest, allowed: BoolArray | None = None) -> BoolArray:
        """bool[vocab], what may come next; of what others allow, where it is given."""
        bits = self._bits(allowed)
        self.processor.mask(request.id, bits)
        return self._flags(bits)

    def mask_rows(
        self, requests: Sequence[MaskedRequest | None]
    ) -> tuple[list[BoolArray], Mapping[int, str]]:
        """bool[vocab] of each request of a step, and what `mask_rows` tells of."""
        bits = np.full((len(requests), self._num_words), -1, np.int32)
        ids = [None if request is None else request.id for request in requests]
        problems = self.processor.mask_rows(ids, bits)
        return [self._flags(line) for line in bits], problems

    def step(self, request: MaskedRequest) -> bool:
        """Take one of the allowed tokens; whether the request goes on."""
        mask = self.mask(request)
        request.masks.append(mask)
        choices = np.flatnonzero(mask)
        if not len(choices):
            return False
        random = np.random.default_rng([request.number, len(request.tokens)])
        token = int(choices[random.integers(len(choices))])
        request.tokens.append(token)
        self.advance(request, [token])
        return token not in self.config.eos_token_ids

    def advance(self, request: MaskedRequest, tokens: Sequence[int]) -> None:
        """Tokens were committed."""
        self.processor.advance(request.id, np.array(tokens, np.int32))

    def run(
        self,
        requests: Sequence[MaskedRequest],
        *,
        num_steps: int | None = None,
        between: Callable[[], object] | None = None,
    ) -> None:
        """The whole lives of requests, side by side.

        Args:
            between: called after the first step.
        """
        live = [request for request in requests if self.start(request)]
        for number in range(num_steps or self.num_steps):
            live = [request for request in live if self.step(request)]
            if number == 0 and between is not None:
                between()
        for request in requests:
            self.processor.finish(request.id)

    def random_bits(self, request: MaskedRequest) -> BoolArray:
        """bool[vocab], half of them set."""
        random = np.random.default_rng([7, request.number, len(request.tokens)])
        return random.random(self.config.vocab_size) < 0.5

    def _bits(self, allowed: BoolArray | None) -> np.ndarray:
        if allowed is None:
            return np.full(self._num_words, -1, np.int32)
        padded = np.zeros(32 * self._num_words, np.bool_)
        padded[: len(allowed)] = allowed
        return np.packbits(padded, bitorder="little").view(np.int32).copy()

    def _flags(self, bits: np.ndarray) -> BoolArray:
        flags = np.unpackbits(bits.view(np.uint8), bitorder="little")
        return flags[: self.config.vocab_size].astype(np.bool_)
