"""Ranks on NVIDIA GPUs: collectives inside graphs, and the tokens of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nanofw.contracts.requests import SamplingParams
from nanofw.runtime.options import TorchOptions
from tests.parity.test_greedy import make_prompts
from tests.runtime.checkpoints import write_qwen3
from tests.runtime.driver import component, components_of
from tests.runtime.parallel.ranks import COMPONENTS, engine_over, executor_of, run, tokens_of
from tests.runtime.parallel.test_parity import greedy, mixed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
TRITON = component(
    "attention_backend", "triton", "nanofw.attention_backends.triton:TritonAttention"
)
ON_GPU: dict[str, Any] = {
    "device": "cuda", "block_size": 16, "cuda_graphs": True, "prefill_graphs": True,
    "components": {"attention_backend": TRITON},
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_qwen3(folder, head_dim=64, num_attention_heads=4, vocab_size=211)
    return folder


def draws(executor: Any, model: Path, *, overlap: bool) -> dict[str, list[int]]:
    prompts = make_prompts(8, 211, 40)
    try:
        engine = engine_over(executor, model, overlap=overlap)
        return tokens_of(run(engine, prompts, [*greedy(4, 16), *mixed(4, 16)]))
    finally:
        executor.close()


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[Any]:
    """NCCL with this process alone."""
    from torch import distributed

    from nanofw.runtime.communicator import join

    torch.cuda.set_device(0)
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    yield join(0, 1, torch.device("cuda", 0), store)
    distributed.destroy_process_group()


def test_collectives_are_captured_in_graphs(model: Path, group_of_one: Any) -> None:
    from nanofw.contracts.clock import RealClock
    from nanofw.contracts.executor import ExecutorConfig
    from nanofw.runtime.executor import TorchExecutor
    from tests.runtime.parallel.ranks import MAX_LEN, MAX_SEQS, MAX_TOKENS, spec_of

    config = ExecutorConfig(
        spec=spec_of(model), block_size=16, num_blocks=128, max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=MAX_TOKENS, max_model_len=MAX_LEN, clock=RealClock(),
        components=components_of(COMPONENTS | ON_GPU["components"]), device="cuda",
        cuda_graphs=True,
    )  # fmt: skip
    executor = TorchExecutor(None, config, group_of_one)
    prompts = make_prompts(4, 211, 30)
    outputs = tokens_of(run(engine_over(executor, model), prompts, greedy(4, 12)))
    assert executor.facts().graph_steps["replayed"] > 5
    executor.close()
    alone = executor_of(model, 1, **ON_GPU)
    assert outputs == tokens_of(run(engine_over(alone, model), prompts, greedy(4, 12)))
    alone.close()


@two_gpus
@pytest.mark.multigpu
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("all_reduce", ["collective", "one_shot"])
def test_two_ranks_draw_the_tokens_of_one(model: Path, all_reduce: Any, overlap: bool) -> None:
    options = TorchOptions(all_reduce=all_reduce)
    several = executor_of(model, 2, options=options, **ON_GPU)
    found = draws(several, model, overlap=overlap)
    assert found == draws(executor_of(model, 1, **ON_GPU), model, overlap=overlap)


@two_gpus
@pytest.mark.multigpu
def test_steps_of_two_ranks_are_replayed_from_graphs(model: Path) -> None:
    executor = executor_of(model, 2, **ON_GPU)
    try:
        sampling = [SamplingParams(temperature=1, seed=i, max_tokens=20) for i in range(4)]
        run(engine_over(executor, model, overlap=True), make_prompts(4, 211, 20), sampling)
        assert executor.facts().graph_steps["replayed"] > 5
    finally:
        executor.close()


def check_norms(rank: int, store: str) -> None:
    """Sums with the norm against the usual way, eager and replayed from a graph."""
    from torch import distributed

    from nanofw.kernels.norm import add_rms_norm
    from nanofw.runtime.communicator import join
    from nanofw.runtime.one_shot import OneShotCommunicator

    device, width = torch.device("cuda", rank), 1536
    torch.cuda.set_device(device)
    usual = join(rank, 2, device, distributed.FileStore(store, 2))
    ours = OneShotCommunicator(rank, 2, device, torch.bfloat16, (width, 256))
    generator = torch.Generator(device).manual_seed(rank)
    weight = torch.linspace(0.5, 1.5, width, device=device).bfloat16()
    for rows in (1, 256, 3, 17, 255, 1, 300, 64):  # 300: more than the inboxes hold
        x = torch.zeros(rows, width, device=device).bfloat16()
        stream = torch.zeros_like(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3):
                part = x.clone()  # the usual way sums in place
                replayed, _ = ours.all_reduce_add_rms_norm(part, stream, weight, 1e-6)
        for _ in range(20):
            x.copy_(torch.randn(x.shape, generator=generator, device=device))
            total = 3 * usual.all_reduce(x.clone())
            expected, _ = add_rms_norm(total, torch.zeros_like(x), weight, 1e-6)
            graph.replay()
            torch.testing.assert_close(replayed, expected, rtol=3e-2, atol=3e-2)
            torch.testing.assert_close(stream, total, rtol=3e-2, atol=5e-2)
            stream.zero_()
    distributed.destroy_process_group()


@two_gpus
@pytest.mark.multigpu
def test_sums_with_the_norm_between_two_gpus(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(check_norms, (str(tmp_path / "store"),), nprocs=2)
