"""Models: a right one passes, wrong ones are caught with what was seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nanofw.models.llama import LlamaForCausalLM
from nanofw.testing import ModelChecks, check_names, construct, load_component, score
from nanofw.testing.model import SMALL


class ForgetsPositions(LlamaForCausalLM):
    """Counts from 0 in every pass."""

    def forward(self, batch, pool):
        starts = torch.repeat_interleave(batch.query_starts[:-1], batch.query_starts.diff())
        positions = torch.arange(len(batch.positions)) - starts
        return super().forward(replace(batch, positions=positions.long()), pool)


class ReturnsEverything(LlamaForCausalLM):
    def forward(self, batch, pool):
        return super().forward(replace(batch, logits_indices=torch.arange(len(batch.slots))), pool)


class MixesRows(LlamaForCausalLM):
    def logits(self, hidden):
        return super().logits(hidden + 0.01 * hidden.mean(dim=0))


class RemembersInTheClass(LlamaForCausalLM):
    before = 0.0

    def logits(self, hidden):
        found = super().logits(hidden) + RemembersInTheClass.before
        RemembersInTheClass.before = float(hidden[-1, 0])
        return found


class SeesOneTokenOnly(LlamaForCausalLM):
    def forward(self, batch, pool):
        super().forward(batch, pool)
        return self.embedding_of(batch)

    def embedding_of(self, batch):
        table = next(p for p in self.parameters() if p.shape == (128, 48))
        return table[batch.token_ids[batch.logits_indices]]


class LooksAhead(LlamaForCausalLM):
    def forward(self, batch, pool):
        everything = torch.arange(len(batch.slots))
        hidden = super().forward(replace(batch, logits_indices=everything), pool)
        return hidden[batch.logits_indices] + 0.1 * hidden[-1]


class Misspells(LlamaForCausalLM):
    def load_randon(self):
        pass


class ChecksOfSmall(ModelChecks):
    name = "LlamaForCausalLM"
    wrong = LlamaForCausalLM

    def make(self, config):
        return self.wrong(None, config)

    def checkpoint(self):
        return {"architectures": [self.name], **SMALL}


def failures(checks):
    results = [score(checks, name) for name in check_names(checks)]
    return [result for result in results if result.outcome == "failed"]


def test_a_right_model_passes():
    assert failures(ChecksOfSmall()) == []


@pytest.mark.parametrize(
    ("wrong", "check", "seen"),
    [
        (ForgetsPositions, "a_prompt_in_pieces", "in pieces of"),
        (ReturnsEverything, "only_what_is_asked_for", "2 were asked for"),
        (MixesRows, "rows_beside_each_other", "beside others, and alone"),
        (RemembersInTheClass, "two_models_share_nothing", "RemembersInTheClass.before was"),
        (SeesOneTokenOnly, "earlier_tokens_matter", "nothing attends"),
        (LooksAhead, "nothing_comes_from_later_tokens", "with other tokens after the first 12"),
        (Misspells, "it_keeps_the_form_of_the_contract", "did you mean load_random"),
    ],
)
def test_wrong_models_are_caught_with_what_was_seen(wrong, check, seen):
    checks = type("Checks", (ChecksOfSmall,), {"wrong": wrong})()
    result = score(checks, f"test_{check}")
    assert result.outcome == "failed"
    assert seen in result.seen


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM"])
def test_built_in_models_pass(name):
    component = load_component("model", name)

    class Checks(ModelChecks):
        def make(self, config):
            return construct(component, config)

    Checks.name = name
    assert failures(Checks()) == []
