"""Sampling one row at a time, in float64 and plain Python, as the words of the options say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nanofw.contracts.plan import NewRow
from nanofw.contracts.requests import SamplingParams
from nanofw.contracts.sampler import SamplerConfig
from nanofw.kernels.random import base_key, position_keys, random_bits
from nanofw.samplers.standard import StandardSampler


def sampler_for(
    vocab_size: int,
    num_rows: int = 64,
    eos_token_ids: tuple[int, ...] = (),
    *,
    kind: Any = StandardSampler,
    device: str = "cpu",
) -> Any:
    return kind(
        None,
        SamplerConfig(
            vocab_size=vocab_size,
            max_num_seqs=num_rows,
            max_model_len=1 << 17,
            device=torch.device(device),
            eos_token_ids=eos_token_ids,
        ),
    )


def sample(sampler: Any, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray) -> Any:
    """As the runner does: edits, then the sample."""
    return sampler.sample(sampler.edit(logits, rows, positions), rows, positions)


def new_row(
    row: int,
    sampling: SamplingParams,
    *,
    seed: int = 0,
    sample_index: int = 0,
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
    **arguments: object,
) -> NewRow:
    return NewRow(
        row=row,
        request_id=str(row),
        token_ids=np.array([*prompt, *output], np.int32),
        num_prompt_tokens=len(prompt),
        block_ids=np.array([0], np.int32),
        sampling=sampling,
        seed=seed,
        sample_index=sample_index,
        arguments=arguments,
    )


def edited(
    logits: np.ndarray,
    sampling: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    eos_token_ids: Sequence[int] = (),
) -> np.ndarray:
    """What bias, bans and penalties make of the logits for the next token."""
    out = logits.astype(np.float64)
    for token, bias in (sampling.logit_bias or {}).items():
        out[token] += bias
    for word in sampling.bad_words:
        before = list(word[:-1])
        if not before or list(output[-len(before) :]) == before:
            assert isinstance(word, tuple), "words of text were turned into ids before"
            out[word[-1]] = -np.inf
    if len(output) < sampling.min_tokens:
        ends = [*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)]
        out[ends] = -np.inf
    for token in range(len(out)):
        count = list(output).count(token)
        if token in prompt or count:
            factor = sampling.repetition_penalty
            out[token] = out[token] / factor if out[token] > 0 else out[token] * factor
        out[token] -= sampling.frequency_penalty * count
        out[token] -= sampling.presence_penalty * (count > 0)
    return out


def kept_tokens(logits: np.ndarray, sampling: SamplingParams) -> list[int]:
    """What temperature, min-p, top-k and top-p leave, best first."""
    return _kept(logits, sampling)[0]


def _kept(logits: np.ndarray, sampling: SamplingParams) -> tuple[list[int], float]:
    """The kept tokens, and how close the nearest border was to falling elsewhere."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if sampling.temperature == 0:
        gap = logits[order[0]] - logits[order[1]] if len(order) > 1 else np.inf
        return order[:1], gap if gap > 0 else np.inf
    gaps = [np.inf]
    shares = probabilities(logits, order, sampling.temperature)
    shares /= shares[0]
    if sampling.min_p > 0:
        gaps += list(np.abs(shares[1:] - sampling.min_p) / sampling.min_p)
        order = [t for t, share in zip(order, shares, strict=True) if share >= sampling.min_p]
    if 0 < sampling.top_k < len(order):
        difference = logits[order[sampling.top_k - 1]] - logits[order[sampling.top_k]]
        gaps.append(difference if difference > 0 else np.inf)
        order = order[: sampling.top_k]
    kept: list[int] = []
    reached = 0.0
    for token, weight in zip(
        order, probabilities(logits, order, sampling.temperature), strict=True
    ):
        if sampling.top_p < 1:
            if kept:
                gaps.append(abs(reached - sampling.top_p))
            if kept and reached >= sampling.top_p:
                break
        kept.append(token)
        reached += weight
    return kept, float(min(gaps))


def probabilities(logits: np.ndarray, tokens: list[int], temperature: float) -> np.ndarray:
    """Probabilities of the given tokens among themselves."""
    scaled = logits[tokens].astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def draw(
    logits: np.ndarray, sampling: SamplingParams, seed: int, sample_index: int, position: int
) -> tuple[int, float]:
    """The token, and how far (relatively) the second best was from winning, or a border from
    falling elsewhere."""
    kept, border = _kept(logits, sampling)
    if len(kept) == 1:
        return kept[0], border
    keys = position_keys(
        torch.tensor([base_key(seed, sample_index)], dtype=torch.int32),
        torch.tensor([position], dtype=torch.int32),
    )
    bits = random_bits(keys, torch.tensor(kept, dtype=torch.int32)).numpy().view(np.uint32)[0]
    times = -np.log1p(-np.minimum((bits + 0.5) / 2.0**32, 1 - 2.0**-24))
    weights = probabilities(logits, kept, sampling.temperature)
    scores = np.divide(times, weights, out=np.full(len(kept), np.inf), where=weights > 0)
    first, second = np.argsort(scores)[:2]
    return kept[first], min(border, float(scores[second] / scores[first] - 1))
