"""The reference that nanofw's tokens are held to: transformers, in float32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LOGIT_BOUND = 1e-4
"""Largest difference of logits, as a share of their standard deviation."""
TIE = 10 * LOGIT_BOUND
"""A gap between the best two logits below this share of their deviation is a tie."""


@dataclass(slots=True)
class Agreement:
    """How greedy tokens compare with the reference's.

    Attributes:
        num_positions: generated tokens.
        num_compared: those before the first tie of their request.
        num_ties: requests whose comparison ended at a tie.
        differences: (request, position, ours, theirs).
    """

    num_positions: int = 0
    num_compared: int = 0
    num_ties: int = 0
    differences: list[tuple[int, int, int, int]] | None = None

    def check(self) -> None:
        """No difference outside ties, and ties did not hide much."""
        assert not self.differences, f"(request, position, ours, theirs): {self.differences[:5]}"
        assert self.num_compared >= 0.9 * self.num_positions, self


def load_reference(folder: Path) -> Any:
    """The checkpoint in transformers, float32, with its plainest attention."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


@torch.inference_mode()
def compare(
    reference: Any, prompts: Sequence[Sequence[int]], outputs: Iterable[Sequence[int]]
) -> Agreement:
    """Greedy tokens against the reference, which is shown our own context at each position."""
    result = Agreement(differences=[])
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        tokens = torch.tensor([[*prompt, *output]])
        logits = reference(tokens).logits[0, len(prompt) - 1 : -1]
        _compare_one(index, logits, list(output), result)
    return result


def _compare_one(index: int, logits: torch.Tensor, output: list[int], result: Agreement) -> None:
    result.num_positions += len(output)
    best = logits.topk(2, dim=-1)
    gaps = (best.values[:, 0] - best.values[:, 1]) / logits.std(dim=-1)
    for position, ours in enumerate(output):
        if gaps[position] < TIE:
            result.num_ties += 1
            return
        result.num_compared += 1
        theirs = int(best.indices[position, 0])
        if ours != theirs:
            assert result.differences is not None
            result.differences.append((index, position, ours, theirs))
            return
