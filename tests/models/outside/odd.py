"""The decoder: a rope of its own in each layer, experts in 8 bits, an adapter by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional

from nanofw.attention_backends.sdpa import SdpaBackend
from nanofw.errors import ModelError
from nanofw.plugins import ForwardBatch, Model, ModelConfig

NAMES = ("query", "key", "value", "adapter", "out", "router", "up", "down")
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Layer, rotated queries and keys, values -> attended, [t, heads, width]."""


def shapes(config_json: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    c = config_json
    width, kv, heads = c["width"], c["kv_heads"] * c["head_width"], c["heads"] * c["head_width"]
    found: dict[str, tuple[int, ...]] = {"embedding": (c["vocabulary"], width)}
    for layer in range(c["depth"]):
        found |= {
            f"{layer}.query": (heads, width), f"{layer}.key": (kv, width),
            f"{layer}.value": (kv, width), f"{layer}.adapter": (kv, width),
            f"{layer}.out": (width, heads), f"{layer}.router": (c["experts"], width),
            f"{layer}.up": (c["experts"], c["expert_width"], width),
            f"{layer}.down": (c["experts"], width, c["expert_width"]),
        }  # fmt: skip
    return found


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** -(torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def norm(x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[-1],), eps=1e-6)


def hidden_states(
    weights: Mapping[str, torch.Tensor],
    config_json: Mapping[str, Any],
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    scales: torch.Tensor,
    attend: Attend,
) -> torch.Tensor:
    """The whole pass; what tests compute without an engine, too.

    Args:
        scales: float32[t], how much of the adapter each token gets.
    """
    c, x = config_json, weights["embedding"][token_ids]
    for layer in range(c["depth"]):
        w = {name: weights[f"{layer}.{name}"] for name in NAMES}
        h = norm(x)
        query, key, value = (
            (h @ w[name].T).unflatten(-1, (-1, c["head_width"])) for name in NAMES[:3]
        )
        value = value + scales[:, None, None] * (h @ w["adapter"].T).view_as(value)
        theta = c["ropes"][layer]["theta"]
        query, key = rotate(query, positions, theta), rotate(key, positions, theta)
        x = x + attend(layer, query, key, value).flatten(1) @ w["out"].T
        x = x + experts(norm(x), w, c["experts_per_token"])
    return norm(x)


def experts(x: torch.Tensor, w: Mapping[str, torch.Tensor], chosen: int) -> torch.Tensor:
    """Weights of experts are 8 bits wide, in hundredths."""
    shares, numbers = (x @ w["router"].T).softmax(-1).topk(chosen)
    up, down = w["up"].float() / 100, w["down"].float() / 100
    inner = functional.silu(torch.einsum("tw,tkew->tke", x, up[numbers]))
    return torch.einsum("tk,tke,tkwe->tw", shares, inner, down[numbers])


class OddForCausalLM(Model):
    """Constructed as `OddForCausalLM(options, config)`."""

    def __init__(self, options: Any, config: ModelConfig) -> None:
        self._broken, self._backend = options.broken, config.attention_backend
        self._scale = config.spec.head_dim**-0.5
        self._json = dict(config.spec.raw)
        if options.experts_per_token is not None:
            self._json["experts_per_token"] = options.experts_per_token
        self._weights: dict[str, torch.Tensor] = {}

    def parameters(self) -> Iterator[torch.Tensor]:
        return iter(self._weights.values())

    def check(self, arguments: Any) -> None:
        if arguments is None:
            return
        if not isinstance(arguments, dict) or set(arguments) != {"scale"}:
            raise ValueError("arguments are {'scale': a number}")

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        if self._broken == "load":
            raise RuntimeError("no weights today")
        self._weights = dict(tensors)
        if wrong := set(shapes(self._json)) ^ set(self._weights):
            raise ModelError(f"tensors missing or unexpected: {sorted(wrong)}")

    def forward(self, batch: ForwardBatch, pool: list[Any]) -> torch.Tensor:
        if self._broken == "forward":
            raise RuntimeError("no forward today")

        def attend(
            layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
        ) -> torch.Tensor:
            return self._backend.forward(query, key, value, layer, pool[layer], batch, self._scale)

        scales = torch.zeros(len(batch.token_ids))
        start = 0
        for row, count in zip(batch.rows.tolist(), batch.host_query_lens.tolist(), strict=True):
            if row in batch.arguments:
                scales[start : start + count] = batch.arguments[row]["scale"]
            start += count
        states = hidden_states(
            self._weights, self._json, batch.token_ids, batch.positions, scales, attend
        )
        return states[batch.logits_indices]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._broken == "logits":
            raise SystemExit(0)
        return hidden @ self._weights["embedding"].T


class FailingBackend(SdpaBackend):
    """Fails once a row is longer than its prompt."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        batch: ForwardBatch = args[5]
        if batch.num_decodes:
            raise RuntimeError("the kernel is lost")
        return super().forward(*args, **kwargs)
