"""Whether a run's kernels are compiled ahead, and the dry run that finds them.

Components must claim the capability `compile_ahead`; where one does not, kernels are compiled when
they are launched first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from nanofw.contracts.communicator import Communicator
from nanofw.contracts.executor import Components, ExecutorConfig
from nanofw.kernels.aot.communicator import on_meta
from nanofw.kernels.dispatch import has_triton
from nanofw.plugins import Component

if TYPE_CHECKING:
    from nanofw.kernels.aot.compiler import AheadCompiler

CLAIM = "compile_ahead"
_KINDS: Final = ("model", "attention_backend", "sampler")

Steps = Callable[[ExecutorConfig, Communicator], object]
"""Builds the components of a configuration and carries out each kind of step of a run, once."""

logger: logging.Logger = logging.getLogger(__name__)


def start_compiling(
    config: ExecutorConfig, communicator: Communicator, steps: Steps, threads: int | None
) -> AheadCompiler | None:
    """Start to compile what a run on an NVIDIA GPU will launch; None where nothing can be.

    Args:
        threads: that compile at once; 0: none, nothing is compiled ahead; None: as many as suit.
    """
    device = torch.device(config.device)
    if device.type != "cuda" or threads == 0 or not has_triton():
        return None
    required = config.components.required
    silent = [kind for kind in _KINDS if not required(kind).plugin.capabilities.get(CLAIM)]
    if silent:
        logger.info("kernels are compiled at first launch: no %s by %s", CLAIM, ", ".join(silent))
        return None
    from nanofw.kernels.aot.compiler import AheadCompiler, default_threads

    index = torch.cuda.current_device() if device.index is None else device.index
    compiler = AheadCompiler(
        lambda: steps(dry_config(config), on_meta(communicator)),
        index,
        threads or default_threads(communicator.size),
    )
    dtype = getattr(torch, config.spec.dtype)
    compiler.beside(lambda: _first_product(dtype, torch.device("cuda", index)))
    return compiler


def dry_config(config: ExecutorConfig) -> ExecutorConfig:
    """The same run on the device `meta`, by what stands for its components there."""
    required = config.components.required
    stand_ins = Components(
        model=_stand_in(required("model")),
        attention_backend=_stand_in(required("attention_backend")),
        sampler=_stand_in(required("sampler")),
    )
    return replace(config, device="meta", components=stand_ins)


def _stand_in(component: Component) -> Component:
    """The component, or what its claim names instead."""
    claim = component.plugin.capabilities.get(CLAIM)
    if not isinstance(claim, str):
        return component
    return replace(component, plugin=replace(component.plugin, target=claim))


@torch.inference_mode()
def _first_product(dtype: torch.dtype, device: torch.device) -> None:
    """A product of matrices, so that cuBLAS is loaded before the first step needs it."""
    ones = torch.ones(16, 16, dtype=dtype, device=device)
    torch.mm(ones, ones)
