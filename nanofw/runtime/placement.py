"""The target of executor `torch`: in this process, or over workers."""

from __future__ import annotations

from typing import Any

import torch

from nanofw.contracts.executor import Executor, ExecutorConfig
from nanofw.runtime.executor import TorchExecutor
from nanofw.runtime.options import TorchOptions
from nanofw.runtime.parallel.executor import ParallelExecutor


def torch_executor(options: TorchOptions | None, config: ExecutorConfig) -> Executor:
    """One rank computes in the process of its engine, several in one process each."""
    if config.engine.tensor_parallel_size > 1:
        return ParallelExecutor(options, config)
    return TorchExecutor(options, config)


def probe(device: str, options: Any) -> dict[str, Any] | str:
    """What `auto` and `explain` ask: whether this machine has the device."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        return "PyTorch finds no CUDA device here"
    return {}
