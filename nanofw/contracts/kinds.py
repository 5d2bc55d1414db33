"""The table of the kinds of plugins. A new kind is one entry here.

Hooks of manifests, sections of the configuration, the choice of components, the checks and the
tables of the docs are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from nanofw.contracts.attention_backend import AttentionBackend, AttentionConfig
from nanofw.contracts.cost_model import CostModel, CostModelConfig
from nanofw.contracts.executor import Executor, ExecutorConfig
from nanofw.contracts.kv_allocator import AllocatorConfig, KVAllocator
from nanofw.contracts.logits_processor import LogitsProcessor
from nanofw.contracts.model import Model, ModelConfig
from nanofw.contracts.router import Router, RouterConfig
from nanofw.contracts.sampler import Sampler, SamplerConfig
from nanofw.contracts.scheduler import Policy, SchedulerConfig
from nanofw.contracts.workload import Workload, WorkloadConfig

Tier: TypeAlias = Literal["stable", "provisional", "experimental"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of plugins.

    Attributes:
        name: of the hook, and the first part of the entry points: `scheduler.fcfs`.
        text: what its components decide, a line without a full stop.
        section: where the configuration names its component.
        base: what its components derive from; a capability may ask for another class.
        config: what a component is constructed with: `target(options, config)`.
        version: of the contract that this nanofw offers.
        tier: how stable the contract is; docs/plugins/versions.md.
        made_by: the process of the engine; the executor, which says in its capability `needs`
            which kinds it makes; or what stands before several engines.
        is_list: the section is a list, and each of its items names a component.
        default: the component of a run whose configuration does not name one, or None.
        auto: what `auto` tries, in this order. Only these: no installation changes what it takes.
    """

    name: str
    text: str
    section: tuple[str, ...]
    base: type
    config: type
    version: int
    tier: Tier
    made_by: Literal["engine", "executor", "replicas"] = "engine"
    is_list: bool = False
    default: str | None = None
    auto: tuple[str, ...] = ()

    @property
    def api(self) -> str:
        """What a manifest states: `scheduler/2`."""
        return f"{self.name}/{self.version}"


def _by_name(*kinds: Kind) -> Mapping[str, Kind]:
    return MappingProxyType({kind.name: kind for kind in kinds})


KINDS: Mapping[str, Kind] = _by_name(
    Kind(
        name="model",
        text="decoders, by the architecture that `config.json` states",
        section=("model",),
        base=Model,
        config=ModelConfig,
        version=2,
        tier="experimental",
        made_by="executor",
    ),
    Kind(
        name="scheduler",
        text="which request is served first",
        section=("scheduler",),
        base=Policy,
        config=SchedulerConfig,
        version=2,
        tier="stable",
        default="fcfs",
    ),
    Kind(
        name="kv_allocator",
        text="where the keys and values of a request live",
        section=("kv_allocator",),
        base=KVAllocator,
        config=AllocatorConfig,
        version=2,
        tier="provisional",
        default="paged_prefix",
    ),
    Kind(
        name="attention_backend",
        text="which kernel computes attention",
        section=("attention_backend",),
        base=AttentionBackend,
        config=AttentionConfig,
        version=2,
        tier="experimental",
        made_by="executor",
        default="auto",
        auto=("triton", "flash_attn", "sdpa"),
    ),
    Kind(
        name="sampler",
        text="how a token is sampled from logits",
        section=("sampler",),
        base=Sampler,
        config=SamplerConfig,
        version=2,
        tier="stable",
        made_by="executor",
        default="standard",
    ),
    Kind(
        name="logits_processor",
        text="changes of the logits before a token is sampled",
        section=("logits_processors",),
        base=LogitsProcessor,
        config=SamplerConfig,
        version=2,
        tier="stable",
        made_by="executor",
        is_list=True,
    ),
    Kind(
        name="executor",
        text="what carries out the plans",
        section=("executor",),
        base=Executor,
        config=ExecutorConfig,
        version=2,
        tier="experimental",
        default="auto",
        auto=("torch",),
    ),
    Kind(
        name="cost_model",
        text="how long a simulated step takes",
        section=("executor", "cost_model"),
        base=CostModel,
        config=CostModelConfig,
        version=1,
        tier="experimental",
        made_by="executor",
    ),
    Kind(
        name="workload",
        text="where requests come from",
        section=("input", "workload"),
        base=Workload,
        config=WorkloadConfig,
        version=1,
        tier="stable",
    ),
    Kind(
        name="router",
        text="which of several engines serves a request",
        section=("router",),
        base=Router,
        config=RouterConfig,
        version=1,
        tier="experimental",
        made_by="replicas",
        default="least_loaded",
    ),
)
"""By name, in the order of the docs."""
