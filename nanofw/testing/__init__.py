"""The conformance kit: what every plugin of a kind must keep, for its author's own tests.

    from nanofw.testing import PolicyChecks

    class TestMyPolicy(PolicyChecks):
        def make(self):
            return MyPolicy(MyOptions())

`PolicyChecks`, `AllocatorChecks` and `BackendChecks` are classes of `test_` methods;
`check_policy`, `check_allocator` and `check_backend` call all of them at once. nanofw's own
plugins are held to the same checks. `nanofw.testing.plugin` is a pytest plugin that
parametrises tests over installed plugins. torch is imported by the backend checks alone.
"""

from __future__ import annotations

from nanofw.testing.allocator import AllocatorChecks
from nanofw.testing.allocator_driver import AllocatorDriver
from nanofw.testing.backend import BackendChecks
from nanofw.testing.checks import check_allocator, check_backend, check_policy
from nanofw.testing.components import claims, construct, installed, load_component
from nanofw.testing.engines import EngineShape, allocator_config, simulated_engine
from nanofw.testing.policy import PolicyChecks
from nanofw.testing.traffic import Record, Traffic, random_traffic, serve

__all__ = [
    # checks
    "AllocatorChecks",
    "BackendChecks",
    "PolicyChecks",
    "check_allocator",
    "check_backend",
    "check_policy",
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
