"""Capturing work for replay, and sending what a replay needs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from nanofw.contracts.attention_backend import AttentionBackend
from nanofw.contracts.model import Model
from nanofw.contracts.sampler import SampledTokens, Sampler
from nanofw.runtime.batch import RowState

logger: logging.Logger = logging.getLogger(__name__)

Run = Callable[[], object]
_UPLOAD_BUFFERS = (
    4  # more than steps may be in flight: a buffer is not overwritten before it was sent
)


class Capturer(Protocol):
    """How a piece of work is captured for replay."""

    is_dry: bool

    def capture(self, run: Run, *, is_known: bool = False) -> Run:
        """Capture `run`; calling the result does its work again, on the same memory.

        Args:
            is_known: all kernels of `run` ran before, so that it need not run once first.
        """
        ...


class CudaCapturer:
    """Captures CUDA graphs into one memory pool.

    `torch.cuda.graph` would give free memory back before each of them, which the next one takes
    again. Empty the cache after the last one.
    """

    is_dry: bool = False

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def capture(self, run: Run, *, is_known: bool = False) -> Run:
        """Run once, so that kernels are compiled and libraries ready, then capture.

        What `is_known` is captured at once. If that fails, since a library had to prepare
        something that cannot be captured, it runs first after all.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            try:
                replay = self._captured(run) if is_known else None
            except RuntimeError as error:
                logger.debug("what was not run before could not be captured: %s", error)
                replay = None
            if replay is None:
                run()
                replay = self._captured(run)
        torch.cuda.current_stream().wait_stream(self._stream)
        return replay

    def _captured(self, run: Run) -> Run:
        graph = torch.cuda.CUDAGraph()
        # Relaxed: libraries load their kernels when they are first used.
        graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")
        try:
            run()
        finally:
            graph.capture_end()
        return graph.replay


class EagerCapturer:
    """Replays by running again: for dry runs, and for machines without a GPU.

    Attributes:
        is_dry: nothing will be replayed: only what is launched counts.
    """

    def __init__(self, *, is_dry: bool = False) -> None:
        self.is_dry: bool = is_dry

    def capture(self, run: Run, *, is_known: bool = False) -> Run:
        """Run once."""
        run()
        return run


SampleOnDevice = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, str], SampledTokens]
"""Hidden states, rows and positions on the device, variant of the sampler -> tokens."""


@dataclass(frozen=True, slots=True)
class GraphParts:
    """What a captured step runs.

    Attributes:
        sample: computes the logits and samples, on all ranks together.
        hidden: [>= rows, hidden size], where forward passes leave their result.
    """

    model: Model
    backend: AttentionBackend
    sampler: Sampler
    rows: RowState
    pool: list[object]
    block_size: int
    sample: SampleOnDevice
    hidden: torch.Tensor

    @property
    def longest(self) -> int:
        """No row has more keys."""
        return self.rows.token_ids.shape[1]


class Upload:
    """Numbers of each row of a step on the device, and host buffers in turn, pinned for a GPU.

    Attributes:
        on_device: int64[size, width].
    """

    def __init__(self, size: int, width: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.on_device: torch.Tensor = torch.zeros(size, width, dtype=torch.int64, device=device)
        self._buffers = [
            torch.zeros(size, width, dtype=torch.int64, pin_memory=pinned)
            for _ in range(_UPLOAD_BUFFERS)
        ]
        self._arrays = [buffer.numpy() for buffer in self._buffers]
        self._turn = 0

    def next(self) -> np.ndarray:
        """The buffer to fill now."""
        self._turn = (self._turn + 1) % _UPLOAD_BUFFERS
        return self._arrays[self._turn]

    def send(self, size: int) -> None:
        """Copy the first rows of that buffer to the device, without waiting."""
        self.on_device[:size].copy_(self._buffers[self._turn][:size], non_blocking=True)
