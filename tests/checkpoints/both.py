"""One folder read by nanofw and by transformers, and how far apart their logits are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nanofw.checkpoints.config import read_checkpoint
from tests.runtime.driver import Driver, executor_config
from tests.runtime.driver import TorchExecutor as Executor

LOGIT_BOUND = 1e-4
"""Largest difference of logits, as a share of their standard deviation."""
LENGTHS = (1, 7, 20, 40)
"""Prompts whose last position is compared: within windows and trained lengths, and beyond."""


def prompt(vocab_size: int) -> list[int]:
    return [(17 * i * i + 5 * i + 3) % vocab_size for i in range(max(LENGTHS))]


def our_logits(folder: Path) -> torch.Tensor:
    """float32[4, vocab] after the first tokens of `prompt`, as many as `LENGTHS` says."""
    spec = read_checkpoint(folder)
    length = min(spec.default_model_len, 2 * max(LENGTHS))
    if spec.rope.get("rope_type") == "longrope":  # its factors are those of the longest prompt
        length = max(LENGTHS)
    executor = Executor(None, executor_config(folder, max_model_len=length))
    driver = Driver(executor)
    tokens = prompt(spec.vocab_size)
    rows = [driver.add(i, tokens[:length]) for i, length in enumerate(LENGTHS)]
    driver.step([(row, row.known) for row in rows])
    logits = driver.sampler.logits
    return torch.stack([logits[i, length] for i, length in enumerate(LENGTHS)])


def load_theirs(folder: Path) -> Any:
    """The model that transformers makes of the folder, in float32."""
    return load_with_report(folder)[0]


def load_with_report(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The same, and the names of tensors that were missing, needless or of another shape."""
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    model, report = loaded
    return model.eval(), report


@torch.inference_mode()
def logits_of(model: Any) -> torch.Tensor:
    """Those of `our_logits`, from a model of transformers."""
    tokens = prompt(model.config.vocab_size)
    logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits[[length - 1 for length in LENGTHS]]


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference as a share of the deviation."""
    return float(((ours - theirs).abs() / theirs.std(dim=-1, keepdim=True)).max())


def check_equal(folder: Path) -> None:
    """nanofw's logits are those of transformers."""
    found = distance(our_logits(folder), logits_of(load_theirs(folder)))
    assert found <= LOGIT_BOUND, f"{found:.3g} deviations apart"
