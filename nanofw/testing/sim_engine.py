"""An engine over the simulated executor, in virtual time, for trying a policy or an allocator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nanofw.contracts.clock import Clock, VirtualClock
from nanofw.contracts.executor import ExecutorConfig
from nanofw.contracts.kv_allocator import AllocatorConfig, KVAllocator
from nanofw.contracts.limits import Limits
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.scheduler import Policy
from nanofw.engine.engine import Engine
from nanofw.engine.host_processors import HostProcessors
from nanofw.engine.plugin_names import PluginNames
from nanofw.engine.scheduler import Scheduler
from nanofw.kv_allocators.paged import PagedAllocator
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.sim.executor import SimExecutor
from nanofw.sim.options import SimOptions

VOCAB_SIZE = 64
END_TOKEN = 63
SECONDS_PER_STEP = 0.01
SPEC = ModelSpec(
    architecture="SimForCausalLM",
    path="sim",
    dtype="float32",
    vocab_size=VOCAB_SIZE,
    hidden_size=8,
    intermediate_size=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    max_model_len=256,
    eos_token_ids=(END_TOKEN,),
)
_DEVICE: Mapping[str, object] = {
    "seconds_per_step": SECONDS_PER_STEP,
    "max_in_flight": 2,
    "check_context": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """The sizes of a small engine, and how it composes its steps.

    Attributes:
        prefix_cache: allocator `paged_prefix` rather than `paged`.
        overlap: one step stays in flight while the next is planned.
        prefill_first: a step has only prefill or only decode. mixed: a step may have both.
    """

    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 32
    max_model_len: int = 64
    chunk_tokens: int | None = None
    max_partial_prefills: int = 1
    prefill_first: bool = False
    prefix_cache: bool = True
    overlap: bool = False

    def limits(self) -> Limits:
        """The limits that the scheduler keeps."""
        return Limits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            chunk_tokens=self.chunk_tokens,
            max_partial_prefills=self.max_partial_prefills,
            prefill_first=self.prefill_first,
        )

    def allocator_config(self) -> AllocatorConfig:
        """What an allocator of this pool is built with."""
        return AllocatorConfig(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_num_seqs=self.limits().max_rows,
            max_blocks_per_row=-(-self.max_model_len // self.block_size) + 1,
        )

    def executor_config(self, spec: ModelSpec, clock: Clock) -> ExecutorConfig:
        """What an executor of this size is built with."""
        return ExecutorConfig(
            spec=spec,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            max_num_seqs=self.limits().max_rows,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            clock=clock,
        )


def simulated_engine(
    policy: Policy,
    shape: EngineShape | None = None,
    *,
    allocator: KVAllocator | None = None,
    eos_probability: float = 0.02,
    spec: ModelSpec = SPEC,
    seed: int = 0,
    host_processors: HostProcessors | None = None,
    names: PluginNames | None = None,
    check_every: int = 0,
    **device: object,
) -> Engine:
    """An engine whose device checks every plan and takes `SECONDS_PER_STEP` for each.

    The device derives each token from all tokens that it reads through the block table, so a
    wrong block, or one that was overwritten, shows as wrong tokens. No torch.

    Args:
        allocator: of the shape's pool; None: a built-in one.
        eos_probability: chance that a request ends at a token before its limit.
        spec: the model; its length is the shape's.
        seed, host_processors, names: of the engine.
        check_every: steps between two checks of the allocator's accounting; 0: never.
        device: other options of the executor `sim`.
    """
    shape = shape or EngineShape()
    spec = replace(spec, max_model_len=shape.max_model_len)
    if allocator is None:
        factory = PagedPrefixAllocator if shape.prefix_cache else PagedAllocator
        allocator = factory(None, shape.allocator_config())
    clock = VirtualClock()
    options = {**_DEVICE, "eos_probability": eos_probability, **device}
    return Engine(
        spec=spec,
        scheduler=Scheduler(
            shape.limits(), policy, allocator, spec.eos_token_ids, check_every=check_every
        ),
        executor=SimExecutor(
            SimOptions.model_validate(options), shape.executor_config(spec, clock)
        ),
        clock=clock,
        overlap=shape.overlap,
        seed=seed,
        host_processors=host_processors,
        names=names,
    )
