"""Processors that need the token ids on the host: one place that calls them.

A processor that fails on a request fails that request, never the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.logits_processor import HostProcessor
from nanofw.contracts.requests import Request
from nanofw.plugin_calls import PluginCalls

ALL_ALLOWED = -1
"""A mask word with every bit set."""


class HostProcessors:
    """The chosen host processors, in YAML order, and which samples each of them constrains.

    Args:
        processors: by the name under which requests bring arguments.
        labels: what messages call them; a name without one is its own.
    """

    def __init__(
        self,
        processors: Mapping[str, HostProcessor],
        vocab_size: int,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._processors = dict(processors)
        self._calls = {
            name: PluginCalls(
                (labels or {}).get(name, f"logits_processor {name!r}"), f"logits processor {name}"
            )
            for name in processors
        }
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
            arguments, calls = request.arguments.get(name), self._calls[name]
            calls.check(processor.check, arguments)
            constrains: Any = calls.ask(processor.start, sample_id, arguments, prompt.copy())
            if not isinstance(constrains, (bool, np.bool_)):
                raise ValueError(
                    f"{calls.label}: start() returned {constrains!r}, which is no bool"
                )
            if constrains:
                names.append(name)
                self._constrained[sample_id] = names

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
        for name in self._processors:
            wanted = [
                sample_id if i not in problems and self._constrains(name, sample_id) else None
                for i, sample_id in enumerate(sample_ids)
            ]
            if any(sample_id is not None for sample_id in wanted):
                problems |= self._mask_rows(name, wanted, bits)
        return problems

    def _constrains(self, name: str, sample_id: str | None) -> bool:
        return sample_id is not None and name in self._constrained.get(sample_id, ())

    def _mask_rows(self, name: str, sample_ids: list[str | None], bits: IntArray) -> dict[int, str]:
        """By row, why the processor failed; a call that fails as a whole fails all its rows."""
        calls, problem = self._calls[name], ""
        try:
            failed: Any = self._processors[name].mask_rows(tuple(sample_ids), bits)
            if isinstance(failed, Mapping):
                whys = cast("Mapping[int, str]", failed).items()
                return {i: f"{calls.label}: mask_rows() failed: {why}" for i, why in whys}
            problem = f"{calls.label}: mask_rows() returned {failed!r}; it must be a mapping"
        except Exception as error:
            problem = calls.failure("mask_rows", error)
        return {i: problem for i, sample_id in enumerate(sample_ids) if sample_id is not None}

    def advance(self, sample_id: str, token_ids: IntArray) -> str | None:
        """Hand over committed tokens; returns what the user is told if a processor failed."""
        for name in self._constrained.get(sample_id, ()):
            try:
                self._processors[name].advance(sample_id, token_ids)
            except Exception as error:
                return self._calls[name].failure("advance", error)
        return None

    def finish_sample(self, sample_id: str) -> None:
        """The sample is finished, for whatever reason."""
        for name in self._constrained.pop(sample_id, ()):
            self._calls[name].tell(self._processors[name].finish, sample_id)
