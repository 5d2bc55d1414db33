"""Filling parameters from a checkpoint, straight into their place, and knowing what is missing.

A layer knows the names under which checkpoints keep its weights: `targets(prefix)` maps each of
them to a function that takes the tensor and copies the part of this rank. Nothing is held twice:
parameters are created empty, and one tensor of the checkpoint is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import nn

from nanofw.errors import ModelError
from nanofw.kernels.products import choose

Targets = dict[str, Callable[[torch.Tensor], None]]
"""Checkpoint name -> what takes the tensor of that name."""

_SHOWN = 8
_PLAIN = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def empty_parameter(*shape: int, dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """An uninitialised parameter that needs no gradient and counts what is loaded into it."""
    parameter = nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
    parameter.num_loaded = 0  # pyright: ignore[reportAttributeAccessIssue]
    return parameter


def fill(parameter: nn.Parameter, part: torch.Tensor, source: torch.Tensor) -> None:
    """Copy `source` into `part`, a view of `parameter`.

    ValueError when the shapes differ, when `source` holds the codes of quantized weights, or
    when its numbers are too large for the parameter's type.
    """
    if source.dtype not in _PLAIN:
        raise ValueError(f"is {source.dtype}: quantized weights are not supported")
    if part.shape != source.shape:
        raise ValueError(f"has shape {list(source.shape)} where {list(part.shape)} is needed")
    with torch.no_grad():
        part.copy_(source)
        if part.dtype == torch.float16 and source.dtype != torch.float16:
            _check_range(part, source)
    parameter.num_loaded += part.numel()  # pyright: ignore[reportAttributeAccessIssue]


def _check_range(part: torch.Tensor, source: torch.Tensor) -> None:
    """The other types reach far beyond float16's 65504; infinite weights end in no token at all."""
    if bool(part.isinf().any()) and bool(source.isfinite().all()):
        largest = float(source.abs().max())
        raise ValueError(
            f"has numbers up to {largest:.3g}, beyond float16: run with model.dtype=bfloat16 or "
            "float32"
        )


def joined(*parts: Targets) -> Targets:
    """The targets of several layers as one."""
    result: Targets = {}
    for part in parts:
        result |= part
    return result


def load_tensors(
    model: nn.Module,
    tensors: Iterable[tuple[str, torch.Tensor]],
    targets: Mapping[str, Callable[[torch.Tensor], None]],
    *,
    ignored: Callable[[str], bool] = lambda name: False,
) -> None:
    """Give each tensor to its target, then let the layers finish.

    Args:
        model: its parameters must all be filled at the end.
        tensors: name and content, in any order.
        targets: what the model needs; all of it is required.
        ignored: names that a checkpoint may hold without a use for them.

    Raises:
        ModelError: one error that lists every missing, unexpected and misshapen tensor.
    """
    seen: set[str] = set()
    unexpected: list[str] = []
    wrong: list[str] = []
    for name, tensor in tensors:
        take = targets.get(name)
        if take is None:
            if not ignored(name):
                unexpected.append(name)
            continue
        try:
            take(tensor)
        except ValueError as error:
            wrong.append(f"{name} {error}")
        seen.add(name)
    missing = [name for name in targets if name not in seen]
    _refuse(missing, unexpected, wrong, type(model).__name__)
    _check_complete(model)
    _finish(model)


def fill_random(model: nn.Module, *, deviation: float = 0.02) -> None:
    """Fill every parameter where it lies: matrices with random numbers, vectors with ones.

    What comes out has the speed of real weights and means nothing.
    """
    with torch.no_grad():
        for _, parameter in _parameters(model):
            if parameter.dim() > 1:
                parameter.normal_(0, deviation)
            else:
                parameter.fill_(1)
            parameter.num_loaded = parameter.numel()  # pyright: ignore[reportAttributeAccessIssue]
    _finish(model)


def _finish(model: nn.Module) -> None:
    shapes = (getattr(module, "weight_shape", None) for module in model.modules())
    choose([shape for shape in shapes if shape is not None])  # all at once: see there
    for module in model.modules():
        finish = getattr(module, "finish_loading", None)
        if finish is not None:
            finish()


def _refuse(missing: list[str], unexpected: list[str], wrong: list[str], model: str) -> None:
    problems = {
        "missing": missing,
        "unexpected": unexpected,
        "of the wrong shape or type": wrong,
    }
    lines = [
        f"{len(names)} tensors {what}: {_listed(names)}" if len(names) > 1
        else f"a tensor {what}: {names[0]}"
        for what, names in problems.items()
        if names
    ]  # fmt: skip
    if lines:
        hint = "" if not unexpected else f"; {model} has no place for what is unexpected"
        raise ModelError(
            "the checkpoint does not fit its config.json: " + "; ".join(lines) + hint
            + ". Check that both belong to the same model"
        )  # fmt: skip


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _check_complete(model: nn.Module) -> None:
    incomplete = [name for name, parameter in _parameters(model) if not _is_full(parameter)]
    if incomplete:
        raise ModelError(
            f"{type(model).__name__} left parameters unloaded: {_listed(incomplete)}; "
            "its layers' targets do not cover them"
        )


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return model.named_parameters()


def _is_full(parameter: nn.Parameter) -> bool:
    return getattr(parameter, "num_loaded", 0) == parameter.numel()
