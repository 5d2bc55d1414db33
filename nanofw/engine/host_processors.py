"""Processors that need the token ids on the host: one place that calls them.

A processor that fails on a request fails that request, never the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from itertools import islice
from typing import cast

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.logits_processor import HostProcessor
from nanofw.contracts.requests import Request
from nanofw.plugin_calls import PluginCalls, is_flag

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
            name: PluginCalls((labels or {}).get(name, f"logits_processor {name!r}"))
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
            given = sample_id, arguments, prompt.copy()
            constrains: object = calls.ask("start", processor.start, *given)
            if not is_flag(constrains):
                raise ValueError(str(calls.wrong("start", constrains, "True or False")))
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
        calls, processor = self._calls[name], self._processors[name]
        asked = {i for i, sample_id in enumerate(sample_ids) if sample_id is not None}
        try:
            failed: object = calls.ask("mask_rows", processor.mask_rows, tuple(sample_ids), bits)
            whys = calls.ask("mask_rows", _reasons, failed, asked)
        except ValueError as error:
            return dict.fromkeys(asked, str(error))
        if whys is None:
            wanted = f"a mapping from some of the indices {sorted(asked)} to sentences"
            return dict.fromkeys(asked, str(calls.wrong("mask_rows", failed, wanted)))
        return {i: f"{calls.label}: mask_rows() failed: {why}" for i, why in whys.items()}

    def advance(self, sample_id: str, token_ids: IntArray) -> str | None:
        """Hand over committed tokens; returns what the user is told if a processor failed."""
        for name in self._constrained.get(sample_id, ()):
            processor = self._processors[name]
            try:
                self._calls[name].ask("advance", processor.advance, sample_id, token_ids.copy())
            except ValueError as error:
                return str(error)
        return None

    def finish_sample(self, sample_id: str) -> None:
        """The sample is finished, for whatever reason."""
        for name in self._constrained.pop(sample_id, ()):
            self._calls[name].tell("finish", self._processors[name].finish, sample_id)


def _reasons(failed: object, asked: Set[int]) -> dict[int, str] | None:
    """By index, why a mask could not be made; None where the answer does not say so."""
    if not isinstance(failed, Mapping):
        return None
    items = cast("Mapping[int, str]", failed).items()
    found = dict(islice(items, len(asked) + 1))
    return found if found.keys() <= asked and all(type(w) is str for w in found.values()) else None
