"""`model.name: transformers` on two ranks: each computes its part of what transformers computes."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from nanofw import LLM, SamplingParams
from nanofw.checkpoints.files import read_json
from nanofw.contracts.model import ModelConfig
from nanofw.errors import ModelError
from nanofw.models.any_decoder.model import TransformersDecoder
from nanofw.models.any_decoder.reader import read
from tests.models.ranks import ThreadRank, on_ranks
from tests.models.test_any_decoder import LATENT, write

QUICK = ("llama", "mixtral", "phi3", "gpt_neox", "olmo2")
"""Plain parts; experts; a fused projection that is gathered; a fused one by head; norms of all."""
OTHERS = (
    "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "olmo", "olmo3",
    "granite", "glm", "glm4", "cohere", "cohere2", "starcoder2", "smollm3", "seed_oss", "exaone4",
    "helium", "nemotron", "apertus", "arcee", "ernie4_5", "nanochat", "vaultgemma", "ministral",
    "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "afmoe", "ernie4_5_moe", "glm4_moe", "dots1",
    "minimax_m2", "flex_olmo", "gptj", "codegen",
)  # fmt: skip
TOKENS = [(7 * i + 3) % 100 + 2 for i in range(24)]


class OneText:
    """An attention over one whole text; it checks that it is given this rank's heads."""

    def __init__(self, spec: Any, ranks: int) -> None:
        self._spec, self._heads = spec, (spec.num_heads // ranks, spec.num_kv_heads // ranks)

    def forward(
        self, query: Any, key: Any, value: Any, layer: int, kv: Any, batch: Any, scale: float
    ) -> torch.Tensor:
        assert (query.shape[1], key.shape[1]) == self._heads
        group = self._heads[0] // self._heads[1]
        key, value = (part.repeat_interleave(group, 1).transpose(0, 1) for part in (key, value))
        scores = query.transpose(0, 1) @ key.transpose(1, 2) * scale
        cap = self._spec.soft_cap
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        distance = torch.arange(len(query))[:, None] - torch.arange(len(query))
        window = self._spec.sliding_windows[layer] if self._spec.sliding_windows else None
        seen = (distance >= 0) & (distance < (window or len(query)))
        weights = functional.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1)
        return (weights @ value).transpose(0, 1)


def check_on_two_ranks(folder: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of a text are those of `model`. Ranks are threads, which load one by one."""
    spec = read(read_json(folder / "config.json"), folder)
    kind, lock = type(model), threading.Lock()
    load = kind.from_pretrained

    def load_alone(*args: Any, **options: Any) -> Any:
        with lock:
            return load(*args, **options)

    monkeypatch.setattr(kind, "from_pretrained", load_alone)

    def logits(rank: ThreadRank) -> torch.Tensor:
        backend: Any = OneText(spec, 2)
        config = ModelConfig(
            spec=spec, device=torch.device("cpu"), dtype=torch.float32, communicator=rank,
            attention_backend=backend, max_model_len=64, name="transformers",
        )  # fmt: skip
        with lock:
            decoder = TransformersDecoder(None, config)
        decoder.load([])
        batch: Any = SimpleNamespace(
            token_ids=torch.tensor(TOKENS), positions=torch.arange(len(TOKENS)),
            logits_indices=torch.arange(len(TOKENS)),
        )  # fmt: skip
        with torch.inference_mode():
            hidden = decoder.forward(batch, [None] * spec.num_layers)
            return rank.all_gather(decoder.logits(hidden))

    wanted = model(torch.tensor([TOKENS])).logits[0]
    for found in on_ranks(2, logits):
        found = found[:, : spec.vocab_size]
        assert float((found - wanted).abs().max()) < 1e-4 * float(wanted.std())


@pytest.mark.parametrize(
    "model_type", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
@torch.no_grad()
def test_two_ranks_compute_the_logits_of_transformers(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path, model_type, vocab_size=121)  # which two ranks cannot share evenly
    check_on_two_ranks(tmp_path, model, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["deepseek_v3", "deepseek_v2", "minicpm3", "glm4_moe_lite"])
@torch.no_grad()
def test_two_ranks_share_latent_attention(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path, model_type, **LATENT)
    check_on_two_ranks(tmp_path, model, monkeypatch)


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("gpt2", {}, "transformers has no plan to split its layers"),
        ("hunyuan_v1_dense", {}, "transformers has no plan to split its layers"),
        ("llama", {"num_key_value_heads": 1}, "its 1 KV heads cannot be shared evenly"),
        ("llama", {"intermediate_size": 33}, "mlp.*33 numbers, which 2 ranks cannot share"),
    ],
)
def test_what_cannot_be_split_is_refused_before_weights_are_read(
    model_type: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write(tmp_path, model_type, **changes)
    spec = read(read_json(tmp_path / "config.json"), tmp_path)
    backend: Any = OneText(spec, 2)
    config = ModelConfig(
        spec=spec, device=torch.device("cpu"), dtype=torch.float32,
        communicator=ThreadRank(0, 2, threading.Barrier(2), []),
        attention_backend=backend, max_model_len=64, name="transformers",
    )  # fmt: skip
    with pytest.raises(ModelError, match=message):
        TransformersDecoder(None, config)


@pytest.mark.parametrize(
    "model_type",
    ["mixtral", *(pytest.param(name, marks=pytest.mark.slow)
                  for name in ("gemma2", "qwen3_moe", "olmo2", "phi3", "cohere"))],
)  # fmt: skip
def test_a_run_on_two_ranks_draws_the_tokens_of_one(model_type: str, tmp_path: Path) -> None:
    write(tmp_path, model_type)
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    values: dict[str, Any] = {"max_num_seqs": 4, "max_model_len": 64, "name": "transformers"}
    found: list[Any] = []
    for ranks in (1, 2):
        with LLM(
            tmp_path, device="cpu", dtype="float32", tensor_parallel_size=ranks, **values
        ) as llm:
            results = llm.generate([TOKENS, TOKENS[5:14]], greedy)
            found.append([result.outputs[0].token_ids for result in results])
    assert found[0] == found[1]
