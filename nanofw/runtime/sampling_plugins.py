"""The sampler and the logits processors of one rank: made, told of rows, and held to their answers.

Whatever one of them raises, or answers wrongly, is an error that names it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from nanofw.contracts.arrays import BoolArray, IntArray
from nanofw.contracts.communicator import Communicator
from nanofw.contracts.executor import ExecutorConfig
from nanofw.contracts.logits_processor import LogitsProcessor
from nanofw.contracts.plan import NewRow
from nanofw.contracts.requests import Request
from nanofw.contracts.sampler import DeviceSampler, SampledTokens, Sampler, SamplerConfig
from nanofw.errors import PluginLoadError, shown
from nanofw.plugin_calls import PluginCalls, described
from nanofw.plugins import Component

STAGES = ("logits", "scaled")


@dataclass(slots=True)
class Processor:
    """A logits processor and the rows that it has something to do for.

    Attributes:
        name: under which requests bring arguments.
        is_scaled: it acts after the temperatures.
        hears, forgets: it wants to know what was sampled, and which requests ended.
    """

    name: str
    target: LogitsProcessor
    calls: PluginCalls
    active: BoolArray
    is_scaled: bool
    hears: bool
    forgets: bool

    def apply(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        """The processor's logits, of the shape and type of those that it was given."""
        given = logits, rows.copy(), positions.copy()
        found = self.calls.call("apply", self.target.apply, *given)
        return checked_logits(self.calls, "apply", found, logits)

    def sampled(self, rows: IntArray, token_ids: torch.Tensor) -> None:
        """Tell which tokens were sampled."""
        if self.hears:
            self.calls.call("sampled", self.target.sampled, rows.copy(), token_ids)


class SamplingPlugins:
    """The sampler and the logits processors of the device, in YAML order.

    Attributes:
        sampler: the sampler itself, and `calls` into it.
        device_sampler: the same if it samples on the device alone, else None.
        variants, shard_variants: of `device_sampler`; empty without one.
        edits, scales, shards: `edit`, `scale`, `can_shard` is overridden.
    """

    def __init__(
        self, config: ExecutorConfig, communicator: Communicator, device: torch.device
    ) -> None:
        facts = SamplerConfig(
            vocab_size=config.spec.vocab_size,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            device=device,
            eos_token_ids=config.spec.eos_token_ids,
            communicator=communicator,
        )
        chosen = config.components.required("sampler")
        self.name: str = chosen.name
        self.sampler: Sampler = chosen.make(Sampler, replace(facts, name=chosen.name))
        self.calls: PluginCalls = calls_of(chosen)
        kind = type(self.sampler)
        self.device_sampler: DeviceSampler | None = (
            self.sampler if isinstance(self.sampler, DeviceSampler) else None
        )
        self.variants: tuple[str, ...] = self._names("variants")
        self.shard_variants: tuple[str, ...] = self._names("shard_variants")
        self.edits: bool = kind.edit is not Sampler.edit
        self.scales: bool = kind.scale is not Sampler.scale
        self.shards: bool = kind.can_shard is not Sampler.can_shard
        self._forgets = kind.finish is not Sampler.finish
        self.processors: list[Processor] = [
            _made(component, replace(facts, name=component.name))
            for component in config.components.logits_processors
        ]
        self._vocab_size = config.spec.vocab_size
        self._ids: dict[int, str] = {}  # of the rows that have a request
        self._rows: dict[str, int] = {}

    def _names(self, attribute: str) -> tuple[str, ...]:
        """A tuple of names that a sampler on the device declares."""
        if self.device_sampler is None:
            return ()
        names: object = self.calls.call(attribute, getattr, self.sampler, attribute)
        if isinstance(names, tuple) and all(type(name) is str for name in names):
            return names
        raise self.calls.wrong(attribute, names, "a tuple of names")

    @property
    def deferred_bytes(self) -> int:
        """Device memory that they may still allocate, when requests ask."""
        name, total = "deferred_bytes", 0
        for part, calls in [(self.sampler, self.calls)] + [
            (processor.target, processor.calls) for processor in self.processors
        ]:
            total += calls.integer(name, calls.call(name, getattr, part, name), 0)
        return total

    def check(self, request: Request) -> None:
        """Raise ValueError when sampling parameters or arguments are not possible."""
        arguments = request.arguments
        self.calls.check(self.sampler.check, request.sampling, arguments.get(self.name))
        for processor in self.processors:
            processor.calls.check(processor.target.check, arguments.get(processor.name))

    def add_row(self, new: NewRow) -> None:
        """A request entered a row."""
        self._ids[new.row], self._rows[new.request_id] = new.request_id, new.row
        self.calls.call("add_row", self.sampler.add_row, new)
        for processor in self.processors:
            has_work: object = processor.calls.call("add_row", processor.target.add_row, new)
            processor.active[new.row] = processor.calls.flag("add_row", has_work)

    def remove_row(self, row: int) -> None:
        """The row is empty. Does nothing for one whose request ended before."""
        request_id = self._ids.pop(row, None)
        if request_id is None:
            return
        del self._rows[request_id]
        self.calls.call("remove_row", self.sampler.remove_row, row)
        for processor in self.processors:
            processor.calls.call("remove_row", processor.target.remove_row, row)
            processor.active[row] = False

    def finish(self, request_id: str) -> None:
        """A request ended. Its row is removed here if its last step was submitted just before."""
        row = self._rows.get(request_id)
        if row is not None:
            self.remove_row(row)
        if self._forgets:
            self.calls.tell("finish", self.sampler.finish, request_id)
        for processor in self.processors:
            if processor.forgets:
                processor.calls.tell("finish", processor.target.finish, request_id)

    def active(self, rows: IntArray) -> list[Processor]:
        """The processors that have something to do for int32[s] rows."""
        return [processor for processor in self.processors if processor.active[rows].any()]

    def check_ids(self, token_ids: IntArray) -> None:
        """Raise where a sampled token is not in the vocabulary: int32[s], on the host."""
        if len(token_ids) and int(token_ids.view(np.uint32).max()) >= self._vocab_size:
            wrong = token_ids[(token_ids < 0) | (token_ids >= self._vocab_size)]
            wanted = f"a token id from 0 to {self._vocab_size - 1}"
            raise self.calls.wrong("sample", int(wrong[0]), wanted)

    # -- calls into the sampler -------------------------------------------------------------

    def variant(self, rows: IntArray) -> str | None:
        """The variant with which the device alone can sample these rows, or None."""
        sampler = self.device_sampler
        if sampler is None:
            return None
        self.calls.call("sync", sampler.sync)
        variant: object = self.calls.call("variant", sampler.variant, rows.copy())
        if variant is None or (type(variant) is str and variant in self.variants):
            return variant
        raise self.calls.wrong("variant", variant, f"one of {self.variants}, or None")

    def edit(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        """Logits after biases and penalties."""
        if not self.edits:
            return logits
        given = logits, rows.copy(), positions.copy()
        found = self.calls.call("edit", self.sampler.edit, *given)
        return checked_logits(self.calls, "edit", found, logits)

    def scale(self, logits: torch.Tensor, rows: IntArray) -> torch.Tensor:
        """Logits after the temperatures."""
        if not self.scales:
            return logits
        found = self.calls.call("scale", self.sampler.scale, logits, rows.copy())
        return checked_logits(self.calls, "scale", found, logits)

    def can_shard(self, rows: IntArray) -> bool:
        """Whether the sampler needs only the logits of each rank's own tokens."""
        if not self.shards:
            return False
        answer: object = self.calls.call("can_shard", self.sampler.can_shard, rows.copy())
        return self.calls.flag("can_shard", answer)

    def sample(
        self,
        logits: torch.Tensor,
        rows: IntArray,
        positions: IntArray,
        *,
        scaled: bool = False,
        sharded: bool = False,
    ) -> SampledTokens:
        """A token for each of s rows."""
        given = logits, rows.copy(), positions.copy()
        sample = self.sampler.sample
        sampled = self.calls.call("sample", sample, *given, scaled=scaled, sharded=sharded)
        return _checked_tokens(self.calls, "sample", sampled, logits)

    def sample_on_device(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        variant: str,
        *,
        sharded: bool = False,
    ) -> SampledTokens:
        """A token for each of s rows, with nothing from the host."""
        sampler = self.device_sampler
        assert sampler is not None
        given, method = (logits, rows, positions, variant), "sample_on_device"
        sampled = self.calls.call(method, sampler.sample_on_device, *given, sharded=sharded)
        return _checked_tokens(self.calls, method, sampled, logits)


def _made(component: Component, config: SamplerConfig) -> Processor:
    target = component.make(LogitsProcessor, config)
    kind, calls = type(target), calls_of(component)
    stage: object = calls.call("stage", getattr, target, "stage")
    if type(stage) is not str or stage not in STAGES:
        wanted = " or ".join(map(repr, STAGES))
        raise PluginLoadError(f"{component.label}: stage is {shown(stage)}; it must be {wanted}")
    return Processor(
        name=component.name,
        target=target,
        calls=calls,
        active=np.zeros(config.max_num_seqs, np.bool_),
        is_scaled=stage == "scaled",
        hears=kind.sampled is not LogitsProcessor.sampled,
        forgets=kind.finish is not LogitsProcessor.finish,
    )


def calls_of(component: Component) -> PluginCalls:
    """Calls into a component, under its label."""
    return PluginCalls(component.label)


def checked_logits(
    calls: PluginCalls, method: str, found: Any, given: torch.Tensor
) -> torch.Tensor:
    """What a method made of logits, which must be as many of the same type and place."""
    if found is given:
        return found
    if (
        isinstance(found, torch.Tensor)
        and found.shape == given.shape
        and found.dtype == given.dtype
        and found.device == given.device
    ):
        return found
    raise calls.error(f"{method}() returned {_kind(found)}; it must be {described(given)}")


def _checked_tokens(
    calls: PluginCalls, method: str, found: object, logits: torch.Tensor
) -> SampledTokens:
    """What a sampler made of logits: a token for each line of them, where they are."""
    if not isinstance(found, SampledTokens):
        raise calls.error(f"{method}() returned {_kind(found)}; it must be SampledTokens")
    shape, device = logits.shape[:1], logits.device
    for name, dtype in (("token_ids", torch.int32), ("failed", torch.bool)):
        value: object = getattr(found, name)
        if not (
            isinstance(value, torch.Tensor)
            and value.dtype == dtype
            and value.shape == shape
            and value.device == device
        ):
            wanted = f"{str(dtype).removeprefix('torch.')}[{len(logits)}] on {device}"
            raise calls.error(f"{method}() returned {name} {_kind(value)}; it must be {wanted}")
    return found


def _kind(value: object) -> str:
    """`float32[2, 64] on cpu`, or the type of what is not a tensor."""
    return described(value) if isinstance(value, torch.Tensor) else type(value).__name__
