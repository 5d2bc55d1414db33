"""Logits processors that are right and odd."""

from __future__ import annotations

import torch

from nanofw.plugins import HostProcessor, LogitsProcessor, Options, Plugin, hookimpl
from tests.mutants.collection import Collection
from tests.mutants.plain.logits_processors import Alternates, Favour, Noise, Repeats

sample = Collection("logits_processor/2", {"devices": ("*",), "overlap": True})


@hookimpl
def logits_processor() -> list[Plugin]:
    return sample.plugins()


@sample()
class FromTheSeed(Favour):
    """What it does follows from the request's seed, which is the same wherever the request is."""


@sample(needs_history="device")
class CountsOutputs(Repeats):
    """What it counts begins with the tokens that a request brings, and goes on with `sampled`."""


@sample()
class NoiseOfTheRequest(Noise):
    """Its noise is random, from a stream of its own, by seed, sample, position and token."""


@sample()
class AfterTheTemperature(Noise):
    """It acts on the scaled logits, by a new tensor each time."""

    stage = "scaled"


@sample()
class OddSeedsOnly(Favour):
    """It has nothing to do for requests of an even seed, and leaves them as they are."""

    def __init__(self, options, config):
        super().__init__(options, config)
        self.is_odd = torch.zeros(config.max_num_seqs, dtype=torch.bool)

    def add_row(self, new):
        super().add_row(new)
        self.is_odd[new.row] = new.seed % 2 == 1
        return new.seed % 2 == 1

    def apply(self, logits, rows, positions):
        changed = super().apply(logits.clone(), rows, positions)
        return torch.where(self.is_odd[rows][:, None], changed, logits)


@sample(needs_history="device")
class KeepsByRequest(LogitsProcessor):
    """Its number belongs to the request: it is put aside with the row, and dropped at the end."""

    def __init__(self, options, config):
        super().__init__(options, config)
        self.saved: dict[str, float] = {}
        self.ids: dict[int, str] = {}

    def add_row(self, new):
        self.ids[new.row] = new.request_id
        self.saved.setdefault(new.request_id, 1.0)
        return True

    def remove_row(self, row):
        del self.ids[row]

    def finish(self, request_id):
        self.saved.pop(request_id, None)

    def apply(self, logits, rows, positions):
        factors = [self.saved[self.ids[row]] for row in rows.tolist()]
        return logits * torch.tensor(factors)[:, None]

    def sampled(self, rows, token_ids):
        for row, token in zip(rows.tolist(), token_ids.tolist(), strict=True):
            self.saved[self.ids[row]] = 1.0 + token % 3


class ConstantsOptions(Options):
    strength: float = 0.0
    names: tuple[str, ...] = ()


@sample(ConstantsOptions)
class DoesNothing(LogitsProcessor):
    """With its default strength of zero it has nothing to do for anybody."""

    def add_row(self, new):
        return self.options.strength != 0

    def apply(self, logits, rows, positions):
        return logits + self.options.strength


@sample(needs_history="host")
class ByTurns(Alternates):
    """A host processor whose state moves on with the tokens that were committed."""


@sample(needs_history="host")
class EvenTokensForSome(HostProcessor):
    """It constrains only requests whose prompt has an even length, and says so in `start`."""

    def start(self, request_id, arguments, prompt):
        return len(prompt) % 2 == 0

    def mask(self, request_id, bits):
        bits &= 0x55555555


@sample(needs_history="host")
class AllAtOnce(Alternates):
    """The masks of a step are made together."""

    def mask_rows(self, request_ids, bits):
        for i, request_id in enumerate(request_ids):
            if request_id is not None:
                bits[i] &= self.allowed[self.counts[request_id] % 2]
        return {}
