"""Draws text from the model the way a default request would."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tools.train_demo.model import DemoModel
from tools.train_demo.settings import END_OF_TEXT

TEMPERATURE = 0.7
TOP_P = 0.95


def draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """One id per row of ``logits``: temperature, then the smallest set that reaches top-p."""
    chances = torch.softmax(logits.float() / TEMPERATURE, dim=-1)
    ordered, ids = chances.sort(dim=-1, descending=True)
    ordered[ordered.cumsum(-1) - ordered > TOP_P] = 0
    return ids.gather(-1, torch.multinomial(ordered, 1, generator=generator))


@torch.no_grad()
def continuations(
    model: DemoModel, tokenizer: Tokenizer, prompt: str, count: int, length: int, seed: int
) -> list[tuple[str, bool]]:
    """``count`` continuations of a prompt, each with whether it ended by itself."""
    model.eval()
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    end = tokenizer.token_to_id(END_OF_TEXT)
    assert end is not None
    start = tokenizer.encode(prompt).ids or [end]
    ids = torch.tensor([start] * count, device=device)
    caches: list[list[tuple[Tensor, Tensor]]] = [[] for _ in model.model.layers]
    logits = model(ids, caches)[:, -1]
    columns = []
    for position in range(len(start), min(len(start) + length, model.settings.context)):
        columns.append(draw(logits, generator))
        logits = model(columns[-1], caches, position)[:, -1]
    rows = torch.cat(columns, dim=1).tolist()
    return [_until_end(tokenizer, row, end) for row in rows]


def _until_end(tokenizer: Tokenizer, ids: list[int], end: int) -> tuple[str, bool]:
    ended = end in ids
    return tokenizer.decode(ids[: ids.index(end)] if ended else ids), ended
