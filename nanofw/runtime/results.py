"""Results on their way from the device, and how long a step took there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

import torch

from nanofw.contracts.arrays import BoolArray, Float32Array, IntArray
from nanofw.contracts.outputs import TokenLogprobs
from nanofw.contracts.sampler import SampledTokens
from nanofw.runtime.logprobs import RowLogprobs

NOTHING: Mapping[int, torch.Tensor] = MappingProxyType({})


class Transfer:
    """What a step found, on its way to the host; nothing may be read before `wait`.

    Args:
        sampled: the sampled tokens.
        logprobs, prompt_logprobs: of them and of the prompts, where rows asked.
        embeddings: by row, float32[hidden] of prompts.
    """

    def __init__(
        self,
        sampled: SampledTokens,
        logprobs: RowLogprobs | None = None,
        prompt_logprobs: RowLogprobs | None = None,
        embeddings: Mapping[int, torch.Tensor] = NOTHING,
    ) -> None:
        self._token_ids = _to_host(sampled.token_ids)
        self._failed = _to_host(sampled.failed)
        self._logprobs = logprobs and logprobs.copied(_to_host)
        self._prompt_logprobs = prompt_logprobs and prompt_logprobs.copied(_to_host)
        self._embeddings = {row: _to_host(pooled) for row, pooled in embeddings.items()}
        self._done: torch.cuda.Event | None = None
        if sampled.token_ids.is_cuda:
            self._done = torch.cuda.Event()
            self._done.record()

    def wait(self) -> tuple[IntArray, BoolArray]:
        """int32[s] tokens and bool[s] failures, once they are there and no later."""
        if self._done is not None:
            self._done.synchronize()
        return self._token_ids.numpy(), self._failed.numpy()

    def logprobs(self) -> dict[int, TokenLogprobs]:
        """Of the sampled tokens, by row."""
        return {} if self._logprobs is None else self._logprobs.by_row()

    def prompt_logprobs(self) -> dict[int, TokenLogprobs]:
        """Of prompt tokens, by row."""
        return {} if self._prompt_logprobs is None else self._prompt_logprobs.by_row()

    def embeddings(self) -> dict[int, Float32Array]:
        """Of prompts, by row."""
        return {row: pooled.numpy() for row, pooled in self._embeddings.items()}


class Timer:
    """Seconds from its creation to `stop`, on the device."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._start = self._mark()
        self._stop = self._start

    def stop(self) -> None:
        """The step's last operation was enqueued."""
        self._stop = self._mark()

    def seconds(self) -> float:
        """Read after the step was waited for."""
        if isinstance(self._start, float) and isinstance(self._stop, float):
            return self._stop - self._start
        assert isinstance(self._start, torch.cuda.Event)
        assert isinstance(self._stop, torch.cuda.Event)
        self._stop.synchronize()
        return self._start.elapsed_time(self._stop) / 1000

    def _mark(self) -> float | torch.cuda.Event:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host, pinned and not waited for where the tensor is on an accelerator."""
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
