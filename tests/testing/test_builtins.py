"""Every built-in keeps its contract: a new one is tested by existing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanofw.plugins import Component
from nanofw.testing import (
    AttentionBackendChecks,
    CostModelChecks,
    KVAllocatorChecks,
    LogitsProcessorChecks,
    RouterChecks,
    SamplerChecks,
    SchedulerChecks,
    WorkloadChecks,
    claims,
    construct,
    installed,
    load_component,
)


class OfComponent:
    """The plugin that the class is parametrised over."""

    component: Component

    @pytest.fixture(autouse=True)
    def _of_component(self, component) -> None:
        self.component = component


@pytest.mark.nanofw_plugins("scheduler", distribution="nanofw")
class TestPolicies(OfComponent, SchedulerChecks):
    def make(self, config):
        return construct(self.component, config)


@pytest.mark.nanofw_plugins("kv_allocator", distribution="nanofw")
class TestAllocators(OfComponent, KVAllocatorChecks):
    @property
    def capabilities(self):
        return self.component.plugin.capabilities

    def make(self, config):
        return construct(self.component, config)


@pytest.mark.nanofw_plugins("attention_backend", distribution="nanofw")
class TestBackends(OfComponent, AttentionBackendChecks):
    device = "cuda" if torch.cuda.is_available() else "cpu"

    @pytest.fixture(autouse=True)
    def _claims(self, component) -> None:
        claimed: Any = claims(component, self.device)
        if isinstance(claimed, str):
            pytest.skip(claimed)
        if not {self.device, "*"} & set(claimed["devices"]):
            pytest.skip(f"it does not claim {self.device}")
        type(self).capabilities = claimed

    def make(self, config):
        return construct(self.component, config)


@pytest.mark.nanofw_plugins("sampler", distribution="nanofw")
class TestSamplers(OfComponent, SamplerChecks):
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def make(self, config):
        return construct(self.component, config)


@pytest.mark.parametrize("token_ids", [[], [1, 63]])
class TestSuppressTokens(LogitsProcessorChecks):
    name = "suppress_tokens"
    arguments = (None, [], [3, 4], [63])
    wrong_arguments = ([64], [-1], ["a"], "12", 3)

    @pytest.fixture(autouse=True)
    def _options(self, token_ids) -> None:
        options = {"token_ids": token_ids}
        self.component = load_component("logits_processor", "suppress_tokens", options)

    def make(self, config):
        return construct(self.component, config)


SMALL = {"num_requests": 30, "prompt": 24, "output": 8}
WORKLOADS = {
    "poisson": {**SMALL, "prefix": {"groups": 3, "length": 16}},
    "gamma": {**SMALL, "clients": {"a": 2, "b": 1}},
    "on_off": {**SMALL, "rate": 5.0},
    "streams": {"streams": [{"name": "poisson", **SMALL}, {"name": "gamma", **SMALL}]},
    "closed_loop": {**SMALL, "concurrency": 4},
    "conversations": {"num_conversations": 8, "prompt": 12, "output": 8},
    "fixed": {"requests": [{"prompt_tokens": 8, "output_tokens": 4}] * 3},
}


@pytest.mark.parametrize("workload", WORKLOADS)
class TestWorkloads(WorkloadChecks):
    @pytest.fixture(autouse=True)
    def _options(self, workload) -> None:
        self.component = load_component("workload", workload, WORKLOADS[workload])

    def make(self, config):
        return construct(self.component, config)


@pytest.mark.parametrize("cost_model", ["constant", "roofline"])
class TestCostModels(CostModelChecks):
    @pytest.fixture(autouse=True)
    def _component(self, cost_model) -> None:
        self.component = load_component("cost_model", cost_model)

    def make(self, config):
        return construct(self.component, config)


@pytest.mark.nanofw_plugins("router", distribution="nanofw")
class TestRouters(OfComponent, RouterChecks):
    def make(self, config):
        return construct(self.component, config)


def test_there_is_something_to_check() -> None:
    for kind, name in (
        ("scheduler", "fcfs"),
        ("kv_allocator", "paged_prefix"),
        ("attention_backend", "sdpa"),
        ("sampler", "standard"),
        ("router", "least_loaded"),
    ):
        assert name in [component.name for component in installed(kind, "nanofw")]
