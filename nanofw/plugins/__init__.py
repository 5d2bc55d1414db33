"""Everything that an outside package needs to write a plugin.

A package names its plugins in its `pyproject.toml`,

    [project.entry-points.nanofw]
    "scheduler.deadline" = "my_package.manifest"

and the manifest describes them, importing nothing heavy:

    from nanofw.plugins import Plugin, hookimpl

    @hookimpl
    def scheduler():
        return Plugin("deadline", "my_package.policy:Deadline", api="scheduler/2")

Public: what `__all__` lists. The modules in this package are private.
"""

from __future__ import annotations

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.attention_backend import (
    AttentionBackend,
    AttentionConfig,
    ForwardBatch,
    FusedAttentionBackend,
    FusedInputs,
)
from nanofw.contracts.clock import Clock, PacedClock, RealClock, VirtualClock
from nanofw.contracts.communicator import Communicator, NormCommunicator, SingleRank
from nanofw.contracts.cost_model import (
    CostModel,
    CostModelConfig,
    OccupiesHost,
    SteadyCostModel,
)
from nanofw.contracts.executor import Components, Executor, ExecutorConfig, ExecutorFacts
from nanofw.contracts.kinds import KINDS, Kind
from nanofw.contracts.kv_allocator import (
    Allocation,
    AllocatorConfig,
    AllocatorStats,
    Extension,
    KVAllocator,
    Match,
)
from nanofw.contracts.limits import Limits
from nanofw.contracts.logits_processor import (
    HostProcessor,
    HostProcessorConfig,
    LogitsProcessor,
)
from nanofw.contracts.model import Model, ModelConfig
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.outputs import (
    Admitted,
    RequestOutput,
    StepOutput,
    StepReport,
    TokenDelta,
    TokenLogprobs,
)
from nanofw.contracts.plan import Capacity, HostMasks, NewRow, StepPlan, StepResult
from nanofw.contracts.reply_format import ReasoningFormat, ToolCall, ToolFormat, call_schema
from nanofw.contracts.requests import FinishReason, Request, SamplingParams
from nanofw.contracts.router import ReplicaView, Router, RouterConfig
from nanofw.contracts.sampler import (
    DeviceSampler,
    SampledTokens,
    Sampler,
    SamplerConfig,
)
from nanofw.contracts.scheduler import (
    Policy,
    Refuse,
    RequestView,
    RunningView,
    SchedulerConfig,
    SchedulerView,
    SortKey,
)
from nanofw.contracts.stride import Stride
from nanofw.contracts.workload import Workload, WorkloadConfig
from nanofw.plugins.component import Component, load_plugin, prepare
from nanofw.plugins.descriptor import (
    Options,
    Plugin,
    Requirement,
    load_target,
)
from nanofw.plugins.discovery import Entry
from nanofw.plugins.hookspecs import hookimpl
from nanofw.plugins.registry import PluginSettings, Registry, build_registry

__all__ = [
    # describing a plugin
    "KINDS",
    "Component",
    "Kind",
    "Options",
    "Plugin",
    "Requirement",
    "hookimpl",
    "load_target",
    # finding one
    "Entry",
    "PluginSettings",
    "Registry",
    "build_registry",
    "load_plugin",
    "prepare",
    # scheduler
    "Limits",
    "Policy",
    "Refuse",
    "RequestView",
    "RunningView",
    "SchedulerConfig",
    "SchedulerView",
    "SortKey",
    # kv_allocator
    "Allocation",
    "AllocatorConfig",
    "AllocatorStats",
    "Extension",
    "KVAllocator",
    "Match",
    # attention_backend
    "AttentionBackend",
    "AttentionConfig",
    "ForwardBatch",
    "FusedAttentionBackend",
    "FusedInputs",
    # sampler, logits_processor
    "HostProcessor",
    "HostProcessorConfig",
    "LogitsProcessor",
    "DeviceSampler",
    "SampledTokens",
    "Sampler",
    "SamplerConfig",
    # formats of tool calls and of reasoning
    "ReasoningFormat",
    "ToolCall",
    "ToolFormat",
    "call_schema",
    # model
    "Communicator",
    "Model",
    "ModelConfig",
    "ModelSpec",
    "NormCommunicator",
    "SingleRank",
    # executor, cost_model
    "Capacity",
    "Clock",
    "Components",
    "CostModel",
    "CostModelConfig",
    "Executor",
    "ExecutorConfig",
    "ExecutorFacts",
    "HostMasks",
    "NewRow",
    "OccupiesHost",
    "PacedClock",
    "RealClock",
    "SteadyCostModel",
    "StepObserver",
    "StepPlan",
    "StepResult",
    "Stride",
    "VirtualClock",
    # workload
    "Workload",
    "WorkloadConfig",
    # router
    "ReplicaView",
    "Router",
    "RouterConfig",
    # requests, and what becomes of them
    "FinishReason",
    "IntArray",
    "Request",
    "Admitted",
    "RequestOutput",
    "SamplingParams",
    "StepOutput",
    "StepReport",
    "TokenDelta",
    "TokenLogprobs",
]
