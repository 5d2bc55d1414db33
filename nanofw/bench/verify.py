"""A model in nanofw held against transformers: logits and greedy tokens at every position.

The engine runs greedy requests as it always does: batched, in chunks, over its KV cache, with the
configured sampler, and what that sampler is given is noted. The reference is then shown each text
as a whole. Differences are shares of the standard deviation of a position's logits.

In float32 the bound is fixed. In a lower precision two right implementations differ by their
rounding: the bound is then twice what transformers itself, in that precision, is off its float32.
"""

# transformers does not state its types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from nanofw.assembly import Selection, build
from nanofw.contracts.arrays import IntArray
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.plan import NewRow
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.contracts.sampler import SampledTokens, Sampler, SamplerConfig
from nanofw.errors import ConfigError, ExecutorError
from nanofw.plugins import Component, Plugin

if TYPE_CHECKING:
    import torch

FLOAT32_BOUND = 1e-4
"""Largest difference in float32, as a share of the standard deviation."""
_LENGTHS = (1, 7, 24, 61)

FloatArray = NDArray[np.float32]


class VerifyOptions(BaseModel):
    """What is compared.

    Attributes:
        reference_device: where transformers runs; None: where the run is.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int = Field(default=32, ge=1)
    seed: int = 0
    reference_device: str | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and what the engine made of it.

    Attributes:
        token_ids: prompt and output.
        logits: float32[outputs, vocab], that each output token was sampled from.
    """

    token_ids: list[int]
    num_prompt_tokens: int
    logits: FloatArray


@dataclass(slots=True)
class Comparison:
    """One text against the reference.

    Attributes:
        num_positions: compared.
        error: the largest difference over positions and tokens, by the standard deviation.
        mean_error: the mean over positions of their root mean square.
        num_greedy: generated tokens; `num_equal` of them are the reference's and `num_ties`
            differ where its best two logits are closer than the bound allows to tell.
        differences: (position in the output, ours, theirs) of the others.
        bound: what `error` may be.
    """

    num_prompt_tokens: int
    num_positions: int
    error: float
    mean_error: float
    bound: float
    num_greedy: int = 0
    num_equal: int = 0
    num_ties: int = 0
    differences: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    @property
    def is_within(self) -> bool:
        """Whether logits and tokens are within bounds; NaN is not."""
        return self.error <= self.bound and not self.differences


@dataclass(slots=True)
class Recording:
    """Options of `RecordingSampler`: the sampler that samples, and what it was given.

    Attributes:
        logits: float32[vocab] by request and position of the sampled token.
    """

    inner: Component
    logits: dict[tuple[str, int], FloatArray] = field(
        default_factory=dict[tuple[str, int], FloatArray]
    )


class RecordingSampler(Sampler):
    """A sampler around another one."""

    def __init__(self, options: Recording, config: SamplerConfig) -> None:
        super().__init__(options, config)
        self._recording = options
        self._inner = options.inner.make(Sampler, config)
        self._ids: dict[int, str] = {}

    def check(self, sampling: SamplingParams, arguments: object) -> None:
        self._inner.check(sampling, arguments)

    def add_row(self, new: NewRow) -> None:
        self._ids[new.row] = new.request_id
        self._inner.add_row(new)

    def remove_row(self, row: int) -> None:
        self._inner.remove_row(row)

    def finish(self, request_id: str) -> None:
        self._inner.finish(request_id)

    def edit(self, logits: torch.Tensor, rows: IntArray, positions: IntArray) -> torch.Tensor:
        copies = logits.float().cpu().numpy().copy()
        for line, row, position in zip(copies, rows.tolist(), positions.tolist(), strict=True):
            self._recording.logits[self._ids[row], position] = line
        return self._inner.edit(logits, rows, positions)

    def scale(self, logits: torch.Tensor, rows: IntArray) -> torch.Tensor:
        return self._inner.scale(logits, rows)

    def sample(
        self,
        logits: torch.Tensor,
        rows: IntArray,
        positions: IntArray,
        *,
        scaled: bool = False,
        sharded: bool = False,
    ) -> SampledTokens:
        return self._inner.sample(logits, rows, positions, scaled=scaled, sharded=sharded)


def make_prompts(vocab_size: int, longest: int, seed: int) -> list[list[int]]:
    """Prompts of random tokens, of several lengths up to `longest`."""
    generator = np.random.default_rng(seed)
    lengths = sorted({min(length, longest) for length in _LENGTHS})
    return [generator.integers(0, vocab_size, length).tolist() for length in lengths]


def run_engine(
    selection: Selection, prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[Text]:
    """Continue the prompts greedily, all at once, and note the logits of every sampled token."""
    recording = Recording(selection.components["sampler"])
    plugin = Plugin("recording", "nanofw.bench.verify:RecordingSampler", api="sampler/2")
    sampler = Component(plugin=plugin, options=recording)
    selection = replace(selection, components={**selection.components, "sampler": sampler})
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    found: dict[str, RequestOutput] = {}
    with build(selection) as engine:
        for index, prompt in enumerate(prompts):
            engine.add_request(
                Request(id=str(index), prompt_token_ids=list(prompt), sampling=sampling)
            )
        while engine.has_unfinished:
            found |= {output.id: output for output in engine.step().finished}
    return [_text(list(prompt), found[str(i)], recording) for i, prompt in enumerate(prompts)]


def compare(
    texts: Sequence[Text], folder: str, dtype: str, device: str, options: VerifyOptions
) -> list[Comparison]:
    """Hold the texts of a run in `dtype` against transformers.

    Raises:
        ImportError: transformers is missing.
    """
    device = options.reference_device or device
    expected = reference_logits(texts, folder, "float32", device)
    bounds = [FLOAT32_BOUND] * len(texts)
    if dtype != "float32":
        rounded = reference_logits(texts, folder, dtype, device)
        pairs = zip(rounded, expected, strict=True)
        floor = max(float(_errors(a, b).max()) for a, b in pairs)
        bounds = [max(2 * floor, FLOAT32_BOUND)] * len(texts)
    return [
        compare_one(text, logits, bound)
        for text, logits, bound in zip(texts, expected, bounds, strict=True)
    ]


def compare_one(text: Text, logits: FloatArray, bound: float) -> Comparison:
    """One text against the reference's float32[outputs, vocab] logits."""
    errors = _errors(text.logits, logits)
    largest = errors.max(axis=1)
    result = Comparison(
        num_prompt_tokens=text.num_prompt_tokens,
        num_positions=len(logits),
        error=float(largest.max()),
        mean_error=float(np.sqrt((errors**2).mean(axis=1)).mean()),
        bound=bound,
    )
    for position, ours in enumerate(text.token_ids[text.num_prompt_tokens :]):
        line = logits[position]
        theirs = int(line.argmax())
        result.num_greedy += 1
        if ours == theirs:
            result.num_equal += 1
        elif line[theirs] - line[ours] < 2 * bound * line.std():
            result.num_ties += 1
        else:
            result.differences.append((position, ours, theirs))
    return result


def reference_logits(
    texts: Sequence[Text], folder: str, dtype: str, device: str
) -> list[FloatArray]:
    """Logits of transformers, with its plainest attention, at the positions of the outputs."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="eager"
    )
    model = model.to(device).eval()
    with torch.inference_mode():
        return [_logits(model, text, device) for text in texts]


def _logits(model: Any, text: Text, device: str) -> FloatArray:
    import torch

    tokens: torch.Tensor = torch.tensor([text.token_ids[:-1]], device=device)
    return model(tokens).logits[0, text.num_prompt_tokens - 1 :].float().cpu().numpy()


def _check_device(device: str) -> None:
    import torch

    try:
        torch.zeros(1, device=device).cpu()
    # What torch raises: no such device; built without it; a device without content, as meta is.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"transformers cannot run on {device!r} here: {str(error).splitlines()[0]}",
            key="--reference-device",
        ) from error


def _text(prompt: list[int], output: RequestOutput, recording: Recording) -> Text:
    if output.error is not None:
        raise ExecutorError(f"a prompt of {len(prompt)} tokens failed: {output.error}")
    token_ids = [*prompt, *output.token_ids.tolist()]
    positions = range(len(prompt), len(token_ids))
    logits = np.stack([recording.logits[output.id, position] for position in positions])
    return Text(token_ids, len(prompt), logits)


def _errors(ours: FloatArray, theirs: FloatArray) -> FloatArray:
    """Differences [positions, vocab] as shares of the standard deviation of each position."""
    return np.abs(ours - theirs) / theirs.std(axis=1, keepdims=True)


def check_possible(selection: Selection, options: VerifyOptions) -> int:
    """The longest prompt of a run, or ConfigError where there is nothing to compare."""
    if selection.virtual_time:
        raise ConfigError(
            "a simulated run computes no logits; choose another executor", key="executor.name"
        )
    if selection.loaded.config.engine.tensor_parallel_size > 1:
        raise ConfigError(
            "the logits of other processes cannot be noted; verify on one rank",
            key="engine.tensor_parallel_size",
        )
    if options.reference_device is not None:
        _check_device(options.reference_device)
    longest = selection.max_model_len - options.max_tokens
    if longest < 1:
        raise ConfigError(
            f"{options.max_tokens} tokens do not fit in {selection.max_model_len}; lower "
            "--max-tokens", key="engine.max_model_len",
        )  # fmt: skip
    return longest
