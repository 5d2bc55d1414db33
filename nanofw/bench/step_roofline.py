"""Parts of a step on an accelerator against what each must read and compute at the card's rates."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nanofw.bench.least_work import LeastWork
from nanofw.measure.step_traces import Work

_ATTENTION = re.compile(r"flash|fmha|attention|attn|_decode_kernel|_prefill_kernel", re.IGNORECASE)
_PRODUCT = re.compile(r"gemm|gemv|nvjet|cutlass|_(one|few)_rows?_kernel|splitk", re.IGNORECASE)
_COPY_BYTES, _SIDE, _REPEATS = 1 << 30, 8192, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRates:
    """What a device does at best, measured.

    Attributes:
        bytes_per_s: of a large copy, read and written bytes together.
        flops_per_s: of a large product of matrices in the type of the run.
    """

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePart:
    """Kernels of one kind in a step.

    Attributes:
        num_bytes, flops: that they cannot do without; zero where that is not known.
    """

    name: str
    count: float
    seconds: float
    num_bytes: float
    flops: float

    def least_seconds(self, card: CardRates) -> float:
        """What they would take at the card's rates."""
        return max(self.num_bytes / card.bytes_per_s, self.flops / card.flops_per_s)


def step_parts(work: Sequence[Work], least: LeastWork) -> tuple[RooflinePart, ...]:
    """Products, attention, and all other kernels and copies, told apart by the kernels' names."""
    needs = {
        "products": (least.weight_bytes, least.flops - least.attention_flops),
        "attention": (least.kv_bytes, least.attention_flops),
        "others": (0.0, 0.0),
    }
    parts: list[RooflinePart] = []
    for name, (num_bytes, flops) in needs.items():
        own = [item for item in work if _part_of(item.name) == name]
        count, seconds = sum(item.count for item in own), sum(item.seconds for item in own)
        if own:
            parts.append(
                RooflinePart(
                    name=name, count=count, seconds=seconds, num_bytes=num_bytes, flops=flops
                )
            )
    return tuple(parts)


def _part_of(name: str) -> str:
    if _ATTENTION.search(name):  # its libraries are made of parts of those for products
        return "attention"
    return "products" if _PRODUCT.search(name) else "others"


def card_rates(device: str, dtype: str) -> CardRates | None:
    """Measure a CUDA device, in some tens of milliseconds; None where memory is too short."""
    import torch

    try:
        return _measured_rates(device, dtype)
    except torch.cuda.OutOfMemoryError:
        return None
    finally:
        torch.cuda.empty_cache()


def _measured_rates(device: str, dtype: str) -> CardRates:
    import torch

    of_run: torch.dtype = getattr(torch, dtype)
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    matrix = torch.randn(_SIDE, _SIDE, dtype=of_run, device=device)
    copy = _seconds(lambda: target.copy_(source))
    product = _seconds(lambda: torch.mm(matrix, matrix))
    return CardRates(bytes_per_s=2 * _COPY_BYTES / copy, flops_per_s=2 * _SIDE**3 / product)


def _seconds(run: Callable[[], object]) -> float:
    """Of the fastest call."""
    import torch

    times: list[float] = []
    for _ in range(_REPEATS):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times)
