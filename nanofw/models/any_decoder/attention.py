"""The attention function that transformers calls in place of its own."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from nanofw.contracts.attention_backend import AttentionBackend, ForwardBatch
from nanofw.contracts.communicator import Communicator

NAME = "nanofw_paged"
"""What transformers knows it by."""
_ATTRIBUTE = "nanofw_pass"


@dataclass(slots=True)
class AttentionCall:
    """What a layer handed to the attention: [t, heads, d] each, and the function's arguments."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    arguments: dict[str, Any]


@dataclass(slots=True)
class AttentionPass:
    """The forward pass that one model is in: every attention module of it refers to this object.

    Attributes:
        backend: what attends.
        head_dim: of queries and keys; values may be narrower.
        num_heads: query heads of this rank.
        ranks: those that share the heads.
        batch, pool: of this pass, or None.
        calls: of a trial, by layer; None outside a trial.
    """

    backend: AttentionBackend
    head_dim: int
    num_heads: int
    ranks: Communicator
    batch: ForwardBatch | None = None
    pool: list[Any] = field(default_factory=list[Any])
    calls: dict[int, list[AttentionCall]] | None = None

    def attend(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """[t, heads, size of values]; a trial only notes the call."""
        width = call.value.shape[-1]
        if self.calls is not None:
            self.calls.setdefault(layer, []).append(call)
            return call.query.new_zeros(*call.query.shape[:2], width)
        if call.query.shape[1] == self.num_heads:
            return self._attend(layer, call, width)
        call.query, call.key, call.value = map(self._own, (call.query, call.key, call.value))
        return self.ranks.all_gather(self._attend(layer, call, width), dim=1)

    def _own(self, heads: torch.Tensor) -> torch.Tensor:
        """This rank's heads of a family whose layers compute all of them on every rank."""
        return heads.chunk(self.ranks.size, 1)[self.ranks.rank]

    def _attend(self, layer: int, call: AttentionCall, width: int) -> torch.Tensor:
        assert self.batch is not None
        value = call.value
        if width < self.head_dim:  # the pool has one size for keys and values
            value = functional.pad(value, (0, self.head_dim - width))
        out = self.backend.forward(
            call.query, call.key, value, layer, self.pool[layer], self.batch,
            call.arguments["scaling"],
        )  # fmt: skip
        return out[..., :width]


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *positional: Any,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls it: [1, heads, t, d] each; gives [1, t, heads, d] and no weights."""
    current: AttentionPass = getattr(module, _ATTRIBUTE)
    if current.calls is not None:
        kwargs |= {"attention_mask": attention_mask, "module": module, "positional": positional}
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = AttentionCall(
        query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1),
        {"scaling": scaling, **kwargs},
    )  # fmt: skip
    layer: int = getattr(module, "layer_idx")  # noqa: B009
    return current.attend(layer, call).unsqueeze(0), None


def install(model: torch.nn.Module, current: AttentionPass) -> None:
    """Let the attention of every layer of a model refer to its pass."""
    for module in model.modules():
        if isinstance(getattr(module, "layer_idx", None), int):
            setattr(module, _ATTRIBUTE, current)


def register() -> None:
    """Make the function known to transformers; once is enough."""
    interface: Any = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    if NAME not in interface:
        interface.register(NAME, paged_attention)
