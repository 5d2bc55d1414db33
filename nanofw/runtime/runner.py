"""One rank's part of a run: weights, KV pool, rows; the forward pass of a step."""

from __future__ import annotations

import logging
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.attention_backend import AttentionBackend, AttentionConfig, ForwardBatch
from nanofw.contracts.communicator import Communicator
from nanofw.contracts.executor import ExecutorConfig
from nanofw.contracts.model import Model, ModelConfig
from nanofw.contracts.model_spec import heads_of_rank
from nanofw.contracts.plan import StepPlan
from nanofw.contracts.requests import Request
from nanofw.errors import ModelError
from nanofw.kernels.answers import checked_tensor
from nanofw.kernels.transfer import to_device
from nanofw.plugin_calls import WrongAnswer, integer_of
from nanofw.runtime.batch import RowState, StepBatch, make_batch
from nanofw.runtime.blame import StepPart, step_error
from nanofw.runtime.graphs.capture import Capturer, GraphParts
from nanofw.runtime.graphs.step import StepGraphs
from nanofw.runtime.logprobs import PromptTokens
from nanofw.runtime.pooling import PooledRows, PooledTokens
from nanofw.runtime.sampling import StepSampler
from nanofw.runtime.sampling_plugins import SamplingPlugins, calls_of
from nanofw.runtime.weights import Checkpoint, open_checkpoint, settle_ties

logger: logging.Logger = logging.getLogger(__name__)

MAX_TOKEN_BYTES = 1 << 40
"""More bytes for a token, over all layers, are a mistake of the backend."""
MAX_CPU_TOKENS = 1024
"""More tokens at once only make activations that leave the caches and the heap."""


class Runner:
    """Carries out plans on one device. The pool must be allocated before the first of them.

    Attributes:
        backend, model: the chosen components.
        parts: those two, with their names in messages.
        plugins: the chosen sampler and logits processors.
        step_sampler: from the hidden states of a step to its tokens.
        weight_bytes: of this rank's parameters.
        max_micro_batch_tokens: tokens that the model computes at once; None: as many as come.
        pool: KV by layer, after `allocate`.
    """

    def __init__(self, config: ExecutorConfig, communicator: Communicator) -> None:
        self._config, self._communicator = config, communicator
        self.device: torch.device = torch.device(config.device)
        self.dtype: torch.dtype = getattr(torch, config.spec.dtype)
        self._nothing = torch.empty(0, dtype=self.dtype, device=self.device)
        self.max_micro_batch_tokens = MAX_CPU_TOKENS if self.device.type == "cpu" else None
        checkpoint = self._open_checkpoint()
        backend = config.components.required("attention_backend")
        self.backend: AttentionBackend = backend.make(
            AttentionBackend, self._attention_config(backend.name)
        )
        self.plugins: SamplingPlugins = SamplingPlugins(config, communicator, self.device)
        self.weight_bytes: int = 0
        chosen = config.components.required("model")
        self._model_name = chosen.name
        self._model_calls = calls_of(chosen)
        self.model: Model = self._load_model(checkpoint)
        self.parts: list[StepPart] = self._step_parts()
        self.pool: list[object] = []
        self._arguments: dict[int, object] = {}  # for the model, by row
        self._shown_arguments = MappingProxyType(self._arguments)
        blocks_per_row = -(-config.max_model_len // config.block_size) + 1
        self._rows = RowState(  # one more, for the padding of captured steps
            config.max_num_seqs + 1, config.max_model_len + 1, blocks_per_row, self.device
        )
        self.step_sampler: StepSampler = StepSampler(
            config, communicator, self.plugins, self.model, self._rows
        )
        self._logprobs = self.step_sampler.logprobs
        self._pooled = PooledRows()

    def allocate(self, num_blocks: int) -> None:
        """Create the KV pool; what was there before is given back first."""
        self.pool = []
        pool: object = self.backend.allocate(num_blocks)
        num_layers = self._config.spec.num_layers
        if not isinstance(pool, (list, tuple)) or len(pool) != num_layers:
            wanted = f"a list of {num_layers} entries, one a layer"
            raise WrongAnswer(self.backend, "allocate", pool, wanted)
        self.pool = list(pool)

    @property
    def bytes_per_block(self) -> int:
        """What the backend says that one block takes over all layers."""
        number: object = self.backend.bytes_per_block()
        checked = integer_of(number)
        most = MAX_TOKEN_BYTES * self._config.block_size
        if checked is None or not 0 < checked <= most:
            wanted = f"a number of bytes from 1 to {most}"
            raise WrongAnswer(self.backend, "bytes_per_block", number, wanted)
        return checked

    def capture(self, capturer: Capturer, prefill_tokens: int = 0) -> None:
        """Capture steps of every bucket. The pool is final from here on.

        Args:
            prefill_tokens: of the largest step with prefill to capture; 0: decode steps alone.
        """
        config, spec = self._config, self._config.spec
        hidden = torch.zeros(
            config.max_num_seqs, spec.hidden_size, dtype=self.dtype, device=self.device
        )
        parts = GraphParts(
            self.model, self.backend, self.plugins.sampler, self._rows, self.pool,
            config.block_size, self.step_sampler.sample_on_device, hidden,
        )  # fmt: skip
        self.step_sampler.graphs = StepGraphs(parts, config.max_num_seqs, prefill_tokens, capturer)

    @property
    def graphs(self) -> StepGraphs | None:
        """Of steps, after `capture`; None: every step runs eagerly."""
        return self.step_sampler.graphs

    def apply(self, plan: StepPlan) -> None:
        """Bring rows, tables and pool to where the plan starts from: removals first."""
        for row in plan.removed:
            self.plugins.remove_row(int(row))
            self._arguments.pop(int(row), None)
            self._pooled.remove_row(int(row))
        for request_id in plan.finished:
            self.plugins.finish(request_id)
        for new in plan.new:
            self.step_sampler.add_row(new)
            self._pooled.add_row(new)
            if self._model_name in new.arguments:
                self._arguments[new.row] = new.arguments[self._model_name]
        self._rows.apply(plan)
        if len(plan.copies):
            copies = to_device(plan.copies.astype(np.int64), self.device)
            self.backend.copy_blocks(self.pool, copies)

    def forward(self, plan: StepPlan) -> tuple[StepBatch, torch.Tensor]:
        """Run the model over an applied plan; hidden states [s, hidden] of the rows that sample."""
        has_prefill = plan.num_decodes < len(plan.rows)
        if self.graphs is not None:
            asks_prompts = has_prefill and (
                self._logprobs.ask_for_prompts(plan) or self._pooled.ask(plan)
            )
            has_arguments = bool(self._arguments) and self._have_arguments(plan.rows)
            replayed = self.graphs.forward(
                plan, asks_prompts=asks_prompts, has_arguments=has_arguments
            )
            if replayed is not None:
                return replayed
        batch = make_batch(
            plan, self._rows, self._config.block_size, self.device,
            self.max_micro_batch_tokens, self._shown_arguments,
        )  # fmt: skip
        if has_prefill:  # of a row that decodes, the prompt is done
            lengths = [int(one.host_query_lens.sum()) for one in batch.micro_batches]  # no padding
            wanted = self._logprobs.prompt_tokens(plan, lengths)
            pooled = self._pooled.tokens(plan, lengths)
            if wanted is not None or pooled is not None:
                return batch, self._forward_with_prompts(batch, wanted, pooled)
        hidden = [self._forward(one) for one in batch.micro_batches]
        return batch, hidden[0] if len(hidden) == 1 else torch.cat(hidden)

    def _have_arguments(self, rows: IntArray) -> bool:
        return any(row in self._arguments for row in rows.tolist())

    def _forward(self, one: ForwardBatch) -> torch.Tensor:
        one.attention = self.backend.prepare(one)
        hidden = self.model.forward(one, self.pool)
        shape = (len(one.logits_indices), self._config.spec.hidden_size)
        return checked_tensor(self.model, "forward", hidden, shape, self._nothing)

    def _forward_with_prompts(
        self, batch: StepBatch, wanted: PromptTokens | None, pooled: PooledTokens | None
    ) -> torch.Tensor:
        """Hidden states of the rows that sample; those of prompts become log probabilities and
        embeddings."""
        hidden: list[torch.Tensor] = []
        of_prompts: list[torch.Tensor] = []
        of_pooled: list[torch.Tensor] = []
        for number, one in enumerate(batch.micro_batches):
            more = [asked.indices[number] for asked in (wanted, pooled) if asked is not None]
            ends = np.cumsum([len(one.logits_indices), *map(len, more)])
            one.logits_indices = torch.cat(
                (one.logits_indices, *(to_device(indices, self.device) for indices in more))
            )
            parts = self._forward(one).tensor_split(ends[:-1].tolist())
            hidden.append(parts[0])
            if wanted is not None:
                of_prompts.append(parts[1])
            if pooled is not None:
                of_pooled.append(parts[-1])
        if wanted is not None:
            self._find_prompt_logprobs(batch, wanted, torch.cat(of_prompts))
        if pooled is not None:
            batch.embeddings = self._pooled.pool(pooled, torch.cat(of_pooled))
        return torch.cat(hidden)

    def _find_prompt_logprobs(
        self, batch: StepBatch, wanted: PromptTokens, states: torch.Tensor
    ) -> None:
        rows, positions = to_device(np.stack((wanted.rows, wanted.positions)), self.device)
        batch.prompt_logprobs = self._logprobs.of_prompts(
            wanted,
            states,
            self._rows.token_ids[rows, positions],
            lambda some: self.step_sampler.logits(some).float(),
        )

    def check(self, request: Request) -> None:
        """Raise ValueError when model, sampler or a logits processor cannot do what is asked."""
        self._model_calls.check(self.model.check, request.arguments.get(self._model_name))
        self.plugins.check(request)

    def _open_checkpoint(self) -> Checkpoint | None:
        """The weights; None: random numbers take their place."""
        spec, is_first = self._config.spec, self._communicator.rank == 0
        if spec.random_weights:
            if is_first:
                logger.warning("%s: the weights are random: the answers mean nothing", spec.path)
            return None
        checkpoint = open_checkpoint(Path(spec.path))
        if checkpoint.note and is_first:
            logger.warning("%s", checkpoint.note)
        return checkpoint

    def _load_model(self, checkpoint: Checkpoint | None) -> Model:
        component = self._config.components.required("model")
        config = ModelConfig(
            name=component.name,
            spec=settle_ties(self._config.spec, checkpoint) if checkpoint else self._config.spec,
            device=self.device,
            dtype=self.dtype,
            communicator=self._communicator,
            attention_backend=self.backend,
            max_model_len=self._config.max_model_len,
        )
        model = component.make(Model, config)
        parameters = getattr(model, "parameters", None)
        self.weight_bytes = sum(p.nbytes for p in parameters()) if parameters else 0
        try:
            if checkpoint is None:
                model.load_random()
            else:
                model.load(checkpoint.tensors())
        except (ModelError, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as error:
            parts = [StepPart(component.label, model)]
            raise ModelError(
                str(step_error("the weights were not loaded", error, parts))
            ) from error
        return model

    def _step_parts(self) -> list[StepPart]:
        chosen = self._config.components
        return [
            StepPart(chosen.required("model").label, self.model),
            StepPart(chosen.required("attention_backend").label, self.backend),
        ]

    def _attention_config(self, name: str) -> AttentionConfig:
        config, spec = self._config, self._config.spec
        num_heads, num_kv_heads = heads_of_rank(
            spec.num_heads, spec.num_kv_heads, self._communicator.size
        )
        return AttentionConfig(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=spec.head_dim,
            num_layers=spec.num_layers,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            dtype=self.dtype,
            device=self.device,
            sliding_windows=spec.sliding_windows,
            soft_cap=spec.soft_cap,
            name=name,
        )
