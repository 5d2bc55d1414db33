"""Both keep their contracts, and do what their papers say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nanofw_sampling.checks import MirostatChecks, XTCChecks
from nanofw_sampling.manifest import MirostatOptions, XTCOptions
from nanofw_sampling.mirostat import Mirostat
from nanofw_sampling.xtc import XTC

from nanofw import LLM
from nanofw.plugins import NewRow, SamplerConfig, SamplingParams
from nanofw.testing import load_component

VOCAB = 64


class TestXTC(XTCChecks):
    def make(self, config):
        return XTC(XTCOptions(), config)


class TestMirostat(MirostatChecks):
    def make(self, config):
        return Mirostat(self.options, config)


def config(num_rows):
    return SamplerConfig(
        vocab_size=VOCAB, max_num_seqs=num_rows, max_model_len=4096, device=torch.device("cpu")
    )


def row(number, seed=0):
    return NewRow(
        row=number, request_id=f"r{number}", token_ids=np.array([1], np.int32),
        num_prompt_tokens=1, block_ids=np.zeros(1, np.int32), sampling=SamplingParams(), seed=seed,
    )  # fmt: skip


def test_xtc_leaves_out_likely_tokens_as_often_as_it_should():
    processor = XTC(XTCOptions(probability=0.3, threshold=0.2), config(1))
    processor.add_row(row(0))
    logits = torch.log(torch.tensor([[0.4, 0.25, 0.22, 0.1, 0.03] + [1e-30] * (VOCAB - 5)]))
    num_steps, num_left_out = 2000, 0
    for position in range(num_steps):
        found = processor.apply(
            logits.clone(), np.zeros(1, np.int32), np.array([position], np.int32)
        )
        is_left_out = found[0, :5].isinf().tolist()
        assert is_left_out in ([True, True, False, False, False], [False] * 5)
        num_left_out += is_left_out[0]
    assert abs(num_left_out / num_steps - 0.3) < 0.05


@pytest.mark.parametrize(("tau", "spread"), [(1.0, 4.0), (2.0, 2.0), (4.0, 1.0)])
def test_mirostat_keeps_the_surprise_at_its_target(tau, spread):
    sampler = Mirostat(MirostatOptions(tau=tau, eta=0.1), config(1))
    sampler.add_row(row(0))
    generator, surprises = torch.Generator().manual_seed(0), []
    for position in range(1500):
        logits = torch.randn((1, VOCAB), generator=generator) * spread
        place = np.array([position], np.int32)
        token = sampler.sample(logits.clone(), np.zeros(1, np.int32), place).token_ids
        surprises.append(float(-logits.log_softmax(-1)[0, token] / np.log(2)))
    assert abs(np.mean(surprises[200:]) - tau) < 0.2


def generate(requests, **settings):
    with LLM(
        "embedded:demo",
        sampler="mirostat",
        logits_processors=[{"name": "xtc", "probability": 0}],
        max_model_len=128,
        **settings,
    ) as llm:
        return [[one.token_ids for one in result.outputs] for result in llm.generate(requests)]


def test_a_run_gives_the_same_tokens_however_it_is_cut():
    arguments = [
        {"mirostat": {"tau": 2.0}}, {"xtc": {"probability": 1.0}}, {}, {"mirostat": {"eta": 0.7}}
    ]  # fmt: skip
    requests = [
        {"prompt": f"And {number}", "arguments": own, "max_tokens": 40, "seed": number, "n": 2,
         "temperature": 0.8, "presence_penalty": 0.5, "ignore_eos": True}
        for number, own in enumerate(arguments)
    ]  # fmt: skip
    expected = generate(requests)
    assert all(len(tokens) == 40 for outputs in expected for tokens in outputs)
    assert generate(requests, overlap=True) == expected
    small = {"block_size": 16, "num_blocks": 12}
    assert generate(requests, kv_allocator={"name": "paged_prefix", **small}) == expected
    without = [{**request, "arguments": {}} for request in requests]
    assert generate(without)[2] == expected[2]
    assert generate(without)[0] != expected[0]


@pytest.mark.parametrize(("kind", "name"), [("sampler", "mirostat"), ("logits_processor", "xtc")])
def test_what_is_installed_can_be_found(kind, name):
    assert load_component(kind, name).label.startswith(f"{kind} '{name}' of nanofw-sampling 0.1.0")
