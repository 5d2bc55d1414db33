"""Which checks belong to which contract, and how they are bound to a plugin. A kind is one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, cast

from nanofw.contracts.attention_backend import AttentionBackend
from nanofw.contracts.cost_model import CostModel
from nanofw.contracts.executor import Executor
from nanofw.contracts.kinds import KINDS
from nanofw.contracts.kv_allocator import KVAllocator
from nanofw.contracts.logits_processor import HostProcessor, LogitsProcessor
from nanofw.contracts.model import Model
from nanofw.contracts.router import Router
from nanofw.contracts.sampler import Sampler
from nanofw.contracts.scheduler import Policy
from nanofw.contracts.workload import Workload
from nanofw.errors import CapabilityError, ConfigError, PluginError, near
from nanofw.narrowing import Claims
from nanofw.plugins import Component, load_target
from nanofw.plugins.capabilities import contract_of
from nanofw.plugins.component import guarded
from nanofw.plugins.value_types import ANY
from nanofw.testing.attention_backend import AttentionBackendChecks
from nanofw.testing.components import claims, construct
from nanofw.testing.cost_model import CostModelChecks
from nanofw.testing.executor import ExecutorChecks
from nanofw.testing.host_processor import HostProcessorChecks
from nanofw.testing.kv_allocator import KVAllocatorChecks
from nanofw.testing.logits_processor import LogitsProcessorChecks
from nanofw.testing.model import ModelChecks
from nanofw.testing.router import RouterChecks
from nanofw.testing.sampler import SamplerChecks
from nanofw.testing.scheduler import SchedulerChecks
from nanofw.testing.workload import WorkloadChecks

Checks: TypeAlias = Any
"""A class of `test_` methods with a `make`, or an object of one."""

SUITES: Mapping[type, Checks] = MappingProxyType(
    {
        Model: ModelChecks,
        Policy: SchedulerChecks,
        KVAllocator: KVAllocatorChecks,
        AttentionBackend: AttentionBackendChecks,
        Sampler: SamplerChecks,
        LogitsProcessor: LogitsProcessorChecks,
        HostProcessor: HostProcessorChecks,
        Executor: ExecutorChecks,
        CostModel: CostModelChecks,
        Router: RouterChecks,
        Workload: WorkloadChecks,
    }
)
"""By the contract that a component keeps: its kind's, or the one that a claim asks for."""


def suite_of(component: Component) -> Checks:
    """The class of checks that the component is held to.

    The checks of its contract, or what its manifest names in `checks`, which derives from them.

    Raises:
        PluginError: there are none, or the manifest names another class.
    """
    contract = contract_of(component.kind, component.plugin.capabilities)
    suite = SUITES.get(contract)
    if suite is None:
        covered = [name for name, kind in KINDS.items() if kind.base in SUITES]
        raise PluginError(
            f"nanofw.testing has no checks for the kind {component.kind} with the contract "
            f"{contract.__name__}; it has some for: {', '.join(covered)}"
        )
    named = component.plugin.checks
    if named is None:
        return suite
    own = guarded(lambda: load_target(named), component.label, "import its checks")
    if not (isinstance(own, type) and issubclass(own, suite)):
        raise PluginError(
            f"{component.label}: its checks, {named}, must be a class that derives from "
            f"{suite.__name__}"
        )
    return own


def bound(component: Component, settings: Claims | None = None) -> Checks:
    """An object of the component's checks, which makes it as a run does.

    Its attribute `options` has the component's.

    Args:
        settings: attributes of the checks, `arguments` for example; see their class.

    Raises:
        ConfigError: the checks have no such attribute.
        CapabilityError: the component cannot be used on the device that was asked for.
    """
    suite, given = suite_of(component), dict(settings or {})
    for name in given:
        if name not in settings_of(suite):
            known = settings_of(suite)
            raise ConfigError(
                f"{suite.__name__} has no {name!r}{near(name, known)}; "
                f"it has: {', '.join(known) or 'none'}",
                key=f"checks.{name}",
            )
    attributes: dict[str, Any] = {"make": _maker(component), "options": component.options}
    known = settings_of(suite)
    if "name" in known:
        attributes["name"] = component.name
    if "reader" in known and (reader := component.plugin.spec):
        attributes["reader"] = staticmethod(
            guarded(lambda: load_target(reader), component.label, "import its reader")
        )
    if "device" in known or "capabilities" in known:
        claimed = _claims_on(component, given.get("device", getattr(suite, "device", "cpu")))
        if "capabilities" in known:
            attributes["capabilities"] = claimed
    return type(suite.__name__, (suite,), {"__module__": __name__, **attributes, **given})()


def settings_of(suite: Checks) -> list[str]:
    """The attributes of a class of checks that may be set, bases last."""
    names = [name for cls in suite.__mro__ for name in inspect.get_annotations(cls)]
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def _maker(component: Component) -> Callable[..., Any]:
    def make(checks: Checks, config: object) -> Any:
        return construct(component, config)

    return make


def _claims_on(component: Component, device: str) -> Claims:
    """What the component claims on a device. Raises CapabilityError when it cannot run there."""
    claimed = claims(component, device)
    if isinstance(claimed, str):
        raise CapabilityError(f"{component.label} cannot be used on {device}: {claimed}")
    devices = cast("Sequence[str]", claimed.get("devices", (device,)))
    if not {device.partition(":")[0], ANY} & set(devices):
        raise CapabilityError(
            f"{component.label} does not claim the device {device}; it claims "
            f"{', '.join(devices) or 'none'}. Choose one with checks.device="
        )
    return claimed
