"""The hidden states of a prompt as its embedding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nanofw.checkpoints.pooling import EmbeddingSpec, read_embedding_spec
from nanofw.contracts.arrays import Float32Array
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.requests import POOLINGS, FinishReason, Pooling, SamplingParams
from nanofw.errors import RequestError, shown
from nanofw.llm.prompts import Prompt
from nanofw.llm.results import RequestResult

POOLED = SamplingParams(temperature=0.0, max_tokens=1)
"""Of requests whose one token is not what they are about."""
_LACKING = "the executor computed no embedding: it does not support them"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingResult:
    """The embedding of one prompt.

    Attributes:
        embedding: float32[hidden]; None when the request was not served.
        error: why not, as a sentence.
        num_cached_tokens: prompt tokens taken from the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    embedding: Float32Array | None = None
    error: str | None = None
    num_cached_tokens: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is an embedding."""
        return self.embedding is not None


def chosen_spec(model: ModelSpec, pooling: Pooling | None, normalize: bool | None) -> EmbeddingSpec:
    """How embeddings of a model are made: as the caller says, else as the checkpoint does.

    Raises:
        ValueError: a pooling that there is not.
        ModelError: the checkpoint describes what is not supported, and the caller says nothing.
    """
    if pooling is not None and pooling not in POOLINGS:
        raise ValueError(f"pooling is {shown(pooling)}; it must be {', '.join(POOLINGS)}")
    if pooling is not None and normalize is not None:
        return EmbeddingSpec(pooling, normalize)
    spec = read_embedding_spec(Path(model.path))
    if pooling is not None:
        spec = replace(spec, pooling=pooling)
    return spec if normalize is None else replace(spec, normalize=normalize)


def pooled(prompt: Prompt, pooling: Pooling) -> Prompt:
    """The prompt as a request for its embedding."""
    if prompt.refusal is None and prompt.sampling != POOLED:
        reason = "an embedding takes no sampling parameters: nothing is sampled"
        prompt = replace(prompt, refusal=RequestError(prompt.id or "", reason))
    return replace(prompt, pooling=pooling)


def embedding_of(result: RequestResult, *, normalize: bool) -> EmbeddingResult:
    """What the result of such a request says."""
    embedding = result.embedding if result.ok else None
    if embedding is not None and normalize:
        length = float(np.linalg.norm(embedding))
        embedding = embedding / np.float32(length or 1.0)
    return EmbeddingResult(
        request_id=result.request_id,
        prompt=result.prompt,
        prompt_token_ids=result.prompt_token_ids,
        finish_reason=result.finish_reason,
        embedding=embedding,
        error=_LACKING if result.ok and embedding is None else result.error,
        num_cached_tokens=result.num_cached_tokens,
    )
