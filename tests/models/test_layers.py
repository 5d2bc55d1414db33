"""Layers load their own slices: any number of ranks computes what one does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from nanofw.contracts.communicator import Communicator, SingleRank
from nanofw.contracts.model_spec import ModelSpec
from nanofw.errors import ModelError
from nanofw.kernels import products
from nanofw.models.layers import (
    GatedMLP,
    MergedColumnParallelLinear,
    ParallelHead,
    QKVParallelLinear,
    RMSNorm,
    RotaryEmbedding,
    RowParallelLinear,
    VocabParallelEmbedding,
    joined,
    load_tensors,
)
from tests.models.ranks import on_ranks

CPU: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
HIDDEN = 12


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(layer: nn.Module, targets: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    load_tensors(layer, tensors.items(), targets)


def qkv_weights(heads: int, kv_heads: int, dim: int, *, bias: bool) -> dict[str, torch.Tensor]:
    sizes = {"q_proj": heads * dim, "k_proj": kv_heads * dim, "v_proj": kv_heads * dim}
    tensors = {f"{n}.weight": random(s, HIDDEN, seed=i) for i, (n, s) in enumerate(sizes.items())}
    if bias:
        tensors |= {f"{n}.bias": random(s, seed=9 + i) for i, (n, s) in enumerate(sizes.items())}
    return tensors


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks"),
    [(8, 4, 1), (8, 4, 2), (8, 4, 4), (8, 2, 8), (8, 1, 4), (6, 2, 2)],
)
def test_qkv_gives_each_rank_its_heads(heads: int, kv_heads: int, ranks: int, bias: bool) -> None:
    dim = 4
    tensors = qkv_weights(heads, kv_heads, dim, bias=bias)
    x = random(5, HIDDEN, seed=7)

    def whole(name: str) -> torch.Tensor:
        out = functional.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))
        return out.view(5, -1, dim)

    def on_rank(communicator: Communicator) -> torch.Tensor:
        layer = QKVParallelLinear(
            HIDDEN, heads, kv_heads, dim, bias=bias, communicator=communicator, **CPU
        )
        filled(layer, layer.targets(""), tensors)
        return layer(x)

    queries, keys, values = whole("q_proj"), whole("k_proj"), whole("v_proj")
    group = heads // kv_heads
    local_heads, local_kv = heads // ranks, max(1, kv_heads // ranks)
    for rank, out in enumerate(on_ranks(ranks, on_rank)):
        got = out.view(5, -1, dim)
        mine = range(rank * local_heads, (rank + 1) * local_heads)
        kv = sorted({head // group for head in mine})
        assert len(kv) == local_kv
        expected = torch.cat((queries[:, list(mine)], keys[:, kv], values[:, kv]), dim=1)
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(8, 4, 3), (8, 3, 2), (6, 4, 6)])
def test_heads_that_ranks_cannot_share_are_refused(heads: int, kv_heads: int, ranks: int) -> None:
    communicator = SingleRank()
    communicator.size = ranks
    with pytest.raises(ModelError, match="tensor_parallel_size"):
        QKVParallelLinear(HIDDEN, heads, kv_heads, 4, communicator=communicator, **CPU)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_B070_row_parallel_sums_over_ranks_and_adds_the_bias_once(ranks: int, bias: bool) -> None:
    tensors = {"o_proj.weight": random(5, HIDDEN)}
    if bias:
        tensors["o_proj.bias"] = random(5, seed=1)
    x = random(4, HIDDEN, seed=2)

    def on_rank(communicator: Communicator) -> torch.Tensor:
        layer = RowParallelLinear(HIDDEN, 5, "o_proj", bias=bias, communicator=communicator, **CPU)
        filled(layer, layer.targets(""), tensors)
        width = HIDDEN // ranks
        return layer(x[:, communicator.rank * width : (communicator.rank + 1) * width])

    expected = functional.linear(x, tensors["o_proj.weight"], tensors.get("o_proj.bias"))
    for out in on_ranks(ranks, on_rank):
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_vocabulary_is_split_with_padding(ranks: int, tied: bool) -> None:
    vocab = 10  # 3 ranks: 4, 4, 2; 4 ranks: 3, 3, 3, 1
    tensors = {"embed": random(vocab, HIDDEN), "head": random(vocab, HIDDEN, seed=1)}
    ids = torch.tensor([0, 9, 3, 4, 7, 2], dtype=torch.int32)

    def on_rank(communicator: Communicator) -> tuple[torch.Tensor, torch.Tensor]:
        layers = nn.Module()
        layers.embed = VocabParallelEmbedding(vocab, HIDDEN, communicator=communicator, **CPU)
        layers.head = ParallelHead(
            vocab, HIDDEN, tied=layers.embed if tied else None, communicator=communicator, **CPU
        )
        targets = layers.embed.targets("embed")
        if not tied:
            targets |= layers.head.targets("head")
        load_tensors(layers, tensors.items(), targets, ignored=lambda name: name == "head")
        hidden = layers.embed(ids)
        return hidden, communicator.all_gather(layers.head(hidden), dim=-1)

    expected = tensors["embed"][ids.long()]
    logits = expected @ tensors["embed" if tied else "head"].T
    for hidden, gathered in on_ranks(ranks, on_rank):
        torch.testing.assert_close(hidden, expected)
        torch.testing.assert_close(gathered[:, :vocab], logits)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_gated_mlp(ranks: int, bias: bool) -> None:
    width = 16
    tensors = {
        "gate_proj.weight": random(width, HIDDEN),
        "up_proj.weight": random(width, HIDDEN, seed=1),
        "down_proj.weight": random(HIDDEN, width, seed=2),
    }
    weights = list(tensors.values())
    biases: list[torch.Tensor | None] = [None, None, None]
    if bias:
        biases = [random(width, seed=4), random(width, seed=5), random(HIDDEN, seed=6)]
        tensors |= {
            name.replace("weight", "bias"): value
            for name, value in zip(list(tensors), biases, strict=True)
            if value is not None
        }
    x = random(3, HIDDEN, seed=3)

    class Context:
        dtype, device = CPU["dtype"], CPU["device"]

        def __init__(self, communicator: Communicator) -> None:
            self.communicator = communicator

    def on_rank(communicator: Communicator) -> torch.Tensor:
        context: Any = Context(communicator)
        layer = GatedMLP(HIDDEN, width, context, bias=bias)
        filled(layer, layer.targets(""), tensors)
        return layer(x)

    gate, up = (functional.linear(x, *pair) for pair in zip(weights[:2], biases[:2], strict=True))
    expected = functional.linear(functional.silu(gate) * up, weights[2], biases[2])
    for out in on_ranks(ranks, on_rank):
        torch.testing.assert_close(out, expected)


def test_missing_unexpected_and_misshapen_tensors_are_one_error() -> None:
    layer = MergedColumnParallelLinear(
        HIDDEN, (4, 4), ("gate_proj", "up_proj"), communicator=SingleRank(), **CPU
    )
    norm = RMSNorm(HIDDEN, 1e-6, **CPU)
    both = nn.ModuleList([layer, norm])
    targets = joined(layer.targets("mlp."), norm.targets("norm.weight"))
    tensors = {
        "mlp.gate_proj.weight": random(5, HIDDEN),
        "mlp.gate_proj.bias": random(4),
        "surplus": random(1),
        "norm.weight": random(HIDDEN),
    }
    with pytest.raises(ModelError) as error:
        load_tensors(both, tensors.items(), targets)
    message = str(error.value)
    for part in ("mlp.up_proj.weight", "mlp.gate_proj.bias", "surplus", "mlp.gate_proj.weight"):
        assert part in message
    assert "5 rows where 4 are needed" in message


def test_a_parameter_that_no_target_covers_is_an_error() -> None:
    layer = RMSNorm(HIDDEN, 1e-6, **CPU)
    module = nn.ModuleList([layer, RMSNorm(HIDDEN, 1e-6, **CPU)])
    with pytest.raises(ModelError, match="1.weight"):
        load_tensors(module, {"w": random(HIDDEN)}.items(), layer.targets("w"))


def spec(**changes: Any) -> ModelSpec:
    values: dict[str, Any] = {
        "architecture": "Qwen3ForCausalLM", "path": "somewhere", "dtype": "float32",
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_layers": 2,
        "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "max_model_len": 64,
    }  # fmt: skip
    return ModelSpec(**(values | changes))


def test_linear_rope_divides_positions() -> None:
    plain = RotaryEmbedding(spec(rope={"rope_theta": 1e4}), 64, CPU["device"])
    stretched = RotaryEmbedding(
        spec(rope={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}), 64, CPU["device"]
    )
    torch.testing.assert_close(stretched.cos_sin[4 * 7], plain.cos_sin[7], rtol=1e-6, atol=1e-6)


def test_unknown_rope_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"spiral.*default, linear"):
        RotaryEmbedding(spec(rope={"rope_type": "spiral"}), 64, CPU["device"])


@pytest.mark.parametrize("layout", ["plain", "transposed"])
def test_a_tied_head_holds_its_weight_once(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vocab, size = 700, 128
    ways = {"plain": "rows", "transposed": "torch"}
    choice = products.ProductChoice(layout, (ways[layout],) * len(products.ROWS))
    shape = products.WeightShape(size, vocab, torch.float32, is_shared=True)
    monkeypatch.setattr(products, "_known", {products._name(shape): choice})
    layers = nn.Module()
    layers.embed = VocabParallelEmbedding(vocab, size, communicator=SingleRank(), **CPU)
    layers.head = ParallelHead(vocab, size, tied=layers.embed, communicator=SingleRank(), **CPU)
    table = random(vocab, size)
    filled(layers, layers.embed.targets("embed"), {"embed": table})
    ids, x = torch.tensor([0, 699, 5], dtype=torch.int32), random(3, size, seed=1)
    assert torch.equal(layers.embed(ids), table[ids])
    torch.testing.assert_close(layers.head(x), functional.linear(x, table), rtol=1e-4, atol=1e-4)
    held = layers.head._constant.stored
    assert layers.embed.weight.data_ptr() == held.data_ptr()
    assert sum(p.numel() for p in layers.parameters()) == table.numel() == held.numel()
