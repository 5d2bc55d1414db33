"""Logits processors that are wrong."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from nanofw.plugins import Plugin, hookimpl
from tests.mutants.collection import Collection
from tests.mutants.plain.logits_processors import Alternates, Favour, Noise, Repeats

sample = Collection("logits_processor/2", {"devices": ("*",), "overlap": True})


@hookimpl
def logits_processor() -> list[Plugin]:
    return sample.plugins()


@sample()
class LineForRow(Favour):
    """The row is taken for the line of the batch: another request gets the change."""

    def apply(self, logits, rows, positions):
        for row in rows.tolist():
            logits[row % len(logits), self.tokens[row]] += 5.0
        return logits


@sample()
class FirstForAll(Favour):
    """What the first request of a step asked for is done to all of them."""

    def apply(self, logits, rows, positions):
        logits[:, self.tokens[int(rows[0])]] += 5.0
        return logits


@sample()
class FirstStays(Favour):
    """A row keeps what the first request in it asked for."""

    def add_row(self, new):
        kept = dict(self.tokens)
        super().add_row(new)
        self.tokens.update(kept)
        return True

    def remove_row(self, row):
        pass


@sample()
class HidesFailures(Favour):
    """Logits that are NaN become zero, so that nobody hears of a model that broke."""

    def apply(self, logits, rows, positions):
        return torch.nan_to_num(super().apply(logits, rows, positions), nan=0.0)


@sample()
class AnswersInHalf(Favour):
    """The logits come back in float16."""

    def apply(self, logits, rows, positions):
        return super().apply(logits, rows, positions).half()


@sample()
class OneTokenLess(Favour):
    """The last token of the vocabulary is cut off."""

    def apply(self, logits, rows, positions):
        return super().apply(logits, rows, positions)[:, :-1]


@sample()
class ReturnsNothing(Favour):
    """It changes the logits in place and returns None."""

    def apply(self, logits, rows, positions):
        super().apply(logits, rows, positions)


@sample(needs_history="device")
class OutputsForgotten(Repeats):
    """A request that returns after a preemption begins to count from nothing."""

    def add_row(self, new):
        self.counts[new.row] = 0
        return True


@sample(needs_history="device")
class CountsOfBefore(Repeats):
    """A new request begins with the counts of the one that had its row before."""

    def add_row(self, new):
        return True


@sample(needs_history="device")
class CountsByLine(Repeats):
    """What the i-th line sampled is counted for row i."""

    def sampled(self, rows, token_ids):
        self.counts[range(len(rows)), token_ids.long()] += 1


@sample(needs_history="device")
class CountsForAll(Repeats):
    """What one request sampled counts for all of them."""

    def sampled(self, rows, token_ids):
        self.counts[:, token_ids.long()] += 1


@sample()
class HistoryUnclaimed(Repeats):
    """It counts what was sampled without the claim `needs_history: device`, and is never told."""


@sample()
class NoiseWithoutSeed(Noise):
    """Noise comes from torch's generator, so that a seed does not fix what is sampled."""

    def noise(self, new, position):
        return torch.rand(self.config.vocab_size)


@sample()
class NoiseOfTheRow(Noise):
    """Noise depends on the row that a request happens to be in."""

    def noise(self, new, position):
        generator = torch.Generator().manual_seed(1000 * new.row + position)
        return torch.rand(self.config.vocab_size, generator=generator)


@sample()
class NoiseOfTheStep(Noise):
    """Noise depends on how often the processor was called, and so on all other requests."""

    calls = 0

    def apply(self, logits, rows, positions):
        self.calls += 1
        return super().apply(logits, rows, positions)

    def noise(self, new, position):
        return super().noise(new, self.calls)


@sample()
class TokensOfTheClass(Favour):
    """The tokens are kept on the class: two runs of a process share them."""

    everybody: ClassVar[dict[int, int]] = {}

    def __init__(self, options, config):
        super().__init__(options, config)
        self.tokens = self.everybody

    def remove_row(self, row):
        self.tokens.pop(row, None)


@sample()
class NeverForgets(Favour):
    """It keeps something of every request for ever."""

    def add_row(self, new):
        vars(self).setdefault("seen", {})[new.request_id] = new
        return super().add_row(new)


@sample()
class TouchesOthers(Favour):
    """It says that it has nothing to do for requests of an even seed, and changes them anyway,
    whenever another one is in the step."""

    def add_row(self, new):
        super().add_row(new)
        return new.seed % 2 == 1


@sample()
class UnknownStage(Favour):
    """It asks for a stage that there is not."""

    stage: Any = "after"


@sample()
class ScaledByAll(Favour):
    """Logits are divided by the spread over the batch, so that neighbours change each other."""

    def apply(self, logits, rows, positions):
        return super().apply(logits, rows, positions) / logits.std()


@sample(needs_history="host")
class WidensMasks(Alternates):
    """Its mask replaces the one before it, and allows again what another processor forbade."""

    def mask(self, request_id, bits):
        bits[:] = self.allowed[self.counts[request_id] % 2]


@sample(needs_history="host")
class OneCountForAll(Alternates):
    """One count serves all requests, and moves on with each of them."""

    def start(self, request_id, arguments, prompt):
        self.counts = dict.fromkeys([*self.counts, request_id], len(prompt))
        return True

    def advance(self, request_id, token_ids):
        for other in self.counts:
            self.counts[other] += len(token_ids)


@sample(needs_history="host")
class HostNeverForgets(Alternates):
    """State of requests that finished is kept for ever."""

    def finish(self, request_id):
        pass


@sample(needs_history="host")
class StartForgetsOthers(Alternates):
    """A request that comes makes those before it be forgotten."""

    def start(self, request_id, arguments, prompt):
        self.counts = {request_id: len(prompt)}
        return True

    def finish(self, request_id):
        self.counts.pop(request_id, None)


@sample(needs_history="host")
class EveryRowHasAnId(Alternates):
    """A line without request makes the masks of the whole step fail."""

    def mask_rows(self, request_ids: Any, bits) -> Any:
        for i, request_id in enumerate(request_ids):
            self.mask(request_id, bits[i])
        return {}


@sample(needs_history="host")
class OneMaskForAll(Alternates):
    """The mask of the first line is written into all lines of the step."""

    def mask_rows(self, request_ids, bits) -> Any:
        first = next(request_id for request_id in request_ids if request_id is not None)
        for line in bits:
            self.mask(first, line)
        return {}


@sample(needs_history="host")
class CountsOnTheClass(Alternates):
    """Its counts are kept on the class: a second run finds those of the first."""

    everybody: ClassVar[dict[str, int]] = {}

    def start(self, request_id, arguments, prompt):
        self.counts = self.everybody
        self.counts.setdefault(request_id, len(prompt))
        return True

    def finish(self, request_id):
        pass
