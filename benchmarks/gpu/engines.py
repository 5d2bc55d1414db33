"""The engines that `engine_run.py` measures: this package, and nano-vllm.

Each has `imports()`, `construct(folder, options)`, `generate(prompts, outputs)`, which returns how
many tokens came, and what parts need: `add`, `step`, `is_idle`, `num_layers`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEMPERATURE = 0.6
HERE = Path(__file__).parent
Prompts = list[list[int]]
Options = dict[str, Any]


class Nanofw:
    """This package, through `LLM`."""

    def __init__(self, backend: str) -> None:
        self.backend = backend or "auto"
        self.num_added = 0

    def imports(self) -> None:
        from nanofw import LLM, SamplingParams

        self.make, self.params = LLM, SamplingParams

    def construct(self, folder: str, options: Options) -> None:
        extra = json.loads(os.environ.get("NANOFW_OPTIONS", "{}"))
        values = {
            "max_model_len": 4096,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 16384,
            "memory_utilization": 0.9,
            "attention_backend": self.backend,
            **extra,
            **options,
        }
        self.llm: Any = self.make(folder, **values)

    def sampling(self, max_tokens: int) -> Any:
        return self.params(temperature=TEMPERATURE, ignore_eos=True, max_tokens=max_tokens)

    def generate(self, prompts: Prompts, outputs: list[int]) -> list[int]:
        results = self.llm.generate(prompts, [self.sampling(n) for n in outputs])
        return [len(result.outputs[0].token_ids) for result in results]

    def add(self, prompt: list[int], max_tokens: int) -> str:
        from nanofw.plugins import Request

        self.num_added += 1
        request_id, sampling = f"added-{self.num_added}", self.sampling(max_tokens)
        self.llm.engine.add_request(
            Request(id=request_id, prompt_token_ids=prompt, sampling=sampling)
        )
        return request_id

    def step(self) -> Any:
        return self.llm.engine.step()

    def is_idle(self) -> bool:
        return not self.llm.engine.has_unfinished

    def num_layers(self) -> int:
        return self.llm.engine.spec.num_layers

    def close(self) -> None:
        self.llm.close()

    def facts(self) -> dict[str, Any]:
        found = self.llm.engine.executor_facts()
        return {"graph_steps": dict(found.graph_steps), "start_s": dict(found.start_seconds)}


class NanofwAsync(Nanofw):
    """This package, through `AsyncLLM`: a reader for each request takes tokens as they come."""

    def imports(self) -> None:
        from nanofw import AsyncLLM, SamplingParams

        self.make, self.params = AsyncLLM, SamplingParams
        self.runner = asyncio.Runner()

    def generate(self, prompts: Prompts, outputs: list[int]) -> list[int]:
        return self.runner.run(self.read_all(prompts, outputs))

    async def read_all(self, prompts: Prompts, outputs: list[int]) -> list[int]:
        return await asyncio.gather(*map(self.read, prompts, outputs))

    async def read(self, prompt: list[int], max_tokens: int) -> int:
        count = 0
        async for event in self.llm.generate(prompt, self.sampling(max_tokens)):
            count += len(event.token_ids)
        return count

    def close(self) -> None:
        self.runner.run(self.llm.close())

    def facts(self) -> dict[str, Any]:
        return {}


class NanoVllm:
    """The peer, unmodified: a checkout named by NANO_VLLM.

    Its `flash_attn` is served by the FlashAttention-3 that is installed, or by the faster one of
    vLLM's wheel, whose library VLLM_FA3 names.
    """

    def __init__(self, backend: str) -> None:
        shim = HERE / "shims" / ("vllm_fa3" if os.environ.get("VLLM_FA3") else "")
        sys.path[:0] = [os.environ["NANO_VLLM"], str(shim)]

    def imports(self) -> None:
        from nanovllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

        self.make, self.params = LLM, SamplingParams

    def construct(self, folder: str, options: Options) -> None:
        extra = json.loads(os.environ.get("NANO_VLLM_OPTIONS", "{}"))
        self.llm = self.make(folder, enforce_eager=False, max_model_len=4096, **extra, **options)

    def sampling(self, max_tokens: int) -> Any:
        return self.params(temperature=TEMPERATURE, ignore_eos=True, max_tokens=max_tokens)

    def generate(self, prompts: Prompts, outputs: list[int]) -> list[int]:
        params = [self.sampling(n) for n in outputs]
        return [len(r["token_ids"]) for r in self.llm.generate(prompts, params, use_tqdm=False)]

    def add(self, prompt: list[int], max_tokens: int) -> None:
        self.llm.add_request(prompt, self.sampling(max_tokens))

    def step(self) -> None:
        self.llm.step()

    def is_idle(self) -> bool:
        return self.llm.is_finished()

    def num_layers(self) -> int:
        return self.llm.model_runner.config.hf_config.num_hidden_layers

    def close(self) -> None:
        """It ends with the process."""

    def facts(self) -> dict[str, Any]:
        return {}


ENGINES: dict[str, Callable[[str], Any]] = {
    "nanofw": Nanofw,
    "nanofw_async": NanofwAsync,
    "nano_vllm": NanoVllm,
}
