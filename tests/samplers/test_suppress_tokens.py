from __future__ import annotations

import numpy as np
import pytest
import torch

from nanofw.contracts.requests import SamplingParams
from nanofw.contracts.sampler import SamplerConfig
from nanofw.errors import ConfigError
from nanofw.samplers.logits_processors.manifest import SuppressTokensOptions
from nanofw.samplers.logits_processors.suppress_tokens import SuppressTokens
from tests.samplers.plain import new_row


def make(*token_ids: int) -> SuppressTokens:
    config = SamplerConfig(
        vocab_size=8, max_num_seqs=4, max_model_len=16, device=torch.device("cpu")
    )
    return SuppressTokens(SuppressTokensOptions(token_ids=token_ids), config)


def suppressed(processor: SuppressTokens, rows: list[int]) -> list[list[int]]:
    logits = processor.apply(torch.zeros(len(rows), 8), *[np.array(rows, np.int32)] * 2)
    return [line.isinf().nonzero().flatten().tolist() for line in logits]


def test_options_hold_for_all_and_arguments_add_to_them() -> None:
    processor = make(1, 3)
    assert processor.add_row(new_row(0, SamplingParams()))
    assert processor.add_row(new_row(2, SamplingParams(), suppress_tokens=[3, 7]))
    assert suppressed(processor, [2, 0]) == [[1, 3, 7], [1, 3]]
    assert suppressed(processor, [0, 2]) == [[1, 3], [1, 3, 7]]


def test_a_row_forgets_the_request_before() -> None:
    processor = make()
    assert processor.add_row(new_row(0, SamplingParams(), suppress_tokens=[5]))
    assert suppressed(processor, [0]) == [[5]]
    processor.remove_row(0)
    assert not processor.add_row(new_row(0, SamplingParams()))
    assert suppressed(processor, [0]) == [[]]


@pytest.mark.parametrize("arguments", [[8], [-1], ["a"], 3, "12", [True], [1.5]])
def test_wrong_arguments_are_refused(arguments: object) -> None:
    with pytest.raises(ValueError, match=r"token|list"):
        make().check(arguments)


def test_wrong_option_names_its_key() -> None:
    with pytest.raises(ConfigError, match=r"suppress_tokens\.token_ids.*0 to 7"):
        make(8)
