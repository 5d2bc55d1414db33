"""vLLM's own scheduler over workloads, its model mocked. Runs in vLLM's interpreter.

    python vllm_side.py workloads.json traces.json

Writes the traces of each mode, by its name. `plain` is the scheduler as it is; the letters of the
others say what is made as in nanofw:

    a  after: a block can be shared once the step that computes it is over, not in the same step
    w  whole: a request gets the blocks of its whole prompt when it is admitted, not chunk by chunk
    o  once: of blocks with equal content one at most stays cached when no request uses it

A trace is a list of steps: [step, tokens by request, cached tokens of those that were admitted by
request, requests that gave way].
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1")

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig  # pyright: ignore[reportMissingImports]
from vllm.sampling_params import SamplingParams  # pyright: ignore[reportMissingImports]
from vllm.utils.hashing import sha256  # pyright: ignore[reportMissingImports]
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # pyright: ignore[reportMissingImports]
from vllm.v1.core.sched.scheduler import Scheduler  # pyright: ignore[reportMissingImports]
from vllm.v1.kv_cache_interface import (  # pyright: ignore[reportMissingImports]
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput  # pyright: ignore[reportMissingImports]
from vllm.v1.request import Request, RequestStatus  # pyright: ignore[reportMissingImports]

LONGEST = 2048
MODES = ("plain", "a", "w", "o", "aw", "ao", "wo", "awo")
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64,
    "intermediate_size": 64, "vocab_size": 32000, "max_position_embeddings": LONGEST,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "torch_dtype": "float32",
}  # fmt: skip


def scheduler_of(workload: dict[str, Any], folder: str) -> Scheduler:
    # One block is kept as the null block.
    size, blocks = workload["block_size"], workload["num_blocks"] + 1
    cache = CacheConfig(block_size=size, enable_prefix_caching=True)
    cache.num_gpu_blocks = blocks
    share = (workload["watermark_blocks"] + 0.5) / blocks if workload["watermark_blocks"] else 0.0
    config = VllmConfig(
        model_config=ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32"),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=workload["rows"], max_num_batched_tokens=workload["budget"],
            max_model_len=LONGEST, is_encoder_decoder=False, enable_chunked_prefill=True,
            async_scheduling=False, watermark=share,
        ),
    )  # fmt: skip
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    cache_config = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    grammars: Any = SimpleNamespace(
        accept_tokens=lambda *_: True, should_advance=lambda *_: False, clear_backend=lambda: None
    )
    return Scheduler(config, cache_config, grammars, block_size=size, log_stats=False)


def give_whole_prompts(scheduler: Scheduler) -> None:
    manager = scheduler.kv_cache_manager
    plain = manager.allocate_slots

    def allocate(request: Request, num_new_tokens: int, **kwargs: Any) -> Any:
        if request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
            known = num_new_tokens + kwargs.get("num_new_computed_tokens", 0)
            kwargs["num_lookahead_tokens"] = request.num_tokens - known
        return plain(request, num_new_tokens, **kwargs)

    manager.allocate_slots = allocate


def keep_once(scheduler: Scheduler) -> None:
    """An idle block gives up its content, and is the next to be used, where another has it too."""
    pool = scheduler.kv_cache_manager.block_pool
    index, free, cache = pool.cached_block_hash_to_block, pool.free_blocks, pool.cache_full_blocks

    def others(block: Any) -> list[Any]:
        found = index._cache.get(block.block_hash) if block.block_hash is not None else None
        return [b for b in found.values() if b is not block] if isinstance(found, dict) else []

    def free_blocks(ordered: Any) -> None:
        for block in (blocks := list(ordered)):
            if block.ref_cnt == 1 and others(block):
                pool._maybe_evict_cached_block(block)
        free(blocks)

    def cache_full_blocks(request: Request, blocks: Any, *args: Any, **kwargs: Any) -> None:
        cache(request, blocks, *args, **kwargs)
        for block in blocks:
            for idle in [other for other in others(block) if other.ref_cnt == 0]:
                pool._maybe_evict_cached_block(idle)
                pool.free_block_queue.remove(idle)
                pool.free_block_queue.prepend_n([idle])

    pool.free_blocks, pool.cache_full_blocks = free_blocks, cache_full_blocks


def share_after_steps(scheduler: Scheduler) -> list[Any]:
    """The calls that make blocks shareable, to be made at the end of the step."""
    coordinator, calls = scheduler.kv_cache_manager.coordinator, []
    plain = coordinator.cache_blocks
    coordinator.cache_blocks = lambda *a, **k: calls.append(lambda: plain(*a, **k))
    return calls


def run(workload: dict[str, Any], folder: str, mode: str) -> list[Any]:
    scheduler, letters = scheduler_of(workload, folder), "" if mode == "plain" else mode
    later: list[Any] = share_after_steps(scheduler) if "a" in letters else []
    if "w" in letters:
        give_whole_prompts(scheduler)
    if "o" in letters:
        keep_once(scheduler)
    hasher = get_request_block_hasher(workload["block_size"], sha256)
    requests, step, trace = workload["requests"], 0, []
    coming = 0
    while coming < len(requests) or scheduler.get_num_unfinished_requests():
        while coming < len(requests) and requests[coming]["step"] <= step:
            asked = requests[coming]
            sampling = SamplingParams(
                max_tokens=len(asked["outputs"]), ignore_eos=True, temperature=0.0
            )
            scheduler.add_request(
                Request(
                    request_id=str(coming), prompt_token_ids=list(asked["prompt"]),
                    sampling_params=sampling, pooling_params=None, arrival_time=float(step),
                    block_hasher=hasher,
                )
            )  # fmt: skip
            coming += 1
        if scheduler.get_num_unfinished_requests():
            trace.append([step, *one_step(scheduler, requests, later)])
        step += 1
    return trace


def one_step(scheduler: Scheduler, requests: list[Any], later: list[Any]) -> list[Any]:
    ready = {r.request_id for r in scheduler.waiting}
    plan = scheduler.schedule()
    counts = dict(plan.num_scheduled_tokens)
    live = scheduler.requests
    # The counts have been moved on by what was scheduled.
    hits = {name: live[name].num_computed_tokens - counts[name] for name in counts if name in ready}
    names = list(counts)
    sampled: list[list[int]] = []
    for name in names:
        request = live[name]
        done = request.num_computed_tokens >= request.num_tokens
        sampled.append([requests[int(name)]["outputs"][request.num_output_tokens]] if done else [])
    for call in later:
        call()
    later.clear()
    answer = ModelRunnerOutput(
        req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)},
        sampled_token_ids=sampled,
    )  # fmt: skip
    scheduler.update_from_output(plan, answer)
    return [counts, hits, sorted(plan.preempted_req_ids or ())]


def main() -> None:
    source, target = sys.argv[1:]
    init_none_hash(sha256)
    workloads = json.loads(Path(source).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
        traces = {mode: [run(workload, folder, mode) for workload in workloads] for mode in MODES}
    Path(target).write_text(json.dumps(traces), encoding="utf-8")


if __name__ == "__main__":
    main()
