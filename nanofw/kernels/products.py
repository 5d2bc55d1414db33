"""Products with a constant weight on a CPU, each by the way that was fastest when it was tried.

Which library multiplies fastest, and which layout it wants of the weight, depends on the
processor, on the weight's shape and on the number of rows: a single row is bound by reading the
weight, many are bound by arithmetic. So the ways are measured, once for each shape on a machine
(`product_cache.py` keeps what was found), and each weight is held in one layout:

    packed       in oneDNN's own layout, for its product
    plain        [out, in]: x W^T by rows, or W x^T and its transpose
    transposed   [in, out]: PyTorch's product, or NumPy's (OpenBLAS), which takes one thread

The layout is the one whose best ways are least behind the best of all ways, over `ROWS`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter, thread_time
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch.nn import functional

from nanofw.kernels.linear import can_pack, pack, packed_linear
from nanofw.kernels.product_cache import ProductCache
from nanofw.machine import num_numpy_threads

logger: logging.Logger = logging.getLogger(__name__)

Multiply: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""x [n, in], the weight in its layout, the bias or None: [n, out]."""

ROWS = (1, 2, 4, 8, 16, 32, 128)
"""Numbers of rows that are measured; others go the way of the nearest."""
_BORDERS = (1, 3, 6, 12, 24, 64)  # numbers of rows up to which each of ROWS stands, but the last
_LEAST_ELEMENTS = 1 << 16  # smaller weights take microseconds either way
_MOST_BYTES = 8 << 20  # of a weight that is measured; a larger one is cut
_SECONDS_OF_ROWS = 0.03  # spent on one number of rows, over all shapes
_MOST_ROUNDS = 5


class WeightShape(NamedTuple):
    """What a choice depends on.

    Attributes:
        is_shared: another layer reads the weight too, so that it cannot be packed.
    """

    inputs: int
    outputs: int
    dtype: torch.dtype
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class ProductChoice:
    """A layout, and its product for each of `ROWS`."""

    layout: str
    products: tuple[str, ...]


_known: dict[str, ProductChoice] = {}  # in this process, by the name of a shape


class ConstantWeight:
    """A weight in the layout of its choice.

    Attributes:
        stored: in this layout; only `transposed` and `plain` can be read by others.
        layout: the name of the layout.
    """

    __slots__ = ("_by_rows", "_most", "layout", "stored")

    def __init__(self, weight: torch.Tensor, choice: ProductChoice) -> None:
        self.layout: str = choice.layout
        self.stored: torch.Tensor = _LAYOUTS[choice.layout](weight.detach())
        ways = [_PRODUCTS[choice.layout][name] for name in choice.products]
        limits = (0, *_BORDERS)
        self._by_rows: list[Multiply] = [ways[0]]
        for way, low, high in zip(ways, limits, _BORDERS, strict=False):
            self._by_rows += [way] * (high - low)
        self._by_rows.append(ways[-1])
        self._most = len(self._by_rows) - 1

    def readable(self) -> torch.Tensor:
        """The weight as [out, in], a view of what is stored; not of a packed one."""
        return self.stored.t() if self.layout == "transposed" else self.stored

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The product of [..., in] with the weight, plus the bias: [..., out]."""
        if x.ndim == 2:
            return self._by_rows[min(x.shape[0], self._most)](x, self.stored, bias)
        rows = x.reshape(-1, x.shape[-1])
        out = self._by_rows[min(rows.shape[0], self._most)](rows, self.stored, bias)
        return out.view(*x.shape[:-1], out.shape[1])


def is_chosen(weight: torch.Tensor) -> bool:
    """Whether products with this weight are chosen here: float32 and bfloat16 on a CPU."""
    return weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)


def choose(shapes: Iterable[WeightShape]) -> dict[WeightShape, ProductChoice]:
    """A choice for each shape: what was found before on this machine, else a measurement.

    Shapes of one model are measured together, so that weights are read from where they lie in a
    run: from memory, where those of the model do not fit into the caches.
    """
    names = {shape: _name(shape) for shape in shapes}
    unknown: dict[str, WeightShape] = {}
    for shape, name in names.items():
        if name not in _known and shape.inputs * shape.outputs < _LEAST_ELEMENTS:
            _known[name] = _unmeasured(shape)
        elif name not in _known:
            unknown[name] = shape
    if unknown:
        found = ProductCache().get_or_measure(
            unknown, lambda wanted: _measure([unknown[name] for name in wanted])
        )
        _known.update({name: _checked(found[name], shape) for name, shape in unknown.items()})
    return {shape: _known[name] for shape, name in names.items()}


def _unmeasured(shape: WeightShape) -> ProductChoice:
    ways = _ways(shape)
    layout = "packed" if "packed" in ways else "plain"
    return ProductChoice(layout, (ways[layout][0],) * len(ROWS))


def _checked(found: tuple[str, list[str]], shape: WeightShape) -> ProductChoice:
    """What was found, if it can be used here."""
    layout, products = found
    usable = _ways(shape).get(layout, ())
    if len(products) == len(ROWS) and all(name in usable for name in products):
        return ProductChoice(layout, tuple(products))
    return _unmeasured(shape)


def _ways(shape: WeightShape) -> dict[str, tuple[str, ...]]:
    """The products of each layout that can be used for a shape."""
    ways: dict[str, tuple[str, ...]] = {"plain": ("rows", "columns"), "transposed": ("torch",)}
    if not shape.is_shared and can_pack(torch.empty(0, dtype=shape.dtype)):
        ways["packed"] = ("onednn",)
    if _numpy_multiplies(shape.dtype):
        ways["transposed"] += ("numpy",)
    return ways


def _numpy_multiplies(dtype: torch.dtype) -> bool:
    """NumPy's threads are other threads than PyTorch's: more than one would be in their way.

    Its one thread is often faster than two of PyTorch's, which wait for each other.
    """
    return dtype == torch.float32 and num_numpy_threads() == 1


def _name(shape: WeightShape) -> str:
    kind = str(shape.dtype).removeprefix("torch.")
    words = [f"{shape.inputs} x {shape.outputs} {kind}", f"threads {torch.get_num_threads()}"]
    words += ["shared"] if shape.is_shared else []
    words += ["numpy"] if _numpy_multiplies(shape.dtype) else []
    return ", ".join(words)


@torch.no_grad()
def _measure(shapes: list[WeightShape]) -> dict[str, tuple[str, list[str]]]:
    """Layout and products of each shape, by the shape's name."""
    begin = perf_counter()
    weights = {shape: _samples(shape) for shape in shapes}
    by_rows = [_seconds(weights, rows) for rows in ROWS]
    logger.info(
        "%d shapes of matrix products were measured in %.2f s", len(shapes), perf_counter() - begin
    )
    return {_name(shape): _best([seconds[shape] for seconds in by_rows]) for shape in shapes}


def _samples(shape: WeightShape) -> dict[str, torch.Tensor]:
    """A weight of a shape, or of its first outputs, in each usable layout."""
    outputs = min(shape.outputs, max(1, _MOST_BYTES // (shape.inputs * shape.dtype.itemsize)))
    weight = torch.full((outputs, shape.inputs), 0.5, dtype=shape.dtype)
    return {layout: _LAYOUTS[layout](weight) for layout in _ways(shape)}


def _seconds(
    weights: dict[WeightShape, dict[str, torch.Tensor]], rows: int
) -> dict[WeightShape, dict[tuple[str, str], float]]:
    """The shortest time of each shape's ways with this many rows, by layout and product.

    Time of the thread, which others on the machine change little, if there is one thread.
    """
    clock = thread_time if torch.get_num_threads() == 1 else perf_counter
    best: dict[WeightShape, dict[tuple[str, str], float]] = {shape: {} for shape in weights}
    begin = perf_counter()
    for turn in range(_MOST_ROUNDS + 1):
        for shape, layouts in weights.items():
            x = torch.full((rows, shape.inputs), 0.5, dtype=shape.dtype)
            for layout, name in _all_ways(shape):
                start = clock()
                _PRODUCTS[layout][name](x, layouts[layout], None)
                taken = clock() - start
                if turn:  # the first prepares
                    way = (layout, name)
                    best[shape][way] = min(taken, best[shape].get(way, taken))
        if turn and perf_counter() - begin > _SECONDS_OF_ROWS:
            break
    return best


def _all_ways(shape: WeightShape) -> list[tuple[str, str]]:
    return [(layout, name) for layout, names in _ways(shape).items() for name in names]


def _best(seconds: list[dict[tuple[str, str], float]]) -> tuple[str, list[str]]:
    """The layout that loses least against the best of all, and its best products."""
    losses: dict[str, float] = {}
    products: dict[str, list[str]] = {}
    for measured in seconds:
        least = min(measured.values())
        for layout in {layout for layout, _ in measured}:
            own = {name: taken for (where, name), taken in measured.items() if where == layout}
            name = min(own, key=own.__getitem__)
            products.setdefault(layout, []).append(name)
            losses[layout] = losses.get(layout, 0.0) + own[name] / max(least, 1e-9)
    layout = min(losses, key=losses.__getitem__)
    return layout, products[layout]


def _by_onednn(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return packed_linear(x, packed, bias)


def _by_rows(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return functional.linear(x, weight, bias)


def _by_columns(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out = torch.mm(weight, x.t()).t().contiguous()
    return out if bias is None else out.add_(bias)


def _by_torch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)


def _by_numpy(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out = x.new_empty(x.shape[0], weight.shape[1])
    np.matmul(x.numpy(), weight.numpy(), out=out.numpy())
    return out if bias is None else out.add_(bias)


_LAYOUTS: MappingProxyType[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {
        "packed": pack,
        "plain": lambda weight: weight,
        "transposed": lambda weight: weight.t().contiguous(),
    }
)
_PRODUCTS: MappingProxyType[str, MappingProxyType[str, Multiply]] = MappingProxyType(
    {
        "packed": MappingProxyType({"onednn": _by_onednn}),
        "plain": MappingProxyType({"rows": _by_rows, "columns": _by_columns}),
        "transposed": MappingProxyType({"torch": _by_torch, "numpy": _by_numpy}),
    }
)
