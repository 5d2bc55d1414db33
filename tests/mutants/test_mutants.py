"""The kit finds what is wrong and accuses nothing that is right: a few of each kind, or all."""

from __future__ import annotations

import pytest

from tests.mutants.scoring import KINDS_WITH_SAMPLES, Score, samples, verdicts

FEW = {
    "scheduler": ("names_a_better_row", "loses_the_preempted", "refuses_long_prompts"),
    "kv_allocator": ("hashes_believed", "half_an_extension", "sixteen_only", "lowest_first"),
    "attention_backend": ("heads_tiled", "window_of_one_more", "very_narrow", "more_room"),
    "sampler": ("seed_of_the_row", "outputs_forgotten", "greedy_alone"),
    "logits_processor": ("counts_by_line", "touches_others", "odd_seeds_only", "from_the_seed"),
    "cost_model": ("reads_the_clock", "changes_the_plan", "jitter", "busy_host"),
    "executor": ("in_order_of_rows", "wide_tokens", "counting", "one_in_flight"),
    "model": ("last_layer_left_out", "no_positions", "louder_logits", "reads_in_any_order"),
    "router": ("hash_of_the_client", "keeps_requests", "homes_of_clients", "own_dice"),
    "workload": ("arrivals_fall", "ids_of_the_class", "tree", "long_tails"),
}
"""By kind, wrong ones and right ones that cost little time."""

SURVIVORS = {
    "scheduler": {
        "charges_the_row": "tokens are charged to another class of prompts than the one decoding",
        "forgets_who_left": "a client that aborted a waiting request is served before others later",
    },
}
"""Wrong plugins of which the kit finds nothing, and what a user can see of them."""


def test_every_plugin_has_a_sentence_and_a_name_of_its_own() -> None:
    for kind in KINDS_WITH_SAMPLES:
        found = [*samples(kind, "broken"), *samples(kind, "odd")]
        assert all(sample.sentence.endswith(".") for sample in found)
        assert len({sample.name for sample in found}) == len(found)


def test_there_are_as_many_as_the_score_speaks_of() -> None:
    assert sum(len(samples(kind, "broken")) for kind in KINDS_WITH_SAMPLES) >= 90
    assert sum(len(samples(kind, "odd")) for kind in KINDS_WITH_SAMPLES) >= 40


@pytest.mark.parametrize("kind", FEW)
def test_a_few_are_told_apart(kind: str) -> None:
    names = set(FEW[kind])
    broken = list(verdicts(kind, "broken", names))
    odd = list(verdicts(kind, "odd", names))
    assert {v.sample.name for v in (*broken, *odd)} == names
    assert len(broken) == 2
    assert [v.sample.name for v in broken if v.found is None] == []
    assert [(v.sample.name, v.found) for v in odd if v.found is not None] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS_WITH_SAMPLES)
def test_all_are_told_apart(kind: str) -> None:
    score = Score(kind)
    for folder in ("broken", "odd"):
        for verdict in verdicts(kind, folder):
            score.add(folder, verdict)
    assert {v.sample.name for v in score.survivors} <= set(SURVIVORS.get(kind, ()))
    assert len(score.survivors) <= 0.06 * len(score.broken)
    assert [(v.sample.name, v.found) for v in score.accused] == []
