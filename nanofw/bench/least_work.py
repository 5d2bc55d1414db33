"""What a step cannot do without: bytes that it reads, and operations, from the model's shape."""

from __future__ import annotations

from dataclasses import dataclass

from nanofw.contracts.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastWork:
    """Of one step, on one device.

    Attributes:
        weight_bytes: read once; of a model with experts, those that independent tokens choose.
        kv_bytes: of keys and values, read by decoding rows, or written by a prompt.
        flops: multiplications and additions of products and attention.
        attention_flops: those of attention alone.
    """

    weight_bytes: float
    kv_bytes: float
    flops: float
    attention_flops: float

    @property
    def num_bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes


def of_decode(spec: ModelSpec, batch_size: int, context: float) -> LeastWork:
    """A step in which `batch_size` rows of `context` keys make a token each."""
    keys = sum(min(context, window or context) for window in _windows(spec))  # over all layers
    per_token = spec.kv_bytes_per_token / spec.num_layers
    return _work(spec, batch_size, batch_size, batch_size * per_token * keys, batch_size * keys)


def of_prefill(spec: ModelSpec, num_tokens: int) -> LeastWork:
    """A step that computes one prompt and samples after its last token."""
    pairs = 0.0
    for window in _windows(spec):
        seen = min(num_tokens, window or num_tokens)  # from here on, every token sees as many keys
        pairs += seen * (seen + 1) / 2 + (num_tokens - seen) * seen
    return _work(spec, num_tokens, 1, num_tokens * spec.kv_bytes_per_token, pairs)


def _windows(spec: ModelSpec) -> tuple[int | None, ...]:
    return spec.sliding_windows or (None,) * spec.num_layers


def _work(
    spec: ModelSpec, num_tokens: int, num_sampled: int, kv_bytes: float, pairs: float
) -> LeastWork:
    """`pairs`: of a query's token and a key, over all layers."""
    inactive = 1 - spec.num_active_parameters / max(1, spec.num_layer_parameters)
    head = spec.num_head_parameters
    of_attention = 4.0 * spec.num_heads * spec.head_dim * pairs
    return LeastWork(
        weight_bytes=spec.layer_weight_bytes * (1 - inactive**num_tokens)
        + head * spec.bytes_per_element,
        kv_bytes=kv_bytes,
        flops=2.0 * (spec.num_active_parameters * num_tokens + head * num_sampled) + of_attention,
        attention_flops=of_attention,
    )
