"""The checks as functions: for one call in a notebook or in a test of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from unittest import SkipTest

from nanofw.contracts.attention_backend import AttentionBackend, AttentionConfig
from nanofw.contracts.kv_allocator import AllocatorConfig, KVAllocator
from nanofw.contracts.logits_processor import LogitsProcessor
from nanofw.contracts.sampler import Sampler, SamplerConfig
from nanofw.contracts.scheduler import Policy
from nanofw.testing.allocator import AllocatorChecks
from nanofw.testing.backend import BackendChecks
from nanofw.testing.logits_processor import LogitsProcessorChecks
from nanofw.testing.policy import PolicyChecks
from nanofw.testing.sampler import SamplerChecks

NOTHING: Mapping[str, Any] = MappingProxyType({})


def check_policy(factory: Callable[[], Policy]) -> None:
    """Run all checks of `PolicyChecks` on policies that `factory` makes.

    Raises the first failure, with a note that names the check.
    """

    class Checks(PolicyChecks):
        def make(self) -> Policy:
            return factory()

    run_checks(Checks())


def check_allocator(
    factory: Callable[[AllocatorConfig], KVAllocator],
    *,
    capabilities: Mapping[str, Any] = NOTHING,
) -> None:
    """Run all checks of `AllocatorChecks` on allocators that `factory` makes.

    Args:
        capabilities: what the manifest claims.
    """
    claimed = capabilities

    class Checks(AllocatorChecks):
        capabilities = claimed

        def make(self, config: AllocatorConfig) -> KVAllocator:
            return factory(config)

    run_checks(Checks())


def check_backend(
    factory: Callable[[AttentionConfig], AttentionBackend],
    *,
    capabilities: Mapping[str, Any] = NOTHING,
    device: str = "cpu",
) -> None:
    """Run all checks of `BackendChecks` on backends that `factory` makes. Imports torch.

    Args:
        capabilities: what the manifest claims, narrowed by `probe`.
        device: where to run, `cuda` say.
    """
    claimed, place = capabilities, device

    class Checks(BackendChecks):
        capabilities = claimed
        device = place

        def make(self, config: AttentionConfig) -> AttentionBackend:
            return factory(config)

    run_checks(Checks())


def check_sampler(factory: Callable[[SamplerConfig], Sampler], *, device: str = "cpu") -> None:
    """Run all checks of `SamplerChecks` on samplers that `factory` makes. Imports torch."""
    place = device

    class Checks(SamplerChecks):
        device = place

        def make(self, config: SamplerConfig) -> Sampler:
            return factory(config)

    run_checks(Checks())


def check_logits_processor(
    factory: Callable[[SamplerConfig], LogitsProcessor],
    name: str,
    *,
    arguments: Sequence[Any] = (None,),
    wrong_arguments: Sequence[Any] = (),
    device: str = "cpu",
) -> None:
    """Run all checks of `LogitsProcessorChecks` on processors that `factory` makes.

    Imports torch.

    Args:
        name: under which requests bring arguments.
        arguments: what requests may bring; None: nothing.
        wrong_arguments: what must be refused.
    """
    key, right, wrong, place = name, arguments, wrong_arguments, device

    class Checks(LogitsProcessorChecks):
        name = key
        arguments = right
        wrong_arguments = wrong
        device = place

        def make(self, config: SamplerConfig) -> LogitsProcessor:
            return factory(config)

    run_checks(Checks())


def run_checks(checks: Any) -> None:
    """Call every `test_` method; what one raises carries a note with its name."""
    for name in dir(checks):
        if not name.startswith("test_"):
            continue
        try:
            getattr(checks, name)()
        except SkipTest:
            continue
        except Exception as error:
            error.add_note(f"in {type(checks).__mro__[1].__name__}.{name}")
            raise
