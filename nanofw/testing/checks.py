"""The checks as functions, for one call in a notebook or in a test of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from unittest import SkipTest

from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.attention_backend import AttentionBackend, AttentionConfig
from nanofw.contracts.cost_model import CostModel, CostModelConfig
from nanofw.contracts.kv_allocator import AllocatorConfig, KVAllocator
from nanofw.contracts.logits_processor import LogitsProcessor
from nanofw.contracts.router import Router, RouterConfig
from nanofw.contracts.sampler import Sampler, SamplerConfig
from nanofw.contracts.scheduler import Policy, SchedulerConfig
from nanofw.contracts.workload import Workload, WorkloadConfig
from nanofw.testing.attention_backend import AttentionBackendChecks
from nanofw.testing.cost_model import CostModelChecks
from nanofw.testing.kv_allocator import KVAllocatorChecks
from nanofw.testing.logits_processor import LogitsProcessorChecks
from nanofw.testing.router import RouterChecks
from nanofw.testing.sampler import SamplerChecks
from nanofw.testing.scheduler import SchedulerChecks
from nanofw.testing.score_card import check_names
from nanofw.testing.workload import WorkloadChecks

NOTHING: Mapping[str, object] = MappingProxyType({})


def check_scheduler(factory: Callable[[SchedulerConfig], Policy]) -> None:
    """Run all checks of `SchedulerChecks` on policies that `factory` makes.

    Raises the first failure, with a note that names the check.
    """
    _run(SchedulerChecks, factory)


def check_kv_allocator(
    factory: Callable[[AllocatorConfig], KVAllocator],
    *,
    capabilities: Mapping[str, object] = NOTHING,
) -> None:
    """Run all checks of `KVAllocatorChecks` on allocators that `factory` makes.

    Args:
        capabilities: what the manifest claims.
    """
    _run(KVAllocatorChecks, factory, capabilities=capabilities)


def check_attention_backend(
    factory: Callable[[AttentionConfig], AttentionBackend],
    *,
    capabilities: Mapping[str, object] = NOTHING,
    device: str = "cpu",
) -> None:
    """Run all checks of `AttentionBackendChecks` on backends that `factory` makes. Imports torch.

    Args:
        capabilities: what the manifest claims, narrowed by `probe`.
        device: where to run, for example `cuda`.
    """
    _run(AttentionBackendChecks, factory, capabilities=capabilities, device=device)


def check_sampler(
    factory: Callable[[SamplerConfig], Sampler],
    name: str = "sampler",
    *,
    arguments: Sequence[object] = (None,),
    wrong_arguments: Sequence[object] = (),
    probabilities: Callable[..., FloatArray] | None = None,
    device: str = "cpu",
) -> None:
    """Run all checks of `SamplerChecks` on samplers that `factory` makes. Imports torch.

    Args:
        name: under which requests bring arguments.
        arguments: what requests may bring; None: nothing.
        wrong_arguments: what must be refused.
        probabilities: the sampler's own distribution, as of `SamplerChecks.probabilities`.
    """
    own = {} if probabilities is None else {"probabilities": staticmethod(probabilities)}
    _run(
        SamplerChecks,
        factory,
        name=name,
        arguments=arguments,
        wrong_arguments=wrong_arguments,
        device=device,
        **own,
    )


def check_logits_processor(
    factory: Callable[[SamplerConfig], LogitsProcessor],
    name: str,
    *,
    arguments: Sequence[object] = (None,),
    wrong_arguments: Sequence[object] = (),
    device: str = "cpu",
) -> None:
    """Run all checks of `LogitsProcessorChecks` on processors that `factory` makes.

    Imports torch.

    Args:
        name: under which requests bring arguments.
        arguments: what requests may bring; None: nothing.
        wrong_arguments: what must be refused.
    """
    _run(
        LogitsProcessorChecks,
        factory,
        name=name,
        arguments=arguments,
        wrong_arguments=wrong_arguments,
        device=device,
    )


def check_workload(
    factory: Callable[[WorkloadConfig], Workload], *, depends_on_seed: bool = True
) -> None:
    """Run all checks of `WorkloadChecks` on workloads that `factory` makes.

    Args:
        depends_on_seed: another seed gives other requests.
    """
    _run(WorkloadChecks, factory, depends_on_seed=depends_on_seed)


def check_cost_model(factory: Callable[[CostModelConfig], CostModel]) -> None:
    """Run all checks of `CostModelChecks` on cost models that `factory` makes."""
    _run(CostModelChecks, factory)


def check_router(factory: Callable[[RouterConfig], Router]) -> None:
    """Run all checks of `RouterChecks` on routers that `factory` makes."""
    _run(RouterChecks, factory)


def run_checks(checks: object) -> None:
    """Call every `test_` method; what one raises carries a note with its name."""
    for name in sorted(check_names(checks)):
        try:
            getattr(checks, name)()
        except SkipTest:
            continue
        except Exception as error:
            error.add_note(f"in {type(checks).__mro__[1].__name__}.{name}")
            raise


def _run(checks: type, factory: Callable[..., object], **attributes: object) -> None:
    """Run the checks with `factory` as their `make` and with these attributes."""
    run_checks(type("Checks", (checks,), {"make": staticmethod(factory), **attributes})())
