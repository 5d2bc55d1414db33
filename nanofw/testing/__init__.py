"""The conformance kit: what every plugin of a kind must keep, for its author's own tests.

    from nanofw.testing import PolicyChecks

    class TestMyPolicy(PolicyChecks):
        def make(self):
            return MyPolicy(MyOptions())

`PolicyChecks`, `AllocatorChecks`, `BackendChecks`, `SamplerChecks` and
`LogitsProcessorChecks` are classes of `test_` methods; `check_policy` and so on call all of them
at once. nanofw's own plugins are held to the same checks. `nanofw.testing.plugin` is a pytest
plugin that parametrises tests over installed plugins. Only checks that run on a device import
torch, when they run.
"""

from __future__ import annotations

from nanofw.testing.allocator import AllocatorChecks
from nanofw.testing.allocator_driver import AllocatorDriver
from nanofw.testing.backend import BackendChecks
from nanofw.testing.checks import (
    check_allocator,
    check_backend,
    check_logits_processor,
    check_policy,
    check_sampler,
)
from nanofw.testing.components import claims, construct, installed, load_component
from nanofw.testing.engines import EngineShape, allocator_config, simulated_engine
from nanofw.testing.logits_processor import LogitsProcessorChecks
from nanofw.testing.policy import PolicyChecks
from nanofw.testing.sampler import SamplerChecks
from nanofw.testing.traffic import Record, Traffic, random_traffic, serve

__all__ = [
    # checks
    "AllocatorChecks",
    "BackendChecks",
    "LogitsProcessorChecks",
    "PolicyChecks",
    "SamplerChecks",
    "check_allocator",
    "check_backend",
    "check_logits_processor",
    "check_policy",
    "check_sampler",
    # installed plugins
    "claims",
    "construct",
    "installed",
    "load_component",
    # tools for tests of one's own
    "AllocatorDriver",
    "EngineShape",
    "Record",
    "Traffic",
    "allocator_config",
    "random_traffic",
    "serve",
    "simulated_engine",
]
