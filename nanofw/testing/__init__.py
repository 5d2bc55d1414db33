"""The conformance kit: what every plugin of a kind must keep, for its author's own tests.

    from nanofw.testing import SchedulerChecks

    class TestMyPolicy(SchedulerChecks):
        def make(self, config):
            return MyPolicy(MyOptions(), config)

Each kind has a class of `test_` methods, `SchedulerChecks`, and a function that calls them all
at once, `check_scheduler`. nanofw's own plugins are held to the same checks. The pytest plugin
`nanofw.testing.pytest_plugin` parametrises tests over installed plugins. Only checks that run on a
device import torch, when they run.

Public: what `__all__` lists, and `nanofw.testing.pytest_plugin`.
"""

from __future__ import annotations

from nanofw.measure.drive import drive
from nanofw.testing.attention_backend import AttentionBackendChecks
from nanofw.testing.checks import (
    check_attention_backend,
    check_cost_model,
    check_kv_allocator,
    check_logits_processor,
    check_router,
    check_sampler,
    check_scheduler,
    check_workload,
)
from nanofw.testing.components import claims, construct, installed, load_component
from nanofw.testing.cost_model import CostModelChecks
from nanofw.testing.executor import ExecutorChecks
from nanofw.testing.host_processor import HostProcessorChecks
from nanofw.testing.kv_allocator import KVAllocatorChecks
from nanofw.testing.kv_allocator_driver import KVAllocatorDriver
from nanofw.testing.logits_processor import LogitsProcessorChecks
from nanofw.testing.model import ModelChecks
from nanofw.testing.router import RouterChecks
from nanofw.testing.sampler import SamplerChecks
from nanofw.testing.scheduler import SchedulerChecks
from nanofw.testing.score_card import CheckResult, check_names, score
from nanofw.testing.sim_engine import EngineShape, simulated_engine
from nanofw.testing.suites import bound, suite_of
from nanofw.testing.traffic import Record, Traffic, random_traffic, serve
from nanofw.testing.workload import WorkloadChecks

__all__ = [
    # checks
    "KVAllocatorChecks",
    "AttentionBackendChecks",
    "LogitsProcessorChecks",
    "SchedulerChecks",
    "SamplerChecks",
    "WorkloadChecks",
    "CostModelChecks",
    "ExecutorChecks",
    "HostProcessorChecks",
    "ModelChecks",
    "RouterChecks",
    "check_kv_allocator",
    "check_attention_backend",
    "check_logits_processor",
    "check_scheduler",
    "check_sampler",
    "check_workload",
    "check_cost_model",
    "check_router",
    # installed plugins
    "claims",
    "construct",
    "installed",
    "load_component",
    "bound",
    "suite_of",
    # a score card
    "CheckResult",
    "check_names",
    "score",
    # tools for tests of your own
    "KVAllocatorDriver",
    "EngineShape",
    "Record",
    "Traffic",
    "drive",
    "random_traffic",
    "serve",
    "simulated_engine",
]
