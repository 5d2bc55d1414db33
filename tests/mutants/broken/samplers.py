"""Samplers that are wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from nanofw.plugins import Plugin, SampledTokens, hookimpl
from nanofw.samplers.standard import StandardSampler
from tests.mutants.collection import Collection
from tests.mutants.plain.samplers import Plain

sample = Collection("sampler/2", {"devices": ("*",), "overlap": True})


@hookimpl
def sampler() -> list[Plugin]:
    return sample.plugins()


@sample()
class DropsTheCrossing(Plain):
    """Top-p drops the token that crosses the bound, which is to be kept."""

    def kept(self, probabilities, sampling):
        left = super().kept(probabilities, replace(sampling, top_p=1.0))
        if sampling.top_p < 1:
            left[1:][left.cumsum()[1:] > sampling.top_p * left.sum()] = 0
        return left


@sample()
class OneTooMany(Plain):
    """Top-k keeps one token more than k."""

    def kept(self, probabilities, sampling):
        more = sampling.top_k + (sampling.top_k > 0)
        return super().kept(probabilities, replace(sampling, top_k=more))


@sample()
class LastOfAllDropped(Plain):
    """A top-k of -1, which means that it is off, cuts off the last token."""

    def kept(self, probabilities, sampling):
        left = super().kept(probabilities, sampling)
        if sampling.top_k:
            left[sampling.top_k :] = 0
        return left


@sample()
class MinOfTheWhole(Plain):
    """Min-p is compared with the probability, not with its share of the highest."""

    def kept(self, probabilities, sampling):
        left = probabilities.copy()
        left[1:][left[1:] < sampling.min_p] = 0
        return super().kept(left, replace(sampling, min_p=0.0))


@sample()
class CutsBeforeCooling(Plain):
    """Top-p is taken of the distribution before the temperature."""

    def token(self, logits, new, position, scaled):
        if self.is_greedy(new) or scaled or new.sampling.top_p == 1:
            return super().token(logits, new, position, scaled)
        order = (-logits).argsort(kind="stable")
        probabilities = np.exp(logits[order] - logits[order[0]])
        kept = super().kept(probabilities / probabilities.sum(), new.sampling) > 0
        cut = np.full_like(logits, -np.inf)
        cut[order[kept]] = logits[order[kept]]
        sampling = replace(new.sampling, top_p=1.0)
        return super().token(cut, replace(new, sampling=sampling), position, scaled)


@sample()
class TopPOfTheWhole(Plain):
    """Top-p counts what top-k and min-p have cut away, so that it keeps too much of the rest."""

    def kept(self, probabilities, sampling):
        left = super().kept(probabilities, replace(sampling, top_p=1.0))
        if sampling.top_p < 1:
            left[left.cumsum() - left >= sampling.top_p] = 0
        return left


@sample()
class SeedIgnored(Plain):
    """All requests have the same random numbers, whatever their seeds are."""

    def seed(self, new):
        return 0, new.sample_index


@sample()
class SiblingsAlike(Plain):
    """The samples of one prompt have the same random numbers, and are equal."""

    def seed(self, new):
        return new.seed, 0


@sample()
class PositionIgnored(Plain):
    """The same random number decides at every position of a request."""

    def number(self, new, position):
        return super().number(new, 0)


@sample()
class FromTheGlobalGenerator(Plain):
    """Random numbers come from torch's generator: they depend on who else was sampled."""

    def number(self, new, position):
        return float(torch.rand(()))


@sample()
class GeneratorOfTheRow(Plain):
    """Each row has a generator that moves on with each token, so that one who comes back after a
    preemption gets other tokens."""

    def add_row(self, new):
        super().add_row(new)
        made = torch.Generator().manual_seed((new.seed + new.sample_index) % (1 << 63))
        vars(self).setdefault("generators", {})[new.row] = made

    def number(self, new, position):
        return float(torch.rand((), generator=vars(self)["generators"][new.row]))


@sample()
class SeedOfTheRow(Plain):
    """The number of the row is mixed into the random numbers."""

    def seed(self, new):
        return new.seed ^ new.row, new.sample_index


@sample()
class NumberOfTheStep(Plain):
    """Random numbers belong to the step: chunks, preemptions and others' arrivals change them."""

    step = 0

    def sample(self, logits, rows, positions, *, scaled=False, sharded=False):
        self.step += 1
        return super().sample(logits, rows, positions, scaled=scaled, sharded=sharded)

    def number(self, new, position):
        return super().number(new, self.step)


@sample()
class LineForRow(Plain):
    """The line of the batch is taken for the row: requests are sampled with others' parameters."""

    def sample(self, logits, rows, positions, *, scaled=False, sharded=False):
        rows = rows.copy()
        known = sorted(self.rows)
        rows[:] = [known[line % len(known)] for line in range(len(rows))]
        return super().sample(logits, rows, positions, scaled=scaled, sharded=sharded)


@sample()
class TemperatureMultiplies(Plain):
    """Logits are multiplied by the temperature."""

    def cooled(self, logits, new):
        return (logits - logits.max()) * new.sampling.temperature


@sample()
class GreedyWhenCool(Plain):
    """A temperature below one half takes the most likely token."""

    def is_greedy(self, new):
        return new.sampling.temperature < 0.5


@sample()
class CooledTwice(Plain):
    """The temperature is applied again where `scale` has applied it."""

    def token(self, logits, new, position, scaled):
        return super().token(logits, new, position, False)


@sample()
class ScaleDoesNothing(Plain):
    """`scale` leaves the temperature to `sample`, which believes that it was applied."""

    def scale(self, logits, rows):
        return logits


@sample()
class FailuresHidden(Plain):
    """Logits that are NaN or infinite are sampled as if nothing was wrong."""

    def sample(self, logits, rows, positions, *, scaled=False, sharded=False):
        logits = torch.nan_to_num(logits, nan=0.0, posinf=0.0, neginf=-1e30)
        return super().sample(logits, rows, positions, scaled=scaled, sharded=sharded)


@sample()
class BansAreFailures(StandardSampler):
    """A row in which a single token is forbidden counts as failed."""

    def sample(self, logits, rows, positions, *, scaled=False, sharded=False):
        failed = ~logits.isfinite().all(-1)
        sampled = super().sample(logits, rows, positions, scaled=scaled, sharded=sharded)
        return SampledTokens(token_ids=sampled.token_ids, failed=failed)


@sample()
class OneFailsAll(StandardSampler):
    """One row with NaN fails the whole batch."""

    def sample(self, logits, rows, positions, *, scaled=False, sharded=False):
        sampled = super().sample(logits, rows, positions, scaled=scaled, sharded=sharded)
        return SampledTokens(
            token_ids=sampled.token_ids, failed=sampled.failed.any().expand(len(rows))
        )


@sample()
class WideIds(StandardSampler):
    """Token ids are int64, where they are to be int32."""

    def sample(self, logits, rows, positions, *, scaled=False, sharded=False):
        sampled = super().sample(logits, rows, positions, scaled=scaled, sharded=sharded)
        return SampledTokens(token_ids=sampled.token_ids.long(), failed=sampled.failed)


@sample()
class FailedIdsOutside(StandardSampler):
    """The token of a failed row is -1, which is not an id and is looked up in the embedding."""

    def sample(self, logits, rows, positions, *, scaled=False, sharded=False):
        sampled = super().sample(logits, rows, positions, scaled=scaled, sharded=sharded)
        ids = sampled.token_ids.masked_fill(sampled.failed, -1)
        return SampledTokens(token_ids=ids, failed=sampled.failed)


@sample()
class HighestIdWins(Plain):
    """Among equal logits the highest id wins, where the lowest is to."""

    def token(self, logits, new, position, scaled):
        if self.is_greedy(new):
            return len(logits) - 1 - int(logits[::-1].argmax())
        return super().token(logits, new, position, scaled)


@sample()
class OutputsForgotten(StandardSampler):
    """The outputs that a request made before a preemption are not counted for its penalties."""

    def add_row(self, new):
        super().add_row(replace(new, token_ids=new.token_ids[: new.num_prompt_tokens]))


@sample()
class PromptIsOutput(StandardSampler):
    """The prompt counts for the presence and frequency penalties, and as begun bad words."""

    def add_row(self, new):
        self._parameters.add_row(new)
        edits = self._edits
        edits._biases.add_row(new)
        edits._bad_words.add_row(replace(new, num_prompt_tokens=0))
        edits._penalties.add_row(replace(new, num_prompt_tokens=0))


@sample()
class SampledIsNotCounted(Plain):
    """What is sampled is never told to the edits: penalties see the outputs of before alone."""

    def sample(self, logits, rows, positions, *, scaled=False, sharded=False):
        self.edits.sampled = lambda rows, token_ids: None
        return super().sample(logits, rows, positions, scaled=scaled, sharded=sharded)


@sample()
class EditsLeftOut(Plain):
    """Biases, bans and penalties are accepted and do nothing."""

    def edit(self, logits, rows, positions):
        return logits


@sample()
class EndsTooEarly(Plain):
    """`min_tokens` holds the end tokens back for one token too few."""

    def edit(self, logits, rows, positions):
        return self.edits.apply(logits, rows, positions + 1)


@sample()
class FirstStays(Plain):
    """A row keeps the parameters of the first request that was in it."""

    def add_row(self, new):
        self.rows.setdefault(new.row, new)
        self.edits.add_row(new)

    def remove_row(self, row):
        self.edits.remove_row(row)


@sample()
class RowsOfTheClass(Plain):
    """The rows are kept on the class: two samplers of a process overwrite each other's."""

    everybody: ClassVar[dict[int, Any]] = {}

    def __init__(self, options, config):
        super().__init__(options, config)
        self.rows = self.everybody

    def remove_row(self, row):
        self.rows.pop(row, None)
        self.edits.remove_row(row)


@sample()
class NeverForgets(Plain):
    """It keeps every request that ever was in a row."""

    def add_row(self, new):
        super().add_row(new)
        vars(self).setdefault("seen", {})[new.request_id] = new


@sample()
class ChecksAreKept(Plain):
    """The parameters of the request that was checked last are those of all."""

    last = None

    def check(self, sampling, arguments):
        super().check(sampling, arguments)
        self.last = sampling

    def token(self, logits, new, position, scaled):
        if self.last is not None:
            new = replace(new, sampling=self.last)
        return super().token(logits, new, position, scaled)


@sample()
class OnTheHost(Plain):
    """Tokens come as an array of numpy, which nothing on the device takes."""

    def sample(self, logits, rows, positions, *, scaled=False, sharded=False):
        sampled = super().sample(logits, rows, positions, scaled=scaled, sharded=sharded)
        token_ids: Any = sampled.token_ids.numpy()
        return SampledTokens(token_ids=token_ids, failed=sampled.failed)
