"""Tensors that a plugin answered, held to their shape and type."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nanofw.plugin_calls import WrongAnswer


def checked_tensor(
    part: object, method: str, found: object, shape: Sequence[int], like: torch.Tensor
) -> torch.Tensor:
    """What a part of the step, a model for example, answered.

    Args:
        like: a tensor of the type and the device that the answer must have.

    Raises:
        WrongAnswer: it is not a tensor of this shape, type and device.
    """
    if (
        isinstance(found, torch.Tensor)
        and found.shape == shape
        and found.dtype == like.dtype
        and found.device == like.device
    ):
        return found
    sizes = ", ".join(map(str, shape))
    kind = str(like.dtype).removeprefix("torch.")
    raise WrongAnswer(part, method, found, f"{kind}[{sizes}] on {like.device}")
