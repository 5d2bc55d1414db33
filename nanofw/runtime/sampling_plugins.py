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
from nanofw.errors import PluginLoadError
from nanofw.plugin_calls import PluginCalls
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
        found = self.calls.call(self.target.apply, logits, rows.copy(), positions.copy())
        return checked_logits(self.calls, "apply", found, logits)

    def sampled(self, rows: IntArray, token_ids: torch.Tensor) -> None:
        """Tell which tokens were sampled."""
        if self.hears:
            self.calls.call(self.target.sampled, rows.copy(), token_ids)


class SamplingPlugins:
    """The sampler and the logits processors of the device, in YAML order.

    Attributes:
        sampler: the sampler itself, and `calls` into it.
        device_sampler: the same if it samples on the device alone, else None.
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

    @property
    def deferred_bytes(self) -> int:
        """Device memory that they may still allocate, when requests ask."""
        parts = [(self.sampler, self.calls), *((p.target, p.calls) for p in self.processors)]
        return sum(_deferred_bytes(part, calls) for part, calls in parts)

    def check(self, request: Request) -> None:
        """Raise ValueError when sampling parameters or arguments are not possible."""
        arguments = request.arguments
        self.calls.check(self.sampler.check, request.sampling, arguments.get(self.name))
        for processor in self.processors:
            processor.calls.check(processor.target.check, arguments.get(processor.name))

    def add_row(self, new: NewRow) -> None:
        """A request entered a row."""
        self._ids[new.row], self._rows[new.request_id] = new.request_id, new.row
        self.calls.call(self.sampler.add_row, new)
        for processor in self.processors:
            has_work: Any = processor.calls.call(processor.target.add_row, new)
            if not isinstance(has_work, (bool, np.bool_)):
                raise processor.calls.wrong("add_row", f"{has_work!r}; it must be True or False")
            processor.active[new.row] = has_work

    def remove_row(self, row: int) -> None:
        """The row is empty. Does nothing for one whose request ended before."""
        request_id = self._ids.pop(row, None)
        if request_id is None:
            return
        del self._rows[request_id]
        self.calls.call(self.sampler.remove_row, row)
        for processor in self.processors:
            processor.calls.call(processor.target.remove_row, row)
            processor.active[row] = False

    def finish(self, request_id: str) -> None:
        """A request ended. Its row is removed here if its last step was submitted just before."""
        row = self._rows.get(request_id)
        if row is not None:
            self.remove_row(row)
        if self._forgets:
            self.calls.tell(self.sampler.finish, request_id)
        for processor in self.processors:
            if processor.forgets:
                processor.calls.tell(processor.target.finish, request_id)

    def active(self, rows: IntArray) -> list[Processor]:
        """The processors that have something to do for int32[s] rows."""
        return [processor for processor in self.processors if processor.active[rows].any()]

    def check_ids(self, token_ids: IntArray) -> None:
        """Raise where a sampled token is none of the vocabulary: int32[s], on the host."""
        if len(token_ids) and int(token_ids.view(np.uint32).max()) >= self._vocab_size:
            wrong = token_ids[(token_ids < 0) | (token_ids >= self._vocab_size)]
            raise self.calls.wrong(
                "sample", f"the token {int(wrong[0])}; ids go from 0 to {self._vocab_size - 1}"
            )

    # -- calls into the sampler -------------------------------------------------------------

    def variant(self, rows: IntArray) -> str | None:
        """The variant with which the device alone can sample these rows, or None."""
        sampler = self.device_sampler
        if sampler is None:
            return None
        self.calls.call(sampler.sync)
        variant = self.calls.call(sampler.variant, rows.copy())
        if variant is not None and variant not in sampler.variants:
            raise self.calls.wrong("variant", f"{variant!r}; it must be in {sampler.variants}")
        return variant

    def edit(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        """Logits after biases and penalties."""
        if not self.edits:
            return logits
        found = self.calls.call(self.sampler.edit, logits, rows.copy(), positions.copy())
        return checked_logits(self.calls, "edit", found, logits)

    def scale(self, logits: torch.Tensor, rows: IntArray) -> torch.Tensor:
        """Logits after the temperatures."""
        if not self.scales:
            return logits
        found = self.calls.call(self.sampler.scale, logits, rows.copy())
        return checked_logits(self.calls, "scale", found, logits)

    def can_shard(self, rows: IntArray) -> bool:
        """Whether the sampler needs only the logits of each rank's own tokens."""
        return self.shards and bool(self.calls.call(self.sampler.can_shard, rows.copy()))

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
        sampled = self.calls.call(
            self.sampler.sample, logits, rows.copy(), positions.copy(), scaled=scaled,
            sharded=sharded,
        )  # fmt: skip
        return _checked_tokens(self.calls, "sample", sampled, len(rows))

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
        sampled = self.calls.call(
            sampler.sample_on_device, logits, rows, positions, variant, sharded=sharded
        )
        return _checked_tokens(self.calls, "sample_on_device", sampled, len(rows))


def _made(component: Component, config: SamplerConfig) -> Processor:
    target = component.make(LogitsProcessor, config)
    kind, stage = type(target), target.stage
    if stage not in STAGES:
        raise PluginLoadError(
            f"{component.label}: stage is {stage!r}; it must be {' or '.join(map(repr, STAGES))}"
        )
    return Processor(
        name=component.name,
        target=target,
        calls=calls_of(component),
        active=np.zeros(config.max_num_seqs, np.bool_),
        is_scaled=stage == "scaled",
        hears=kind.sampled is not LogitsProcessor.sampled,
        forgets=kind.finish is not LogitsProcessor.finish,
    )


def calls_of(component: Component) -> PluginCalls:
    """Calls into a component, under its label."""
    return PluginCalls(component.label, f"{component.kind.replace('_', ' ')} {component.name}")


def _deferred_bytes(part: Sampler | LogitsProcessor, calls: PluginCalls) -> int:
    def deferred_bytes() -> int:
        return part.deferred_bytes

    number: Any = calls.call(deferred_bytes)
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 0:
        raise calls.wrong("deferred_bytes", f"{number!r}; it must be an integer, 0 or greater")
    return int(number)


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
    raise calls.wrong(method, f"{_described(found)}; it must be {_described(given)}")


def _checked_tokens(calls: PluginCalls, method: str, found: Any, count: int) -> SampledTokens:
    if not isinstance(found, SampledTokens):
        raise calls.wrong(method, f"{type(found).__name__}; it must be SampledTokens")
    for name, dtype in (("token_ids", torch.int32), ("failed", torch.bool)):
        value: Any = getattr(found, name)
        if not (
            isinstance(value, torch.Tensor) and value.dtype == dtype and value.shape == (count,)
        ):
            wanted = f"{_name(dtype)}[{count}]"
            raise calls.wrong(method, f"{name} {_described(value)}; it must be {wanted}")
    return found


def _described(value: Any) -> str:
    """`float32[2, 64] on cpu`, or the type of what is not a tensor."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{_name(value.dtype)}[{', '.join(map(str, value.shape))}] on {value.device}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
