"""The training loop: every step follows from seed and step number, so it can stop anywhere."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tools.train_demo.figures import bits_per_byte
from tools.train_demo.model import DemoModel, parameter_count
from tools.train_demo.settings import Settings

CHECKPOINT_SECONDS = 30.0
REPORTS = 20


def steps_per_epoch(settings: Settings, documents: list[np.ndarray]) -> int:
    """Batches that fit into one pass over the chapters."""
    tokens = sum(len(doc) for doc in documents)
    return max(1, (tokens - 1) // (settings.batch_size * settings.context))


def epoch_batches(settings: Settings, documents: list[np.ndarray], epoch: int) -> np.ndarray:
    """[steps, batch, context + 1]: the chapters in a new order, cut at a new offset."""
    generator = np.random.default_rng([settings.seed, epoch])
    stream = np.concatenate([documents[i] for i in generator.permutation(len(documents))])
    stream = np.roll(stream, generator.integers(len(stream)))
    count = steps_per_epoch(settings, documents) * settings.batch_size
    starts = generator.permutation(count) * settings.context
    rows = np.stack([stream[start : start + settings.context + 1] for start in starts])
    return rows.reshape(-1, settings.batch_size, settings.context + 1)


def learning_rate(settings: Settings, step: int, total: int) -> float:
    """Linear warm-up, then a cosine down to a fiftieth."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, total - settings.warmup_steps)
    return settings.learning_rate * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)


def make_optimizer(model: DemoModel, settings: Settings) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves the norms alone."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95))


def train_step(model: DemoModel, optimizer: torch.optim.Optimizer, rows: Tensor) -> Tensor:
    """One update; returns the loss without waiting for it."""
    with torch.autocast(rows.device.type, torch.bfloat16, enabled=rows.is_cuda):
        logits = model(rows[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), model.settings.clip_norm)
    optimizer.step()
    return loss.detach()


class Run:
    """One training run in a folder: made new, or continued from its last checkpoint."""

    def __init__(self, folder: Path, settings: Settings, device: str) -> None:
        self.path = folder / "checkpoint.pt"
        self.settings, self.device = settings, device
        torch.manual_seed(settings.seed)
        self.model = DemoModel(settings).to(device)
        self.optimizer = make_optimizer(self.model, settings)
        self.step = 0
        self.seconds = 0.0
        if self.path.exists():
            self._resume()

    def _resume(self) -> None:
        state = torch.load(self.path, map_location=self.device, weights_only=True)
        if state["settings"] != vars(self.settings):
            raise SystemExit(f"{self.path} was made with other settings; use another folder")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]

    def save(self) -> None:
        """Write the checkpoint beside the old one, then put it in its place."""
        state = {
            "settings": dict(vars(self.settings)),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, self.path.with_suffix(".new"))
        self.path.with_suffix(".new").replace(self.path)

    def train(
        self, documents: list[np.ndarray], valid: list[np.ndarray], valid_bytes: int, limit: float
    ) -> bool:
        """Train to the end or for ``limit`` seconds; says whether the end was reached."""
        per_epoch = steps_per_epoch(self.settings, documents)
        total = max(1, round(self.settings.epochs * per_epoch))
        print(f"{parameter_count(self.model)} parameters, {total} steps, from step {self.step}")
        begun = saved = time.monotonic()
        before, epoch, batches = self.seconds, -1, np.empty(0)
        self.model.train()
        while self.step < total and time.monotonic() - begun < limit:
            if self.step // per_epoch != epoch:
                epoch = self.step // per_epoch
                batches = epoch_batches(self.settings, documents, epoch)
            torch.manual_seed(self.settings.seed * 1_000_003 + self.step)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.settings, self.step, total)
            rows = torch.from_numpy(batches[self.step % per_epoch]).to(self.device)
            loss = train_step(self.model, self.optimizer, rows)
            self.step += 1
            if self.step % max(1, total // REPORTS) == 0 or self.step == total:
                self._report(loss, total, valid, valid_bytes, before + time.monotonic() - begun)
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                self.seconds, saved = before + time.monotonic() - begun, time.monotonic()
                self.save()
        self.seconds = before + time.monotonic() - begun
        self.save()
        return self.step >= total

    def _report(
        self, loss: Tensor, total: int, valid: list[np.ndarray], valid_bytes: int, seconds: float
    ) -> None:
        bits = bits_per_byte(self.model, valid, valid_bytes)
        line = {
            "step": self.step,
            "of": total,
            "loss": round(loss.item(), 4),
            "valid_bits_per_byte": round(bits, 4),
            "seconds": round(seconds, 1),
        }
        print(json.dumps(line), flush=True)
        self.model.train()
