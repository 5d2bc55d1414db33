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
    """The chosen host processors, in YAML order, and which samples each of them constrains."""

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

    def start(self, request: Request, sample_ids: Sequence[str], prompt: IntArray) -> bool:
        """Whether any processor constrains the request, whose samples have these ids.

        Raises ValueError to refuse it.
        """
        try:
            for sample_id in sample_ids:
                self._start(request, sample_id, prompt)
        except ValueError:
            for sample_id in sample_ids:
                self.finish_sample(sample_id)
            raise
        return sample_ids[0] in self._constrained

    def _start(self, request: Request, sample_id: str, prompt: IntArray) -> None:
        names: list[str] = []
        for name, processor in self._processors.items():
            arguments = request.arguments.get(name)
            try:
                processor.check(arguments)
                if processor.start(sample_id, arguments, prompt):
                    names.append(name)
                    self._constrained[sample_id] = names
            except Exception as error:
                raise ValueError(f"logits processor {name}: {error}") from error

    def blank(self, num_rows: int) -> IntArray:
        """Masks int32[num_rows, words] that allow everything."""
        return np.full((num_rows, self._num_words), ALL_ALLOWED, np.int32)

    def mask_rows(self, sample_ids: Sequence[str | None], bits: IntArray) -> dict[int, str]:
        """Clear in each row of `bits`, int32[h, words], the tokens that may not come next.

        Args:
            sample_ids: the sample of each row; None: the row stays as it is.

        Returns:
            By row of `bits` for which a processor failed: what the user is told.
        """
        problems: dict[int, str] = {}
        for name, processor in self._processors.items():
            wanted = [
                sample_id if i not in problems and self._constrains(name, sample_id) else None
                for i, sample_id in enumerate(sample_ids)
            ]
            if any(sample_id is not None for sample_id in wanted):
                problems |= self._mask_rows(name, processor, wanted, bits)
        return problems

    def _constrains(self, name: str, sample_id: str | None) -> bool:
        return sample_id is not None and name in self._constrained.get(sample_id, ())

    def _mask_rows(
        self, name: str, processor: HostProcessor, sample_ids: Sequence[str | None], bits: IntArray
    ) -> dict[int, str]:
        if isinstance(processor, MasksRows):
            try:
                failed = processor.mask_rows(sample_ids, bits)
            except Exception as error:
                failed = {
                    i: _reason(error)
                    for i, sample_id in enumerate(sample_ids)
                    if sample_id is not None
                }
            return {i: f"logits processor {name} failed: {why}" for i, why in failed.items()}
        problems: dict[int, str] = {}
        for i, sample_id in enumerate(sample_ids):
            if sample_id is None:
                continue
            try:
                processor.mask(sample_id, bits[i])
            except Exception as error:
                problems[i] = f"logits processor {name} failed: {_reason(error)}"
        return problems

    def advance(self, sample_id: str, token_ids: IntArray) -> str | None:
        """Hand over committed tokens; returns what the user is told if a processor failed."""
        for name in self._constrained.get(sample_id, ()):
            try:
                self._processors[name].advance(sample_id, token_ids)
            except Exception as error:
                return f"logits processor {name} failed: {_reason(error)}"
        return None

    def finish_sample(self, sample_id: str) -> None:
        """The sample is finished, for whatever reason."""
        for name in self._constrained.pop(sample_id, ()):
            self._processors[name].finish(sample_id)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
