"""Sampling one row at a time, in float64 and plain Python, as the words of the options say."""

from __future__ import annotations

import numpy as np
import torch

from nanofw.core.contracts.sampler import SamplerConfig
from nanofw.core.plan import NewRow
from nanofw.core.types import SamplingParams
from nanofw.kernels.random import base_key, position_keys, random_bits
from nanofw.samplers.standard import StandardSampler


def sampler_for(vocab_size: int, num_rows: int = 64) -> StandardSampler:
    return StandardSampler(
        None,
        SamplerConfig(
            vocab_size=vocab_size,
            max_num_seqs=num_rows,
            max_model_len=1 << 17,
            device=torch.device("cpu"),
        ),
    )


def new_row(
    row: int, sampling: SamplingParams, *, seed: int = 0, sample_index: int = 0, **arguments: object
) -> NewRow:
    return NewRow(
        row=row,
        request_id=str(row),
        token_ids=np.array([0], np.int32),
        num_prompt_tokens=1,
        block_ids=np.array([0], np.int32),
        sampling=sampling,
        seed=seed,
        sample_index=sample_index,
        arguments=arguments,
    )


def kept_tokens(logits: np.ndarray, sampling: SamplingParams) -> list[int]:
    """What temperature, top-k and top-p leave, best first."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if sampling.temperature == 0:
        return order[:1]
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    weights = probabilities(logits, order, sampling.temperature)
    kept: list[int] = []
    reached = 0.0
    for token, weight in zip(order, weights, strict=True):
        if kept and reached >= sampling.top_p and sampling.top_p < 1:
            break
        kept.append(token)
        reached += weight
    return kept


def probabilities(logits: np.ndarray, tokens: list[int], temperature: float) -> np.ndarray:
    """Probabilities of the given tokens among themselves."""
    scaled = logits[tokens].astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def draw(
    logits: np.ndarray, sampling: SamplingParams, seed: int, sample_index: int, position: int
) -> tuple[int, float]:
    """The token, and how far (relatively) the second best was from winning."""
    kept = kept_tokens(logits, sampling)
    if len(kept) == 1:
        return kept[0], np.inf
    keys = position_keys(
        torch.tensor([base_key(seed, sample_index)], dtype=torch.int32),
        torch.tensor([position], dtype=torch.int32),
    )
    bits = random_bits(keys, torch.tensor(kept, dtype=torch.int32)).numpy().view(np.uint32)[0]
    times = -np.log1p(-np.minimum((bits + 0.5) / 2.0**32, 1 - 2.0**-24))
    scores = times / probabilities(logits, kept, sampling.temperature)
    first, second = np.argsort(scores)[:2]
    return kept[first], float(scores[second] / scores[first] - 1)
