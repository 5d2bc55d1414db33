"""The backends for GPUs under the conformance kit, for all that they claim on this card."""

from __future__ import annotations

import pytest
import torch

from nanofw.attention_backends import flash_attn, gpu_manifest
from nanofw.attention_backends.triton import TritonAttention
from nanofw.testing.attention_backend import AttentionBackendChecks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
CLAIMED = {plugin.name: plugin.capabilities for plugin in gpu_manifest.attention_backend()}


class TestTriton(AttentionBackendChecks):
    capabilities = CLAIMED["triton"]
    device = "cuda"

    def make(self, config):
        return TritonAttention(None, config)


class TestFlashAttention(AttentionBackendChecks):
    device = "cuda"

    @pytest.fixture(autouse=True)
    def _claim(self):
        answer = flash_attn.probe("cuda", None)
        if isinstance(answer, str):
            pytest.skip(answer)
        type(self).capabilities = {**CLAIMED["flash_attn"], **answer}

    def make(self, config):
        return flash_attn.FlashAttention(None, config)
