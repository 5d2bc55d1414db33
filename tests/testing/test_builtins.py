"""Every built-in keeps its contract: a new one is tested by existing."""

from __future__ import annotations

import pytest
import torch

from nanofw.plugins import Component
from nanofw.testing import (
    AttentionBackendChecks,
    KVAllocatorChecks,
    LogitsProcessorChecks,
    SamplerChecks,
    SchedulerChecks,
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
    def make(self):
        return construct(self.component)


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
        claimed = claims(component, self.device)
        if isinstance(claimed, str):
            pytest.skip(claimed)
        if not {self.device, "*"} & set(claimed["devices"]):
            pytest.skip(f"it does not claim {self.device}")
        self.capabilities = claimed

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


def test_there_is_something_to_check() -> None:
    for kind, name in (
        ("scheduler", "fcfs"),
        ("kv_allocator", "paged_prefix"),
        ("attention_backend", "sdpa"),
        ("sampler", "standard"),
    ):
        assert name in [component.name for component in installed(kind, "nanofw")]
