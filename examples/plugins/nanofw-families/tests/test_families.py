"""Both keep the contract, and whole runs give the tokens of transformers."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from nanofw_families.checks import GPTNeoXChecks, Qwen3MoeChecks
from nanofw_families.gpt_neox import GPTNeoXForCausalLM
from nanofw_families.qwen3_moe import Qwen3MoeForCausalLM
from transformers import AutoConfig, AutoModelForCausalLM

from nanofw import LLM, SamplingParams

PROMPTS = [[(7 * i + 3) % 100 + 2 for i in range(30)] + [last] for last in (2, 3, 4, 5)]
TIE = 1e-3


class TestGPTNeoX(GPTNeoXChecks):
    def make(self, config):
        return GPTNeoXForCausalLM(None, config)


class TestSequentialGPTNeoX(TestGPTNeoX):
    config_json: ClassVar = {**GPTNeoXChecks.config_json, "use_parallel_residual": False}


class TestQwen3Moe(Qwen3MoeChecks):
    def make(self, config):
        return Qwen3MoeForCausalLM(None, config)


@pytest.mark.parametrize("checks", [TestGPTNeoX, TestQwen3Moe])
@pytest.mark.parametrize("ranks", [1, 2])
def test_whole_runs_give_the_tokens_of_transformers(checks, ranks, tmp_path):
    """Chunks of 8 tokens, shared prefixes, room for two of four requests."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**without_name(checks().checkpoint()))
    theirs = AutoModelForCausalLM.from_config(config).float().eval()
    theirs.save_pretrained(tmp_path)
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    with LLM(
        str(tmp_path), device="cpu", dtype="float32", max_model_len=64, max_num_seqs=4,
        max_num_batched_tokens=16, chunk_tokens=8, tensor_parallel_size=ranks,
        kv_allocator={"block_size": 4, "num_blocks": 26},
    ) as llm:  # fmt: skip
        results = llm.generate(PROMPTS, params)
    for prompt, result in zip(PROMPTS, results, strict=True):
        tokens = result.outputs[0].token_ids
        check_greedy(theirs, prompt, list(tokens))


def without_name(checkpoint):
    return {key: value for key, value in checkpoint.items() if key != "architectures"}


@torch.inference_mode()
def check_greedy(model, prompt, tokens):
    """Each token is the best of transformers' logits, or as good as the best."""
    assert len(tokens) == 16
    logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    taken = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert bool((logits.max(-1).values - taken <= TIE * logits.std()).all())
