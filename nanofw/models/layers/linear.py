"""Linear layers that are split over ranks and load their own weights.

A column parallel layer keeps a slice of the outputs, a row parallel one a slice of the inputs
and sums the partial products. With one rank they are ordinary layers. `communicator` says who
else there is; nothing is looked up elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from nanofw.contracts.communicator import Communicator
from nanofw.contracts.model_spec import heads_of_rank
from nanofw.errors import ModelError
from nanofw.kernels.linear import linear
from nanofw.kernels.products import ConstantWeight, WeightShape, choose, is_chosen
from nanofw.models.layers.layer import Layer
from nanofw.models.layers.loading import Targets, empty_parameter, fill


class Linear(Layer):
    """y = x W^T + b with this rank's weight [out_features, in_features]."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    _is_shared = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.weight = empty_parameter(out_features, in_features, dtype=dtype, device=device)
        self.bias = empty_parameter(out_features, dtype=dtype, device=device) if bias else None
        self._constant: ConstantWeight | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        if self._constant is not None:
            return self._constant.multiply(x, self.bias)
        assert self.weight is not None
        return linear(x, self.weight, self.bias)

    @property
    def weight_shape(self) -> WeightShape | None:
        """What the way of its products is chosen by; None: there is no choice."""
        if self.weight is None or not is_chosen(self.weight):
            return None
        outputs, inputs = self.weight.shape
        return WeightShape(inputs, outputs, self.weight.dtype, self._is_shared)

    def finish_loading(self) -> None:
        """Bring the weight into the layout that the CPU multiplies fastest with."""
        shape = self.weight_shape
        if self.weight is not None and shape is not None:
            self._constant = ConstantWeight(self.weight, choose([shape])[shape])
            self.weight = None


@dataclass(frozen=True, slots=True)
class Projection:
    """One of the projections that a column parallel layer computes together.

    Attributes:
        name: how checkpoints call it.
        size: its outputs over all ranks.
        num_shards: into how many slices the outputs are cut.
        shard: which of them this rank has.
        head_order: of the elements of each head, where the checkpoint has another one than the
            rotation here wants; empty: it stays.
    """

    name: str
    size: int
    num_shards: int
    shard: int
    head_order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.size % self.num_shards:
            raise ModelError(
                f"{self.name} has {self.size} outputs, which {self.num_shards} ranks cannot "
                "share evenly: choose another engine.tensor_parallel_size"
            )

    @property
    def local_size(self) -> int:
        return self.size // self.num_shards

    def slice_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's rows of the whole projection's weight or bias."""
        if tensor.shape[0] != self.size:
            raise ValueError(f"has {tensor.shape[0]} rows where {self.size} are needed")
        part = tensor.narrow(0, self.shard * self.local_size, self.local_size)
        if not self.head_order:
            return part
        order = torch.tensor(self.head_order, device=part.device)
        return part.unflatten(0, (-1, len(order)))[:, order].flatten(0, 1)


class ColumnParallelLinear(Linear):
    """Projections of one input in one product; each rank computes its slice of each.

    Args:
        fused_name: the checkpoint keeps all of them as one matrix of this name, one projection
            after the other; None: each under its own.
    """

    def __init__(
        self,
        in_features: int,
        projections: Sequence[Projection],
        *,
        fused_name: str | None = None,
        bias: bool = False,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.projections: tuple[Projection, ...] = tuple(projections)
        self._fused_name = fused_name
        out_features = sum(projection.local_size for projection in projections)
        super().__init__(in_features, out_features, bias=bias, dtype=dtype, device=device)

    def targets(self, prefix: str) -> Targets:
        """Where the tensors `<prefix><projection>.weight` (and `.bias`) go."""
        result: Targets = {}
        kinds = ("weight",) if self.bias is None else ("weight", "bias")
        if self._fused_name is not None:
            name = f"{prefix}{self._fused_name}"
            return {f"{name}.{kind}": partial(self._load_all, getattr(self, kind))
                    for kind in kinds}  # fmt: skip
        start = 0
        for projection in self.projections:
            for kind in kinds:
                name = f"{prefix}{projection.name}.{kind}"
                result[name] = partial(self._load, getattr(self, kind), projection, start)
            start += projection.local_size
        return result

    def _load_all(self, parameter: nn.Parameter, tensor: torch.Tensor) -> None:
        sizes = [projection.size for projection in self.projections]
        if tensor.shape[0] != sum(sizes):
            raise ValueError(f"has {tensor.shape[0]} rows where {sum(sizes)} are needed")
        start = 0
        for projection, part in zip(self.projections, tensor.split(sizes), strict=True):
            self._load(parameter, projection, start, part)
            start += projection.local_size

    @staticmethod
    def _load(
        parameter: nn.Parameter, projection: Projection, start: int, tensor: torch.Tensor
    ) -> None:
        part = parameter.narrow(0, start, projection.local_size)
        fill(parameter, part, projection.slice_of(tensor))


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Projections that are each split evenly, for example gate and up."""

    def __init__(
        self,
        in_features: int,
        sizes: Sequence[int],
        names: Sequence[str],
        *,
        fused_name: str | None = None,
        bias: bool = False,
        dtype: torch.dtype,
        device: torch.device,
        communicator: Communicator,
    ) -> None:
        projections = [
            Projection(name, size, communicator.size, communicator.rank)
            for name, size in zip(names, sizes, strict=True)
        ]
        super().__init__(
            in_features, projections, fused_name=fused_name, bias=bias, dtype=dtype, device=device
        )


class QKVParallelLinear(ColumnParallelLinear):
    """Queries, keys and values of this rank's heads in one product.

    With more ranks than KV heads, neighbouring ranks hold the same KV head.

    Attributes:
        num_heads, num_kv_heads: this rank's.

    Args:
        head_order: of the elements of each query and key, see `Projection`.
    """

    def __init__(
        self,
        in_features: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        head_order: tuple[int, ...] = (),
        fused_name: str | None = None,
        bias: bool = False,
        dtype: torch.dtype,
        device: torch.device,
        communicator: Communicator,
    ) -> None:
        heads = heads_of_rank(num_heads, num_kv_heads, communicator.size)
        self.num_heads: int = heads[0]
        self.num_kv_heads: int = heads[1]
        rank, size = communicator.rank, communicator.size
        num_kv_shards = min(size, num_kv_heads)
        kv_shard = rank * num_kv_shards // size
        projections = [
            Projection("q_proj", num_heads * head_dim, size, rank, head_order),
            Projection("k_proj", num_kv_heads * head_dim, num_kv_shards, kv_shard, head_order),
            Projection("v_proj", num_kv_heads * head_dim, num_kv_shards, kv_shard),
        ]
        super().__init__(
            in_features, projections, fused_name=fused_name, bias=bias, dtype=dtype, device=device
        )


class RowParallelLinear(Linear):
    """A product whose inputs are split over ranks, summed over them.

    `name` is how checkpoints call it. The bias is added once, by the first rank.
    With `is_partial`, the output is this rank's part, and the caller sums over ranks.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        name: str,
        *,
        bias: bool = False,
        is_partial: bool = False,
        dtype: torch.dtype,
        device: torch.device,
        communicator: Communicator,
    ) -> None:
        self._is_partial = is_partial
        self._inputs = Projection(name, in_features, communicator.size, communicator.rank)
        self._communicator = communicator
        super().__init__(
            self._inputs.local_size, out_features, bias=bias, dtype=dtype, device=device
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., this rank's in_features] -> [..., out_features], the same on every rank."""
        part = super().forward(x)
        return part if self._is_partial else self._communicator.all_reduce(part)

    def targets(self, prefix: str) -> Targets:
        """Where the tensors `<prefix><name>.weight` (and `.bias`) go."""
        result: Targets = {f"{prefix}{self._inputs.name}.weight": self._load_weight}
        if self.bias is not None:
            result[f"{prefix}{self._inputs.name}.bias"] = self._load_bias
        return result

    def _load_weight(self, tensor: torch.Tensor) -> None:
        assert self.weight is not None
        fill(self.weight, self.weight.T, self._inputs.slice_of(tensor.T))

    def _load_bias(self, tensor: torch.Tensor) -> None:
        assert self.bias is not None
        fill(self.bias, self.bias, tensor)
        if self._communicator.rank:
            self.bias.zero_()
