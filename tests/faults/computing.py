"""Plugins of the kinds that compute, sound until their fault, as a file of `plugins.load`."""

from __future__ import annotations

from typing import Any

import torch

from nanofw.attention_backends import manifest as backends
from nanofw.attention_backends.sdpa import SdpaBackend
from nanofw.contracts.arrays import IntArray
from nanofw.contracts.attention_backend import AttentionBackend, AttentionConfig
from nanofw.contracts.logits_processor import LogitsProcessor
from nanofw.contracts.model import Model, ModelConfig
from nanofw.contracts.plan import NewRow
from nanofw.contracts.sampler import DeviceSampler, SampledTokens, Sampler, SamplerConfig
from nanofw.models import manifest as models
from nanofw.models.qwen3 import Qwen3ForCausalLM
from nanofw.plugins import Plugin, hookimpl
from tests.faults.faults import Fault, with_fault


def likeliest(logits: torch.Tensor) -> SampledTokens:
    highest, token_ids = logits.max(dim=-1)
    return SampledTokens(token_ids=token_ids.int(), failed=~highest.isfinite())


class SoundSampler(DeviceSampler):
    """Takes the likeliest token: of a single row on the device, else with all methods."""

    variants = ("alone",)

    def check(self, sampling: Any, arguments: Any) -> None:
        """Anything goes."""

    def finish(self, request_id: str) -> None:
        """Nothing is kept."""

    def variant(self, rows: IntArray) -> str | None:
        return "alone" if len(rows) == 1 else None

    def sync(self) -> None:
        """Nothing is brought."""

    def edit(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        return logits.clone()

    def scale(self, logits: torch.Tensor, rows: IntArray) -> torch.Tensor:
        return logits.clone()

    def sample(
        self,
        logits: torch.Tensor,
        rows: IntArray,
        positions: IntArray,
        *,
        scaled: bool = False,
        sharded: bool = False,
    ) -> SampledTokens:
        return likeliest(logits)

    def sample_on_device(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        variant: str,
        *,
        sharded: bool = False,
    ) -> SampledTokens:
        return likeliest(logits)


class SoundProcessor(LogitsProcessor):
    """Has something to do for every second request, and changes nothing."""

    stage = "scaled"

    def add_row(self, new: NewRow) -> bool:
        return int(new.request_id[1:]) % 2 == 0

    def check(self, arguments: Any) -> None:
        """Anything goes."""

    def finish(self, request_id: str) -> None:
        """Nothing is kept."""

    def apply(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        return logits.clone()

    def sampled(self, rows: IntArray, token_ids: torch.Tensor) -> None:
        """Nothing is counted."""


class SoundModel(Qwen3ForCausalLM):
    def check(self, arguments: Any) -> None:
        """Anything goes."""


def make_sampler(options: Fault, config: SamplerConfig) -> Sampler:
    return with_fault(SoundSampler, options)(options, config)


def make_processor(options: Fault, config: SamplerConfig) -> LogitsProcessor:
    return with_fault(SoundProcessor, options)(options, config)


def make_model(options: Fault, config: ModelConfig) -> Model:
    return with_fault(SoundModel, options)(options, config)


def make_backend(options: Fault, config: AttentionConfig) -> AttentionBackend:
    return with_fault(SdpaBackend, options)(options, config)


def described(kind: str, make: str, **claims: Any) -> Plugin:
    claims = {"devices": ("*",), **claims}
    return Plugin("faulty", f":{make}", api=f"{kind}/2", options=Fault, capabilities=claims)


@hookimpl
def sampler() -> Plugin:
    return described("sampler", "make_sampler")


@hookimpl
def logits_processor() -> Plugin:
    return described("logits_processor", "make_processor", needs_history="device")


@hookimpl
def model() -> Plugin:
    claims = models.model()[0].capabilities
    return Plugin(
        "faulty",
        ":make_model",
        api="model/2",
        options=Fault,
        architectures=("*",),
        capabilities=claims,
    )


@hookimpl
def attention_backend() -> Plugin:
    claims = dict(backends.attention_backend().capabilities)
    return described("attention_backend", "make_backend", **claims)
