"""The training of the embedded model, on small made-up text and without a network."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from tools.train_demo.bpe import encode_documents, train_tokenizer
from tools.train_demo.data import Document, parse, source_text, split_documents
from tools.train_demo.export import export, load_exported
from tools.train_demo.figures import Copies, known_share, repeated_share, whole_words
from tools.train_demo.model import DemoModel
from tools.train_demo.sampling import continuations
from tools.train_demo.settings import Settings, override
from tools.train_demo.train import Run, epoch_batches

SMALL = Settings(
    vocab_size=300,
    hidden_size=32,
    num_layers=2,
    intermediate_size=48,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    context=32,
    batch_size=2,
    warmup_steps=2,
    epochs=1.0,
    init_std=0.2,
)


def made_up_documents(count: int) -> list[Document]:
    generator = random.Random(0)
    letters = "abcdefghijklmnop"
    return [
        Document(f"Book {i}", " ".join("".join(generator.choices(letters, k=4)) for _ in range(40)))
        for i in range(count)
    ]


def test_chapters_lose_their_numbers_and_keep_their_order():
    documents = parse("Ge1:1 One.\nGe1:2 Two.\nGe2:1 Three.\n1Sm1:1 Four.\n")
    assert [(doc.name, doc.text) for doc in documents] == [
        ("Ge 1", "One.\nTwo."),
        ("Ge 2", "Three."),
        ("1Sm 1", "Four."),
    ]


def test_another_text_is_refused(tmp_path: Path):
    (tmp_path / "kjv.txt").write_text("Ge1:1 Something else.\n", encoding="ascii")
    with pytest.raises(SystemExit, match="not the expected text"):
        source_text(tmp_path)


def test_a_chapter_with_a_twin_is_never_held_out():
    documents = made_up_documents(100)
    documents += [Document("twin", documents[0].text)]
    for seed in range(20):
        split = split_documents(documents, seed)
        held_out = {doc.name for doc in split.valid + split.test}
        assert len(held_out) == 6
        assert not held_out & {"twin", "Book 0"}
        assert len(split.train) + len(held_out) == len(documents)


def test_longest_run_does_not_cross_chapters():
    copies = Copies([Document("a", "One two three four, five."), Document("b", "Six seven eight.")])
    assert copies.longest("And two three FOUR five six seven.") == "two three four five"
    assert copies.longest("Nothing of that") == ""


def test_figures_of_a_text():
    assert known_share(["The cat sat.", "the Dog"], {"the", "cat", "sat"}) == 0.8
    assert repeated_share("a b c d e") == 0
    assert repeated_share("a b c d e a b c d e") == pytest.approx(1 / 6)
    assert whole_words("he sa", ended=False) == "he"
    assert whole_words("he said", ended=True) == "he said"


def test_settings_from_the_command_line():
    assert override(SMALL, ["epochs=2", "seed=3"]).epochs == 2.0
    with pytest.raises(SystemExit, match="no setting 'epoch'"):
        override(SMALL, ["epoch=2"])


def test_a_pass_shows_no_token_twice():
    documents = [np.arange(i * 50, (i + 1) * 50) for i in range(20)]
    batches = epoch_batches(SMALL, documents, 0)
    assert batches.shape == (15, 2, 33)
    shown = batches[:, :, :-1].ravel()
    assert len(set(shown)) == len(shown) == 960
    assert not np.array_equal(batches, epoch_batches(SMALL, documents, 1))


def test_an_interrupted_run_gives_the_same_weights(tmp_path: Path):
    documents = made_up_documents(12)
    ids = encode_documents(train_tokenizer(documents, SMALL.vocab_size), documents)
    whole = Run(tmp_path / "whole", SMALL, "cpu")
    assert whole.train(ids[1:], ids[:1], 100, limit=1e9)
    half = Run(tmp_path / "half", SMALL, "cpu")
    while not half.train(ids[1:], ids[:1], 100, limit=0.02):
        half = Run(tmp_path / "half", SMALL, "cpu")
    for one, other in zip(whole.model.parameters(), half.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_export_is_a_qwen3_checkpoint(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    tokenizer = train_tokenizer(made_up_documents(8), SMALL.vocab_size)
    export(tmp_path, DemoModel(SMALL), tokenizer)
    ours = load_exported(tmp_path, SMALL, "cpu")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(SMALL.vocab_size, (2, 20))
    with torch.inference_mode():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=1e-4, rtol=1e-4)


def test_sampling_with_the_cache_is_repeatable():
    torch.manual_seed(0)
    tokenizer = train_tokenizer(made_up_documents(8), SMALL.vocab_size)
    model = DemoModel(SMALL)
    first = continuations(model, tokenizer, "abc", 3, 12, seed=1)
    assert first == continuations(model, tokenizer, "abc", 3, 12, seed=1)
    assert first != continuations(model, tokenizer, "abc", 3, 12, seed=2)


def test_the_cache_changes_nothing():
    torch.manual_seed(0)
    model = DemoModel(SMALL).eval()
    ids = torch.randint(SMALL.vocab_size, (2, 10))
    caches: list = [[] for _ in model.model.layers]
    with torch.inference_mode():
        pieces = [model(ids[:, :4], caches)]
        pieces += [model(ids[:, i : i + 1], caches, i) for i in range(4, 10)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), model(ids), atol=1e-4, rtol=1e-4)
