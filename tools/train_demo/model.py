"""The Qwen3 architecture in plain torch, with dropout for training and a cache for sampling.

Parameter names are those of a published checkpoint, so that the state dict is the export.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.train_demo.settings import Settings

Cache = list[tuple[Tensor, Tensor]]


class RMSNorm(nn.Module):
    """Divides by the root mean square, in float32, and scales."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotary_table(settings: Settings, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each [context, head_dim], halves repeated."""
    half = torch.arange(0, settings.head_dim, 2, device=device, dtype=torch.float32)
    inverse = settings.rope_theta ** (-half / settings.head_dim)
    angles = torch.outer(torch.arange(settings.context, device=device).float(), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to [batch, heads, length, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with a norm on each query and key head."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.shape = (s.num_heads, s.num_kv_heads, s.head_dim)
        self.q_proj = nn.Linear(s.hidden_size, s.num_heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden_size, s.num_kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden_size, s.num_kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.num_heads * s.head_dim, s.hidden_size, bias=False)
        self.q_norm = RMSNorm(s.head_dim, s.norm_eps)
        self.k_norm = RMSNorm(s.head_dim, s.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache | None) -> Tensor:
        heads, kv_heads, size = self.shape
        batch, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(batch, length, heads, size)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, length, kv_heads, size)).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, kv_heads, size).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            if cache:
                past_k, past_v = cache.pop()
                k, v = torch.cat((past_k, k), dim=2), torch.cat((past_v, v), dim=2)
            cache.append((k, v))
        k = k.repeat_interleave(heads // kv_heads, dim=1)
        v = v.repeat_interleave(heads // kv_heads, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, heads * size))


class MLP(nn.Module):
    """The gated feed-forward part."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.up_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.down_proj = nn.Linear(s.intermediate_size, s.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feed-forward part, each with its norm and, in training, dropout."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.self_attn = Attention(s)
        self.mlp = MLP(s)
        self.input_layernorm = RMSNorm(s.hidden_size, s.norm_eps)
        self.post_attention_layernorm = RMSNorm(s.hidden_size, s.norm_eps)
        self.dropout = nn.Dropout(s.dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache | None) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin, cache))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Backbone(nn.Module):
    """Embedding, layers, last norm: what a checkpoint keeps under ``model.``."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab_size, s.hidden_size)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.num_layers))
        self.norm = RMSNorm(s.hidden_size, s.norm_eps)
        self.dropout = nn.Dropout(s.dropout)


class DemoModel(nn.Module):
    """The whole model; the output layer is the embedding."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.model = Backbone(settings)
        self._tables: tuple[Tensor, Tensor] | None = None
        self.apply(self._initialise)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.settings.init_std)

    def forward(self, ids: Tensor, caches: list[Cache] | None = None, start: int = 0) -> Tensor:
        """Logits of every position of ``ids``, whose first one is position ``start``.

        With ``caches`` (one list per layer, empty at first) keys and values are kept; after the
        first call ``ids`` must then hold one position.
        """
        if self._tables is None or self._tables[0].device != ids.device:
            self._tables = rotary_table(self.settings, ids.device)
        cos, sin = (table[start : start + ids.shape[1]] for table in self._tables)
        x = self.model.dropout(self.model.embed_tokens(ids))
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, None if caches is None else caches[index])
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


def parameter_count(model: nn.Module) -> int:
    """Number of parameters; the shared output layer counts once."""
    return sum(parameter.numel() for parameter in model.parameters())
