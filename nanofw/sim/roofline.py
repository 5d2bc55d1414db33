"""Cost model `roofline`: arithmetic against memory traffic, part by part.

A step is three parts after each other: the linear layers, attention, the output head. Each
takes the longer of its arithmetic at the peak rate and its traffic at the bandwidth (Williams,
Waterman, Patterson, "Roofline", CACM 2009), both scaled by what kernels reach in practice. On
top comes a fixed time per step, and one per row.

Of a model with experts, a step reads the weights that its tokens choose: with a share `a` of all
weights active for a token, and choices that are independent, `1 - (1 - a)^n` of them for n tokens.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, field_validator

from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.cost_model import CostModelConfig
from nanofw.contracts.plan import StepPlan
from nanofw.errors import ExecutorError
from nanofw.plugins import Options
from nanofw.sim.devices import DEVICES
from nanofw.sim.work import StepWork, steady_keys

Share = Annotated[float, Field(gt=0, le=1)]


class RooflineOptions(Options):
    """`cost_model: {name: roofline, ...}`."""

    device: str = "h100-sxm"
    """The device whose figures are used. The three keys below replace single figures."""
    peak_tflops: PositiveFloat | None = None
    """Peak rate of dense matrix products; null: that of `device`."""
    bandwidth_gb_s: PositiveFloat | None = None
    """Memory bandwidth; null: that of `device`."""
    memory_gb: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Memory for weights and KV; null: that of `device`."""
    compute_efficiency: Share = 0.65
    """Share of the peak that matrix products reach."""
    bandwidth_efficiency: Share = 0.8
    """Share of the bandwidth that kernels reach."""
    overhead_us: NonNegativeFloat = 400.0
    """Fixed time of a step: launches, sampling, what the roofline leaves out."""
    overhead_per_row_us: NonNegativeFloat = 0.5
    """Time that is added for each row of a step."""

    @field_validator("device")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in DEVICES:
            raise ValueError(f"no device {name!r}; known: {', '.join(DEVICES)}")
        return name


class Roofline:
    """Times of a decoder on one device."""

    def __init__(self, options: RooflineOptions, config: CostModelConfig) -> None:
        spec, device = config.spec, DEVICES[options.device]
        peak = device.peak_flops(spec.dtype)
        if options.peak_tflops is not None:
            peak = options.peak_tflops * 1e12
        bandwidth = 1e9 * (options.bandwidth_gb_s or device.bandwidth)
        self._flop_s = 1 / (peak * options.compute_efficiency)
        self._byte_s = 1 / (bandwidth * options.bandwidth_efficiency)
        self._overhead_s = options.overhead_us * 1e-6
        self._row_s = options.overhead_per_row_us * 1e-6
        self._memory = int(1e9 * (options.memory_gb or device.memory))
        self._spec, self._config = spec, config
        self._work: StepWork | None = None
        width = spec.bytes_per_element
        self._layer_bytes = spec.layer_weight_bytes
        self._inactive = 1 - spec.num_active_parameters / max(spec.num_layer_parameters, 1)
        self._head_bytes = spec.num_head_parameters * width
        # per token and layer: the residual stream and its norms, q, k, v, the gated product
        heads = spec.num_heads + spec.num_kv_heads
        per_layer = 6 * spec.hidden_size + 2 * heads * spec.head_dim + 4 * spec.intermediate_size
        self._activation_bytes = spec.num_layers * per_layer * width
        # seconds of each unit of work, by arithmetic and by traffic
        self._token_s = (
            2 * spec.num_active_parameters * self._flop_s, self._activation_bytes * self._byte_s
        )  # fmt: skip
        self._layers_s = self._layer_bytes * self._byte_s
        self._pair_s = 4 * spec.num_layers * spec.num_heads * spec.head_dim * self._flop_s
        self._kv_token_s = spec.kv_bytes_per_token * self._byte_s
        self._sampled_s = 2 * spec.num_head_parameters * self._flop_s
        self._head_s = self._head_bytes * self._byte_s

    def seconds(self, plan: StepPlan) -> float:
        self._work = work = StepWork.of(plan, self._work)
        linear, attention, head = self.parts(work)
        return self._overhead_s + self._row_s * work.num_rows + linear + attention + head

    def steady_seconds(self, plan: StepPlan, num_steps: int) -> tuple[None, FloatArray]:
        work = StepWork.of(plan)
        linear, _, head = self.parts(work)
        keys = steady_keys(work, num_steps)  # pairs are as many: one query each
        attention = np.maximum(self._pair_s * keys, self._kv_token_s * (keys + work.num_tokens))
        return None, self._overhead_s + self._row_s * work.num_rows + linear + attention + head

    def parts(self, work: StepWork) -> tuple[float, float, float]:
        """Seconds of the linear layers, of attention, and of the output head."""
        compute_s, traffic_s = self._token_s
        layers_s = self._layers_s
        if self._inactive > 0:  # each token reads weights that it chooses among all of them
            layers_s *= 1 - self._inactive**work.num_tokens
        linear = max(compute_s * work.num_tokens, layers_s + traffic_s * work.num_tokens)
        kv_tokens = work.num_keys + work.num_tokens
        attention = max(self._pair_s * work.num_pairs, self._kv_token_s * kv_tokens)
        if not work.num_sampled:
            return linear, attention, 0.0
        return linear, attention, max(self._sampled_s * work.num_sampled, self._head_s)

    def kv_bytes(self) -> int:
        """What the weights and the largest step leave of the memory that a run may take."""
        spec, config = self._spec, self._config
        embedding = 0 if spec.tie_word_embeddings else self._head_bytes
        weights = self._layer_bytes + self._head_bytes + embedding
        step = self._activation_bytes // spec.num_layers * config.max_num_batched_tokens
        logits = 4 * config.max_num_seqs * spec.vocab_size
        left = int(self._memory * config.memory_utilization) - weights - step - logits
        if left <= 0:
            raise ExecutorError(
                f"no memory left for KV: {config.memory_utilization:.0%} of "
                f"{self._memory / 1e9:.0f} GB, weights {weights / 1e9:.1f} GB, largest step "
                f"{(step + logits) / 1e9:.1f} GB; choose another executor.cost_model.device or "
                "model, or lower engine.max_num_batched_tokens"
            )
        return left
