"""Processors that need the token ids on the host: one place that calls them.

A processor that fails on a request fails that request, never the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.logits_processor import HostProcessor, MasksRows
from nanofw.contracts.requests import Request

ALL_ALLOWED = -1
"""A mask word with every bit set."""


class HostProcessors:
    """The chosen host processors, in YAML order, and whom each of them constrains."""

    def __init__(self, processors: Mapping[str, HostProcessor], vocab_size: int) -> None:
        self._processors = dict(processors)
        self._constrained: dict[str, list[str]] = {}
        self._num_words = -(-vocab_size // 32)

    @property
    def names(self) -> tuple[str, ...]:
        """In YAML order."""
        return tuple(self._processors)

    def __bool__(self) -> bool:
        return bool(self._processors)

    def start(self, request: Request, keys: Sequence[str], prompt: IntArray) -> bool:
        """Whether any processor constrains the request, whose samples are named by `keys`.

        Raises ValueError to refuse it.
        """
        try:
            for key in keys:
                self._start(request, key, prompt)
        except ValueError:
            for key in keys:
                self.finish(key)
            raise
        return keys[0] in self._constrained

    def _start(self, request: Request, key: str, prompt: IntArray) -> None:
        names: list[str] = []
        for name, processor in self._processors.items():
            arguments = request.arguments.get(name)
            try:
                processor.check(arguments)
                if processor.start(key, arguments, prompt):
                    names.append(name)
                    self._constrained[key] = names
            except Exception as error:
                raise ValueError(f"logits processor {name}: {error}") from error

    def blank(self, num_rows: int) -> IntArray:
        """Masks int32[num_rows, words] that allow everything."""
        return np.full((num_rows, self._num_words), ALL_ALLOWED, np.int32)

    def mask_rows(self, keys: Sequence[str | None], bits: IntArray) -> dict[int, str]:
        """Clear in each line of `bits`, int32[h, words], what may not come next.

        Args:
            keys: whose lines they are; None: nobody's, the line stays as it is.

        Returns:
            The lines for which a processor failed, each with a sentence.
        """
        problems: dict[int, str] = {}
        for name, processor in self._processors.items():
            wanted = [
                key if i not in problems and self._constrains(name, key) else None
                for i, key in enumerate(keys)
            ]
            if any(key is not None for key in wanted):
                problems |= self._mask_rows(name, processor, wanted, bits)
        return problems

    def _constrains(self, name: str, key: str | None) -> bool:
        return key is not None and name in self._constrained.get(key, ())

    def _mask_rows(
        self, name: str, processor: HostProcessor, keys: Sequence[str | None], bits: IntArray
    ) -> dict[int, str]:
        if isinstance(processor, MasksRows):
            try:
                failed = processor.mask_rows(keys, bits)
            except Exception as error:
                failed = {i: _reason(error) for i, key in enumerate(keys) if key is not None}
            return {i: f"logits processor {name} failed: {why}" for i, why in failed.items()}
        problems: dict[int, str] = {}
        for i, key in enumerate(keys):
            if key is None:
                continue
            try:
                processor.mask(key, bits[i])
            except Exception as error:
                problems[i] = f"logits processor {name} failed: {_reason(error)}"
        return problems

    def advance(self, key: str, token_ids: IntArray) -> str | None:
        """Committed tokens; the sentence of the processor that failed, or None."""
        for name in self._constrained.get(key, ()):
            try:
                self._processors[name].advance(key, token_ids)
            except Exception as error:
                return f"logits processor {name} failed: {_reason(error)}"
        return None

    def finish(self, key: str) -> None:
        """The request ended, in whatever way."""
        for name in self._constrained.pop(key, ()):
            self._processors[name].finish(key)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
