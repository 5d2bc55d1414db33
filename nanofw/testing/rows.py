"""Rows and configurations of the small vocabulary on which samplers and processors are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nanofw.contracts.plan import NewRow
from nanofw.contracts.requests import SamplingParams
from nanofw.contracts.sampler import SamplerConfig

VOCAB_SIZE = 64
NUM_ROWS = 16
EOS_TOKEN = 5
PROMPT = (11, 12, 13)


def sampler_config(device: str, name: str, num_rows: int = NUM_ROWS) -> SamplerConfig:
    """What a sampler or a logits processor of this vocabulary is made with. Imports torch.

    Args:
        name: under which requests bring arguments.
    """
    import torch

    return SamplerConfig(
        vocab_size=VOCAB_SIZE,
        max_num_seqs=num_rows,
        max_model_len=256,
        device=torch.device(device),
        name=name,
        eos_token_ids=(EOS_TOKEN,),
    )


def new_row(
    row: int,
    sampling: SamplingParams,
    *,
    request_id: str,
    prompt: Sequence[int] = PROMPT,
    output: Sequence[int] = (),
    seed: int = 0,
    sample_index: int = 0,
    arguments: Mapping[str, object] | None = None,
) -> NewRow:
    """A request with the tokens that it has, in a row."""
    return NewRow(
        row=row,
        request_id=request_id,
        token_ids=np.array([*prompt, *output], np.int32),
        num_prompt_tokens=len(prompt),
        block_ids=np.zeros(1, np.int32),
        sampling=sampling,
        seed=seed,
        sample_index=sample_index,
        arguments=dict(arguments or {}),
    )
