"""What sampling parameters make of a distribution, in plain float64: docs/sampling.md as code."""

from __future__ import annotations

import numpy as np

from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.requests import SamplingParams
from nanofw.testing.rows import EOS_TOKEN

NUM_SAMPLES = 2000
LOGITS: FloatArray = np.array([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0])
PROMPT, OUTPUT = (0, 7), (1, 3, 3)
"""Tokens that the requests have when sampling begins."""
SHAPING = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=2.0),
    SamplingParams(top_k=3),
    SamplingParams(top_p=0.6),
    SamplingParams(min_p=0.3),
    SamplingParams(temperature=1.5, top_k=5, top_p=0.7),
    SamplingParams(temperature=0.5, top_p=0.85),
    SamplingParams(repetition_penalty=1.7),
    SamplingParams(presence_penalty=1.5),
    SamplingParams(frequency_penalty=1.2),
    SamplingParams(logit_bias={0: -100.0, 6: 3.0}),
    SamplingParams(bad_words=((0,), (3, 1), (2, 2))),
    SamplingParams(logit_bias={EOS_TOKEN: 5.0}, min_tokens=10),
    SamplingParams(logit_bias={4: 5.0}, min_tokens=10, stop_token_ids=(4,)),
    SamplingParams(min_tokens=len(OUTPUT) + 1, stop_token_ids=(0, 1)),
    SamplingParams(min_tokens=len(OUTPUT), stop_token_ids=(0, 1)),
)
"""Parameters that are held to `shaped` where `check` does not refuse them."""


def shaped(
    logits: FloatArray,
    sampling: SamplingParams,
    prompt: tuple[int, ...],
    output: tuple[int, ...],
) -> FloatArray:
    """float64[vocab] probabilities of the next token; with temperature 0 one of them is 1."""
    edited = _penalised(
        _banned(np.asarray(logits, float), sampling, output), sampling, prompt, output
    )
    if not sampling.temperature:
        return np.eye(len(edited))[edited.argmax()]
    return _cut(_softmax(edited / sampling.temperature), sampling)


def _banned(logits: FloatArray, sampling: SamplingParams, output: tuple[int, ...]) -> FloatArray:
    logits = logits.copy()
    for token, bias in (sampling.logit_bias or {}).items():
        logits[int(token)] += bias
    for word in sampling.bad_words:
        assert not isinstance(word, str), "SHAPING names tokens by id"
        if word[:-1] == output[len(output) - len(word) + 1 :]:
            logits[word[-1]] = -np.inf
    if len(output) < sampling.min_tokens:
        logits[[EOS_TOKEN, *sampling.stop_token_ids]] = -np.inf
    return logits


def _penalised(
    logits: FloatArray,
    sampling: SamplingParams,
    prompt: tuple[int, ...],
    output: tuple[int, ...],
) -> FloatArray:
    seen = sorted({*prompt, *output})
    factor = np.where(
        logits[seen] > 0, 1 / sampling.repetition_penalty, sampling.repetition_penalty
    )
    logits[seen] *= factor
    for token in set(output):
        logits[token] -= sampling.presence_penalty
        logits[token] -= sampling.frequency_penalty * output.count(token)
    return logits


def _cut(probabilities: FloatArray, sampling: SamplingParams) -> FloatArray:
    """min-p and top-k, then top-p of what these two kept."""
    order = np.argsort(-probabilities, kind="stable")
    kept = probabilities >= sampling.min_p * probabilities.max()
    if sampling.top_k > 0:
        kept[order[sampling.top_k :]] = False
    left = np.where(kept, probabilities, 0.0)
    left /= left.sum()
    before = np.cumsum(left[order]) - left[order]
    left[order[before >= sampling.top_p]] = 0.0
    return left / left.sum()


def _softmax(logits: FloatArray) -> FloatArray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()
