"""The model that the package ships: its size, its shape, its tokenizer, and that it can write."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer

import nanofw

FOLDER = Path(nanofw.__file__).parent / "models" / "embedded" / "demo"
PROMPT = "And it came to pass, as he went by the way, that"
END = 0
# Words that the training text has at least 40 times.
COMMON_WORDS = Path(__file__).with_name("embedded_demo_words.txt")
# A chapter that training did not see: Psalm 13.
HELD_OUT = """\
How long wilt thou forget me, O LORD? for ever? how long wilt thou hide thy face from me?
How long shall I take counsel in my soul, having sorrow in my heart daily? how long shall mine \
enemy be exalted over me?
Consider and hear me, O LORD my God: lighten mine eyes, lest I sleep the sleep of death;
Lest mine enemy say, I have prevailed against him; and those that trouble me rejoice when I am \
moved.
But I have trusted in thy mercy; my heart shall rejoice in thy salvation.
I will sing unto the LORD, because he hath dealt bountifully with me."""
HELD_OUT_BITS_PER_BYTE = 1.026

tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def read_json(name: str) -> dict:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def test_it_stays_small():
    weights = FOLDER / "model.safetensors"
    assert weights.stat().st_size <= 10_000_000
    with safe_open(weights, framework="pt") as file:
        tensors = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        sizes = {name: math.prod(tensor.get_shape()) for name, tensor in tensors.items()}
        assert {tensor.get_dtype() for tensor in tensors.values()} == {"BF16"}
    assert sum(sizes.values()) <= 5_000_000
    assert "lm_head.weight" not in sizes


def test_configuration():
    config = read_json("config.json")
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["head_dim"] == 64
    assert config["num_attention_heads"] == 4
    assert config["num_key_value_heads"] == 2
    assert config["tie_word_embeddings"] is True
    assert config["vocab_size"] == tokenizer.get_vocab_size()
    assert config["eos_token_id"] == read_json("generation_config.json")["eos_token_id"] == END


def test_end_of_text_is_a_special_token_and_the_only_one():
    assert tokenizer.token_to_id(read_json("tokenizer_config.json")["eos_token"]) == END
    assert list(tokenizer.get_added_tokens_decoder()) == [END]
    assert tokenizer.decode([END]) == ""


def test_a_base_model_has_no_chat_template():
    assert "chat_template" not in read_json("tokenizer_config.json")


@given(st.text())
def test_every_text_survives_the_tokenizer(text: str):
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert END not in ids


def test_the_card_describes_these_weights():
    digest = hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest()
    assert digest in (FOLDER / "MODEL_CARD.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def model():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    return loaded.eval().requires_grad_(False)


def generate(model, **options) -> str:
    import torch

    ids = torch.tensor([tokenizer.encode(PROMPT).ids])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=96, pad_token_id=END, **options
    )
    return tokenizer.decode(out[0, ids.shape[1] :].tolist())


def share_of_common_words(text: str) -> float:
    common = set(COMMON_WORDS.read_text(encoding="utf-8").split())
    words = re.findall(r"[a-z]+(?:['-][a-z]+)*", text.lower())
    assert len(words) > 50
    return sum(word in common for word in words) / len(words)


def test_it_predicts_a_text_that_it_never_saw(model):
    import torch

    ids = torch.tensor([[END, *tokenizer.encode(HELD_OUT).ids, END]])
    logits = model(ids[:, :-1]).logits[0]
    nats = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
    bits_per_byte = nats / math.log(2) / len(HELD_OUT.encode())
    assert bits_per_byte == pytest.approx(HELD_OUT_BITS_PER_BYTE, abs=0.02)


def test_greedy_text_is_the_same_twice_and_made_of_words(model):
    text = generate(model, do_sample=False)
    assert generate(model, do_sample=False) == text
    assert share_of_common_words(text) >= 0.9


@pytest.mark.parametrize("seed", range(3))
def test_sampled_text_is_made_of_words(model, seed: int):
    import torch

    torch.manual_seed(seed)
    text = generate(model, do_sample=True, temperature=0.7, top_p=0.95, top_k=0)
    assert share_of_common_words(text) >= 0.85
