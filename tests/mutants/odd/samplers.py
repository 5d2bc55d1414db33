"""Samplers that are right and odd."""

from __future__ import annotations

import numpy as np
import torch

from nanofw.kernels import base_key, exponential, position_keys, random_bits, uniform
from nanofw.plugins import Options, Plugin, SampledTokens, Sampler, hookimpl
from tests.mutants.collection import Collection
from tests.mutants.plain.samplers import Plain

sample = Collection("sampler/2", {"devices": ("*",), "overlap": True})


@hookimpl
def sampler() -> list[Plugin]:
    return sample.plugins()


@sample()
class Inverting(Plain):
    """It samples the same distributions as the standard sampler with other random numbers."""


@sample()
class GreedyAlone(Sampler):
    """It refuses every request that does not ask for the most likely token, or for edits."""

    def check(self, sampling, arguments):
        super().check(sampling, arguments)
        if sampling.temperature > 0:
            raise ValueError("temperature must be 0")
        penalties = sampling.presence_penalty, sampling.frequency_penalty
        if sampling.repetition_penalty != 1 or any(penalties):
            raise ValueError("penalties must be off")
        if sampling.logit_bias or sampling.bad_words or sampling.min_tokens:
            raise ValueError("logit_bias, bad_words and min_tokens must be off")

    def sample(self, logits, rows, positions, *, scaled=False, sharded=False):
        highest, token_ids = logits.max(dim=-1)
        return SampledTokens(token_ids=token_ids.int(), failed=~highest.isfinite())


@sample()
class Gumbel(Plain):
    """Noise for each token of the vocabulary, from the stream of the sampler, decides."""

    def token(self, logits, new, position, scaled):
        if self.is_greedy(new):
            return int(logits.argmax())
        if not scaled:
            logits = self.cooled(logits, new)
        order = (-logits).argsort(kind="stable")
        probabilities = np.exp(logits[order] - logits[order[0]])
        keys = torch.tensor([base_key(new.seed, new.sample_index)], dtype=torch.int32)
        keys = position_keys(keys, torch.tensor([position], dtype=torch.int32))
        token_ids = torch.from_numpy(order.astype(np.int32))
        noise = exponential(random_bits(keys, token_ids))[0].double().numpy()
        left = self.kept(probabilities / probabilities.sum(), new.sampling)
        return int(order[(left / noise).argmax()])


class StreamOptions(Options):
    stream: int = 200


@sample(StreamOptions)
class OwnStream(Plain):
    """Its numbers come from a stream of the plugins, which an option chooses."""

    def number(self, new, position):
        key = base_key(new.seed, new.sample_index, self.options.stream)
        keys = torch.tensor([key], dtype=torch.int32)
        keys = position_keys(keys, torch.tensor([position], dtype=torch.int32))
        return float(uniform(random_bits(keys, torch.zeros(1, dtype=torch.int32))))


@sample()
class MadeWhenNeeded(Plain):
    """Everything that it keeps is made by the first row."""

    def __init__(self, options, config):
        Sampler.__init__(self, options, config)

    def __getattr__(self, name):
        if name not in ("edits", "rows"):
            raise AttributeError(name)
        Plain.__init__(self, self.options, self.config)
        return getattr(self, name)


@sample()
class CountsVisits(Plain):
    """State by request id survives a preemption: how often it was in a row, and no more; it is
    dropped when the request ends."""

    def add_row(self, new):
        super().add_row(new)
        visits = vars(self).setdefault("visits", {})
        visits[new.request_id] = visits.get(new.request_id, 0) + 1

    def finish(self, request_id):
        vars(self).get("visits", {}).pop(request_id, None)


@sample()
class OwnBuffers(Plain):
    """Results are written into buffers that are as large as the largest step, and cut."""

    def sample(self, logits, rows, positions, *, scaled=False, sharded=False):
        sampled = super().sample(logits, rows, positions, scaled=scaled, sharded=sharded)
        ids = torch.full((self.config.max_num_seqs,), 7, dtype=torch.int32)
        ids[: len(rows)] = sampled.token_ids
        return SampledTokens(token_ids=ids[: len(rows)], failed=sampled.failed)


@sample()
class RefusesCuts(Plain):
    """It samples from the whole vocabulary, and refuses requests that want a part of it."""

    def check(self, sampling, arguments):
        super().check(sampling, arguments)
        if sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0:
            raise ValueError("top_k, top_p and min_p must be off")
