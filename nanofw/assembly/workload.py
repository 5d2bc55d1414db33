"""The workload of a configuration, for one run."""

from __future__ import annotations

from nanofw.assembly.build import construct
from nanofw.assembly.selection import Selection, choose_workload
from nanofw.contracts.workload import Workload, WorkloadConfig


def build_workload(
    selection: Selection, *, seed: int | None = None, start: float = 0.0, time_scale: float = 1.0
) -> Workload:
    """Make what `input.workload` names. Each run needs one of its own.

    Args:
        seed: of its random numbers; None: `engine.seed`.
        start: the engine's clock at time 0 of the workload.
        time_scale: what times between arrivals are multiplied with.

    Raises:
        ConfigError: the configuration names no workload, or an option is wrong.
        PluginError: the workload is not there or broken.
    """
    config = selection.loaded.config
    facts = WorkloadConfig(
        vocab_size=selection.spec.vocab_size,
        max_model_len=selection.max_model_len,
        seed=config.engine.seed if seed is None else seed,
        start=start,
        time_scale=time_scale,
        sampling=config.sampling,
    )
    return construct(choose_workload(selection.loaded, selection.registry), Workload, facts)
