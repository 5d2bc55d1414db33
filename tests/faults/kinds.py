"""The kinds of plugins with their contracts and sound classes, and what each method answers."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from typing import Any, NamedTuple

from nanofw.attention_backends.sdpa import SdpaBackend
from nanofw.contracts.attention_backend import AttentionBackend
from nanofw.contracts.cost_model import CostModel, OccupiesHost
from nanofw.contracts.executor import Executor
from nanofw.contracts.kv_allocator import KVAllocator
from nanofw.contracts.logits_processor import HostProcessor, LogitsProcessor
from nanofw.contracts.model import Model
from nanofw.contracts.router import Router
from nanofw.contracts.sampler import DeviceSampler
from nanofw.contracts.scheduler import Policy
from nanofw.contracts.workload import Workload
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.sim.executor import SimExecutor
from tests.faults import computing, faulty


class Kind(NamedTuple):
    """One kind of plugins.

    Attributes:
        kind, name: for messages.
        section: where the configuration names it.
        computes: it needs torch, and an executor that runs a model.
    """

    sound: type
    contracts: tuple[type, ...]
    kind: str
    section: str
    name: str = "faulty"
    computes: bool = False


KINDS = {
    "scheduler": Kind(faulty.SoundPolicy, (Policy,), "scheduler", "scheduler"),
    "kv_allocator": Kind(PagedPrefixAllocator, (KVAllocator,), "kv_allocator", "kv_allocator"),
    "workload": Kind(faulty.SoundWorkload, (Workload,), "workload", "input.workload"),
    "cost_model": Kind(
        faulty.SoundCost, (CostModel, OccupiesHost), "cost_model", "executor.cost_model"
    ),
    "router": Kind(faulty.SoundRouter, (Router,), "router", "router"),
    "executor": Kind(SimExecutor, (Executor,), "executor", "executor"),
    "host_processor": Kind(
        faulty.SoundHost, (HostProcessor,), "logits_processor", "logits_processors", "faulty_host"
    ),
    "sampler": Kind(computing.SoundSampler, (DeviceSampler,), "sampler", "sampler", computes=True),
    "logits_processor": Kind(
        computing.SoundProcessor,
        (LogitsProcessor,),
        "logits_processor",
        "logits_processors",
        computes=True,
    ),
    "model": Kind(computing.SoundModel, (Model,), "model", "model", computes=True),
    "attention_backend": Kind(
        SdpaBackend, (AttentionBackend,), "attention_backend", "attention_backend", computes=True
    ),
}


class Answer(NamedTuple):
    """What a method answers, as its contract says.

    Attributes:
        is_read: somebody reads it.
        fields: of the dataclass that it is.
        has_arrays: it is an array or a tensor, or has some in its fields.
    """

    is_read: bool
    fields: tuple[str, ...] = ()
    has_arrays: bool = False


def answers(kind: str) -> dict[str, Answer]:
    """By public name of a kind's contracts, in order."""
    found: dict[str, Answer] = {}
    for contract in KINDS[kind].contracts:
        for name in dir(contract):
            if name[0] != "_" and hasattr(KINDS[kind].sound, name):
                found[name] = _answer(contract, inspect.getattr_static(contract, name))
    return dict(sorted(found.items()))


def _answer(contract: type, member: Any) -> Answer:
    function = member.fget if isinstance(member, property) else member
    if not callable(function):
        return Answer(is_read=True)
    text = str(inspect.signature(function).return_annotation)
    if text == "None" or text == "Any":  # nothing, or what only the plugin itself reads
        return Answer(is_read=False)
    named = re.fullmatch(r"(\w+)( \| None)?", text)
    module = sys.modules[function.__module__]
    kind = getattr(module, named[1], None) if named else None
    if kind is None or not dataclasses.is_dataclass(kind):
        return Answer(is_read=True, has_arrays="Tensor" in text)
    fields = dataclasses.fields(kind)
    has_arrays = any("Array" in str(field.type) or "Tensor" in str(field.type) for field in fields)
    names = tuple(field.name for field in fields if field.init)
    return Answer(is_read=True, fields=names, has_arrays=has_arrays)
