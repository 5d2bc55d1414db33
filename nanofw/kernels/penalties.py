"""Penalties on tokens that a request has already: repetition, frequency, presence."""

from __future__ import annotations

import torch


def penalise(
    logits: torch.Tensor,
    output_counts: torch.Tensor,
    in_prompt: torch.Tensor | None,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Logits with the penalties of each of s lines applied, in this order.

    - repetition: positive logits are divided, others multiplied by it, where the prompt or the
      output has the token (Keskar et al., "CTRL", 2019, as later engines define it for negative
      logits);
    - frequency: subtracted as many times as the output has the token;
    - presence: subtracted once where the output has the token.

    Args:
        logits: float32[s, vocab]. Overwritten and returned.
        output_counts: int32[s, vocab], how often the output has each token.
        in_prompt: bool[s, vocab], whether the prompt has it; None: no line has a repetition
            penalty, which is then not read.
        repetition, frequency, presence: float32[s].
    """
    in_output = output_counts > 0
    if in_prompt is not None:
        factor = repetition.unsqueeze(1)
        factors = torch.where(logits > 0, 1 / factor, factor)
        logits = logits.mul_(factors.masked_fill_(~(in_prompt | in_output), 1))
    logits.addcmul_(output_counts.float(), frequency.unsqueeze(1), value=-1)
    return logits.addcmul_(in_output.float(), presence.unsqueeze(1), value=-1)
