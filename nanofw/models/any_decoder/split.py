"""A model of transformers over several ranks, as the family's own plan says.

transformers states for each family which modules are split and how (`base_model_tp_plan`). Each
rank keeps its part of their weights; what is in no plan is whole on every rank. The sums and
gathers go through the run's own communicator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from nanofw.contracts.communicator import Communicator
from nanofw.contracts.model_spec import ModelSpec, vocabulary_of_rank
from nanofw.errors import ModelError
from nanofw.models.layers.layer import Layer

_WHOLE = (
    "replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj", "embedding_rowwise",
    "embedding_colwise",
)  # fmt: skip
"""Styles whose modules are whole on every rank, or may be."""
_COLUMNS = ("colwise", "colwise_gather_output", "colwise_rep", "packed_colwise")
_ROWS = ("rowwise", "rowwise_split_input", "rowwise_rep")
_GATHERED = ("colwise_gather_output", "colwise_rep")
_DIVIDED = ("rowwise_split_input", "rowwise_rep")
_SUMMED = "moe_tp_experts"


class AcrossRanks(Layer):
    """A module that computes this rank's part, and what joins it with the others.

    Args:
        style: that of the module in the family's plan.
    """

    def __init__(self, part: nn.Module, style: str, ranks: Communicator) -> None:
        super().__init__()
        self.part: nn.Module = part
        self._style, self._ranks = style, ranks

    @property
    def weight(self) -> Any:
        """Families ask the weight of a layer for its type."""
        return self.part.weight

    def forward(self, x: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
        """What the whole module would give, the same on every rank."""
        if self._style in _DIVIDED:
            width = x.shape[-1] // self._ranks.size
            x = x.narrow(-1, self._ranks.rank * width, width)
        out = self.part(x, *more, **named)
        if self._style in _GATHERED:
            return self._ranks.all_gather(out, dim=-1)
        return self._ranks.all_reduce(out)


@torch.no_grad()
def split_model(model: Any, spec: ModelSpec, ranks: Communicator) -> None:
    """Leave each module this rank's part of its weights.

    Raises:
        ModelError: the family has no plan, or one that is not supported, or its parts are uneven.
    """
    plan: Mapping[str, str] = getattr(model.config, "base_model_tp_plan", None) or {}
    _check(plan, spec, ranks.size)
    body: nn.Module = getattr(model, model.base_model_prefix)
    styles = [(re.compile(name.replace(".", r"\.").replace("*", r"\d+")), plan[name])
              for name in plan]  # fmt: skip
    parts: list[tuple[str, Any]] = [*body.named_modules(), *body.named_parameters()]
    for name, part in sorted(parts, key=lambda item: -item[0].count(".")):  # inner ones first
        style = next((style for known, style in styles if known.fullmatch(name)), None)
        if style is None or style in _WHOLE:
            continue
        try:
            _split(body, name, part, style, ranks)
        except ValueError as error:
            raise _refusal(spec, f"{name} {error}") from None
    _split_head(model, spec, ranks)


def _check(plan: Mapping[str, str], spec: ModelSpec, size: int) -> None:
    known = {*_WHOLE, *_COLUMNS, *_ROWS, _SUMMED}
    if not set(plan.values()) - {*_WHOLE}:
        raise _refusal(spec, "transformers has no plan to split its layers (base_model_tp_plan)")
    if odd := sorted(set(plan.values()) - known):
        raise _refusal(spec, f"its plan asks for {', '.join(odd)}")
    if spec.num_kv_heads % size:
        raise _refusal(spec, f"its {spec.num_kv_heads} KV heads cannot be shared evenly")


def _refusal(spec: ModelSpec, reason: str) -> ModelError:
    return ModelError(
        f"{spec.path}: {reason}, so that model.name: transformers cannot split it over ranks: set "
        "engine.tensor_parallel_size to 1"
    )


def _split(body: nn.Module, name: str, part: Any, style: str, ranks: Communicator) -> None:
    """Cut one module or parameter of a plan."""
    home, _, last = name.rpartition(".")
    owner = body.get_submodule(home)
    if isinstance(part, nn.Parameter):  # of experts: [expert, out, in]
        setattr(owner, last, _part(part, style, ranks))
        return
    if style != _SUMMED:
        if type(part) is not nn.Linear:
            raise ValueError(f"is a {type(part).__name__}, not a linear layer")
        part.weight = _part(part.weight, style, ranks)
        if part.bias is not None and style not in _ROWS:
            part.bias = _part(part.bias, style, ranks)
        elif part.bias is not None and ranks.rank:
            part.bias = _parameter(torch.zeros_like(part.bias))  # the first rank adds it
        part.out_features, part.in_features = part.weight.shape
    if style in (_SUMMED, *_GATHERED, *_ROWS):
        setattr(owner, last, AcrossRanks(part, style, ranks))


def _part(weight: torch.Tensor, style: str, ranks: Communicator) -> nn.Parameter:
    """This rank's part: inputs of a row style, else outputs; of each half, if two are packed."""
    dim = -1 if style in _ROWS or weight.dim() == 1 else -2
    halves = 2 if style == "packed_colwise" else 1
    if weight.shape[dim] % (halves * ranks.size):
        raise ValueError(f"has {weight.shape[dim]} numbers, which {ranks.size} ranks cannot share")
    pieces = [half.chunk(ranks.size, dim)[ranks.rank] for half in weight.chunk(halves, dim)]
    return nn.Parameter(torch.cat(pieces, dim), requires_grad=False)


def _split_head(model: Any, spec: ModelSpec, ranks: Communicator) -> None:
    """Leave the head this rank's tokens, and zeros up to the width that all ranks have."""
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or head.weight.shape[0] != spec.vocab_size:
        raise _refusal(spec, "its head is not one product over the vocabulary")
    own = vocabulary_of_rank(spec.vocab_size, ranks.rank, ranks.size)
    padding = -(-spec.vocab_size // ranks.size) - len(own)
    head.weight = _parameter(functional.pad(head.weight[own.start : own.stop], (0, 0, 0, padding)))
    if head.bias is not None:
        head.bias = _parameter(functional.pad(head.bias[own.start : own.stop], (0, padding)))
    head.out_features = len(own) + padding


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    """With memory of its own: what it was cut from can go."""
    return nn.Parameter(tensor.clone(memory_format=torch.contiguous_format), requires_grad=False)
