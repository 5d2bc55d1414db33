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
    "workload": ("arrivals_fall", "ids_of_the_class", "tree", "long_tails"),
}
"""By kind, wrong ones and right ones that cost little time."""

SURVIVORS = {
    "scheduler": {
        "forgets_who_left": "a client whose requests are aborted is served before others later on",
        "charges_the_row": "tokens are charged to another class of prompts than the one decoding",
    },
    "attention_backend": {
        "own_scale": "a model whose scale is not that of its heads writes nonsense",
        "answers_in_float32": "a run in bfloat16 ends in the projection that follows",
        "keeps_metadata": "a row reads the blocks of another that had as many tokens before",
        "pool_of_the_class": "two engines of one process read each other's context",
    },
    "sampler": {
        "last_of_all_dropped": "the least likely token is never drawn with top_k -1",
        "greedy_when_cool": "all samples are equal at a temperature of 0.4",
        "highest_id_wins": "of two equal logits the other one is taken than docs/sampling.md says",
        "ends_too_early": "an output may be one token shorter than min_tokens",
        "checks_are_kept": "a greedy request that comes makes those before it greedy",
    },
    "logits_processor": {
        "line_for_row": "of two requests one gets the favourite token of the other",
        "first_for_all": "all requests of a step get the favourite token of the first",
        "first_stays": "a request gets the favourite token of the one that had its row before",
        "hides_failures": "a request whose logits are NaN goes on instead of ending with an error",
        "counts_for_all": "a token that one request drew becomes less likely for all",
        "history_unclaimed": "no token becomes less likely before the first preemption",
        "tokens_of_the_class": "two engines of one process change each other's tokens",
        "scaled_by_all": "a request draws other tokens alone than in a batch",
    },
    "cost_model": {
        "less_for_more": "a simulated run is faster with larger batches, without bound",
        "less_for_context": "a simulated run is faster with longer prompts",
        "prompts_are_free": "a simulated run with mixed steps takes next to no time",
        "rows_are_refunded": "prompts take less time beside rows that decode than alone",
        "keeps_plans": "a long simulation runs out of memory",
        "context_stands": "a long generation costs as much as its first token",
    },
    "workload": {
        "hashed_prompts": "arms that run in processes of their own get other prompts",
        "sampling_ignored": "a configured temperature of 0 has no effect",
        "seeds_missing": "a request draws other tokens when another one is left out",
        "seeds_alike": "equal prompts get equal answers",
        "ends_at_the_end": "outputs are shorter than the lengths that were asked for",
        "hidden_prefixes": "a comparison reports that a cache was not empty, and it was",
        "deadlines_from_nought": "all later requests miss their deadlines on any engine",
        "follows_before": "a request comes before the answer that it follows",
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
    assert [(v.sample.name, v.found) for v in score.accused] == []
