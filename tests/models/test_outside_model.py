"""A model of an outside package: its own config.json, its sizes, options, arguments by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from nanofw.assembly import assemble, memory_estimate, select
from nanofw.checkpoints.config import read_checkpoint
from nanofw.config.load import load_config
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.errors import (
    ApiMismatch,
    ConfigError,
    ExecutorError,
    ModelError,
    PluginError,
    RequestError,
)
from tests.models.outside import odd

MANIFEST = Path(__file__).parent / "outside" / "manifest.py"
CONFIG: dict[str, Any] = {
    "architectures": ["OddForCausalLM"], "model_type": "odd", "width": 32, "depth": 2,
    "heads": 4, "kv_heads": 2, "head_width": 8, "vocabulary": 96, "positions": 128, "end": 95,
    "ropes": [{"theta": 50.0}, {"theta": 10000.0}],
    "experts": 4, "experts_per_token": 2, "expert_width": 24,
    "quantization_config": {"quant_method": "odd8"},
}  # fmt: skip
PROMPT = [(7 * i * i + 3 * i + 1) % 90 for i in range(21)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("odd"))


def write(folder: Path, **changes: Any) -> Path:
    """A checkpoint of random weights."""
    config = CONFIG | changes
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.manual_seed(0)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in odd.shapes(config).items():
        if name.endswith(("up", "down")):
            weights[name] = torch.randint(-90, 90, shape, dtype=torch.int8)
        else:
            weights[name] = torch.randn(shape) * 0.5
    save_file(weights, folder / "model.safetensors")
    return folder


def config_of(folder: Path, *words: str) -> Any:
    return load_config(
        "qwen3-demo",
        [f"model.path={folder}", f"plugins.load=[{MANIFEST}]", "engine.device=cpu",
         "engine.max_model_len=96", "kv_allocator.block_size=4", "kv_allocator.num_blocks=96",
         "engine.max_num_batched_tokens=16", *words],
    )  # fmt: skip


def serve(engine: Any, *requests: Request) -> dict[str, Any]:
    for request in requests:
        engine.add_request(request)
    outputs: dict[str, Any] = {}
    while engine.has_unfinished:
        outputs |= {output.id: output for output in engine.step().finished}
    return outputs


def greedy(name: str, scale: float | None = None, **fields: Any) -> Request:
    arguments = {} if scale is None else {"OddForCausalLM": {"scale": scale}}
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0)
    return Request(id=name, prompt_token_ids=PROMPT, sampling=sampling, arguments=arguments,
                   **fields)  # fmt: skip


@torch.inference_mode()
def reference(folder: Path, scale: float = 0.0, **changes: Any) -> tuple[list[int], list[float]]:
    """Greedy tokens and their log probabilities, by whole passes without an engine."""
    from safetensors.torch import load_file

    weights, config, tokens = (
        load_file(folder / "model.safetensors"),
        CONFIG | changes,
        list(PROMPT),
    )
    found: list[float] = []

    def attend(
        layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        key, value = (x.repeat_interleave(2, dim=1).transpose(0, 1) for x in (key, value))
        out = torch.nn.functional.scaled_dot_product_attention(
            query.transpose(0, 1), key, value, is_causal=True
        )
        return out.transpose(0, 1)

    for _ in range(8):
        states = odd.hidden_states(
            weights, config, torch.tensor(tokens), torch.arange(len(tokens)),
            torch.full((len(tokens),), scale), attend,
        )  # fmt: skip
        logprobs = (states[-1] @ weights["embedding"].T).log_softmax(-1)
        tokens.append(int(logprobs.argmax()))
        found.append(float(logprobs.max()))
    return tokens[len(PROMPT) :], found


def assert_is(output: Any, expected: tuple[list[int], list[float]]) -> None:
    assert output.token_ids.tolist() == expected[0]
    assert output.logprobs.token_logprobs.tolist() == pytest.approx(expected[1], abs=1e-4)


def test_its_own_config_is_read_where_the_core_refuses_it(folder: Path) -> None:
    with pytest.raises(ModelError, match="quantization odd8 is not supported"):
        read_checkpoint(folder)
    with assemble(config_of(folder)) as engine:
        assert_is(serve(engine, greedy("a"))["a"], reference(folder))


def test_what_it_costs_is_what_it_states(folder: Path) -> None:
    selection = select(config_of(folder))
    facts = selection.explanation.facts
    attention, expert = 2 * 32 * 8 * (2 * 4 + 3 * 2), 2 * 2 * 32 * 24
    assert facts["kv_bytes_per_token"] == 2 * 2 * 2 * 8 * 4
    assert facts["num_matrix_parameters"] == attention + 2 * 32 * 4 + 4 * expert + 96 * 32
    assert facts["num_active_parameters"] == attention + 2 * 32 * 4 + 2 * expert + 96 * 32
    estimate = memory_estimate(selection)
    assert estimate is not None
    assert (
        estimate["weight_bytes"]
        == facts["matrix_bytes"]
        == (4 * (attention + 2 * 32 * 4 + 96 * 32) + 4 * expert)
    )
    held = sum(p.nbytes for p in _weights(folder))
    assert facts["matrix_bytes"] == held


def _weights(folder: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors").values()


def test_a_simulated_run_takes_its_sizes_from_the_reader(folder: Path) -> None:
    words = ["executor.name=sim", "executor.cost_model.name=roofline",
             "executor.cost_model.overhead_us=0", "executor.cost_model.overhead_per_row_us=0",
             "kv_allocator.num_blocks=512", "engine.max_num_batched_tokens=2048"]  # fmt: skip
    seconds = {}
    for chosen in (2, 4):
        write(folder, experts_per_token=chosen)
        with assemble(config_of(folder, *words)) as engine:
            serve(engine, greedy("a"))
            seconds[chosen] = engine.clock.now()
    write(folder)
    assert 0 < seconds[2] < seconds[4], "a token that meets half of the experts costs less"


@pytest.mark.parametrize("allocator", ["paged", "paged_prefix"])
@pytest.mark.parametrize("overlap", ["false", "true"])
def test_arguments_reach_each_row_and_keep_prefixes_apart(
    folder: Path, allocator: str, overlap: str
) -> None:
    words = [f"kv_allocator.name={allocator}", f"engine.overlap={overlap}"]
    scales = {"plain": None, "one": 1.0, "two": -2.0}
    expected = {name: reference(folder, scale or 0.0) for name, scale in scales.items()}
    assert len({tuple(tokens) for tokens, _ in expected.values()}) == 3
    with assemble(config_of(folder, *words)) as engine:
        together = serve(engine, *(greedy(name, scale) for name, scale in scales.items()))
        again = serve(engine, *(greedy(f"{name}'", scale) for name, scale in scales.items()))
    hits = 20 if allocator == "paged_prefix" else 0
    for name, wanted in expected.items():
        assert_is(together[name], wanted)
        assert together[name].num_cached_tokens == 0, "nothing of another adapter"
        assert_is(again[f"{name}'"], wanted)
        assert again[f"{name}'"].num_cached_tokens == hits


def test_arguments_survive_a_preemption(folder: Path) -> None:
    with assemble(
        config_of(folder, "kv_allocator.num_blocks=13", "engine.max_model_len=48")
    ) as engine:
        outputs = serve(engine, *(greedy(f"r{i}", float(i)) for i in range(3)))
    assert sum(output.num_preemptions for output in outputs.values()) > 0
    for i in range(3):
        assert_is(outputs[f"r{i}"], reference(folder, float(i)))


def test_wrong_arguments_are_refused_by_the_models_name(folder: Path) -> None:
    with assemble(config_of(folder)) as engine:
        wrong = Request(id="x", prompt_token_ids=[1], arguments={"OddForCausalLM": {"size": 3}})
        with pytest.raises(
            RequestError, match=r"model 'OddForCausalLM' of .*: arguments are {'scale'"
        ):
            engine.add_request(wrong)
        assert_is(serve(engine, greedy("a", 1.0))["a"], reference(folder, 1.0))


def test_its_options_stand_beside_its_name(folder: Path) -> None:
    words = ["model.name=OddForCausalLM", "model.experts_per_token=1"]
    with assemble(config_of(folder, *words)) as engine:
        assert_is(serve(engine, greedy("a"))["a"], reference(folder, experts_per_token=1))
    with pytest.raises(ConfigError, match="model.experts: .*experts_per_token"):
        select(config_of(folder, "model.name=OddForCausalLM", "model.experts=1"))
    with pytest.raises(ConfigError, match="model.dtipe: no such key; did you mean 'dtype'"):
        config_of(folder, "model.dtipe=float32")


def test_who_claims_any_architecture_serves_any_when_named(tmp_path: Path) -> None:
    write(tmp_path, architectures=["EvenForCausalLM"])
    with pytest.raises(ModelError, match=r"serves OddForCausalLM, and .*'EvenForCausalLM'"):
        select(config_of(tmp_path, "model.name=OddForCausalLM"))
    with assemble(config_of(tmp_path, "model.name=odd_for_any")) as engine:
        assert_is(serve(engine, greedy("a"))["a"], reference(tmp_path))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.broken=load"], r"model 'OddForCausalLM' .*: load\(\) raised RuntimeError: no w"),
        (["model.broken=forward"], r"model 'OddForCausalLM' .*: forward\(\) raised RuntimeError"),
        (["model.broken=logits"], r"model 'OddForCausalLM' .*: logits\(\) raised SystemExit"),
        (
            ["attention_backend.name=failing"],
            r"attention_backend 'failing' .*: forward\(\) raised RuntimeError: the kernel is lost",
        ),
    ],
    ids=["load", "forward", "logits", "attention"],
)
def test_a_failure_bears_plugin_and_method(folder: Path, words: list[str], message: str) -> None:
    def run() -> None:
        with assemble(config_of(folder, "model.name=OddForCausalLM", *words)) as engine:
            serve(engine, greedy("a"))

    with pytest.raises((ExecutorError, ModelError, PluginError), match=message):
        run()


def test_a_broken_reader_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"width": "x"}), encoding="utf-8")
    with pytest.raises(PluginError, match=r"reader .*spec:read of model 'OddForCausalLM'"):
        select(config_of(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"depth": 0}), encoding="utf-8")
    with pytest.raises(PluginError, match="num_layers should be a positive integer, not 0"):
        select(config_of(tmp_path))


def test_version_1_is_refused_with_where_to_read(folder: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.py"
    text = MANIFEST.read_text(encoding="utf-8").replace("model/2", "model/1")
    old.write_text(text, encoding="utf-8")
    with pytest.raises(ApiMismatch, match=r"model/1; .*model/2(.|\n)*migrating\.md"):
        select(config_of(folder, f"plugins.load=[{old}]"))
