"""Drives a model as an executor does: rows over a paged pool, all logits of a pass."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from nanofw.contracts.attention_backend import AttentionBackend, AttentionConfig, ForwardBatch
from nanofw.contracts.model import Model
from nanofw.testing.attention_backend_driver import AttentionBackendDriver


class ModelDriver(AttentionBackendDriver):
    """A model over a pool whose blocks are in random order, and held NaN before."""

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend,
        config: AttentionConfig,
        num_blocks: int,
        vocab_size: int,
    ) -> None:
        super().__init__(backend, config, num_blocks)
        self.model: Model = model
        self.vocab_size: int = vocab_size

    @torch.inference_mode()
    def logits(
        self,
        parts: Sequence[tuple[int, Sequence[int]]],
        *,
        num_padded: int = 0,
        only_last: bool = False,
    ) -> list[torch.Tensor]:
        """float32[tokens, vocab] of each row of a pass over (row, its next tokens).

        Args:
            parts: rows with one token first.
            num_padded: padded tokens after the rows with one token.
            only_last: of the last token of each row.
        """
        counts = [(row, len(tokens)) for row, tokens in parts]
        batch = self._batch(counts, num_padded)
        total = len(batch.positions)
        spans = [span for _, span in self._spans(counts, total)]
        batch.token_ids = torch.zeros(total, dtype=torch.int64, device=self.config.device)
        wanted: list[int] = []
        for span, (_, tokens) in zip(spans, parts, strict=True):
            batch.token_ids[span] = torch.tensor(list(tokens), device=self.config.device)
            places = range(span.start, span.stop)
            wanted += places[-1:] if only_last else places
        batch.logits_indices = torch.tensor(wanted, device=self.config.device)
        batch.attention = self.backend.prepare(batch)
        found = self.model.logits(self._hidden(batch, len(wanted)))
        expected = (len(wanted), self.vocab_size)
        assert tuple(found.shape) == expected, (
            f"logits() returned {list(found.shape)}, not {list(expected)}: {len(wanted)} positions "
            "were asked for"
        )
        self._advance(counts, total)
        sizes = [1 if only_last else len(tokens) for _, tokens in parts]
        return list(torch.split(found.float(), sizes))

    def layers(self) -> list[list[torch.Tensor]]:
        """The parameters of each layer; empty where their names do not number the layers."""
        if not isinstance(self.model, torch.nn.Module):
            return []
        found: dict[str, dict[int, list[torch.Tensor]]] = {}
        for name, parameter in self.model.named_parameters():
            numbered = re.match(r"(\D*)(\d+)\.", name)
            if numbered and parameter.is_floating_point():
                layers = found.setdefault(numbered[1], {})
                layers.setdefault(int(numbered[2]), []).append(parameter)
        numbers = range(self.config.num_layers)
        lists = [layers for layers in found.values() if set(numbers) <= set(layers)]
        return [[each for layers in lists for each in layers[n]] for n in numbers] if lists else []

    @torch.no_grad()
    def refill(self, layer: int) -> None:
        """Give one layer other numbers, which are large enough to attend by.

        Where `load` keeps matrices in another form, those of norms and biases are changed alone.
        """
        numbers = torch.Generator(self.config.device).manual_seed(1)
        for parameter in self.layers()[layer]:
            if parameter.dim() > 1:
                parameter.normal_(std=0.25, generator=numbers)
            else:
                parameter.uniform_(1.0, 3.0, generator=numbers)

    @torch.no_grad()
    def silence(self, layer: int) -> None:
        """Let one layer add nothing."""
        for parameter in self.layers()[layer]:
            parameter.zero_()

    def _hidden(self, batch: ForwardBatch, num_wanted: int) -> torch.Tensor:
        hidden = self.model.forward(batch, self.pool)
        assert hidden.dim() == 2, f"forward() returned {list(hidden.shape)}, not [s, hidden]"
        assert len(hidden) == num_wanted, (
            f"forward() returned {len(hidden)} positions; {num_wanted} were asked for in "
            "batch.logits_indices"
        )
        return hidden

    def _advance(self, counts: Sequence[tuple[int, int]], total: int) -> None:
        """The rows are longer now; what their keys were, the backend alone knows."""
        empty = torch.zeros(
            total, self.config.num_kv_heads, self.config.head_dim, device=self.config.device
        )
        for layer in range(self.config.num_layers):
            self._keep(counts, layer, empty, empty)
