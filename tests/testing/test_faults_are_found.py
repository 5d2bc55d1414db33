"""The kit finds broken plugins: each fault here is one that a check must not miss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from nanofw.errors import NanofwError
from nanofw.kv_allocators.paged import PagedAllocator
from nanofw.kv_allocators.paged_prefix import PagedPrefixAllocator
from nanofw.plugins import Extension, LogitsProcessor, Match, Policy
from nanofw.samplers.standard import StandardSampler
from nanofw.testing import (
    check_attention_backend,
    check_kv_allocator,
    check_logits_processor,
    check_sampler,
    check_scheduler,
)
from nanofw.testing.attention_backend_driver import reference_attention

# -- allocators ---------------------------------------------------------------------------


class SharesBeforeItIsComputed(PagedPrefixAllocator):
    def acquire(self, row, token_ids, match, salt=0):
        table = super().acquire(row, token_ids, match, salt)
        if table is not None:
            rows, lengths = np.array([row], np.int32), np.array([len(token_ids)], np.int32)
            tokens = np.zeros((self._config.max_num_seqs, len(token_ids)), np.int32)
            tokens[row] = token_ids
            super().commit(rows, lengths, tokens)
        return table


class KeepsHalfOfARow(PagedAllocator):
    def release(self, row):
        self._free.give(self._table(row)[1:])
        self._set_count(row, 0)

    def check_integrity(self):
        pass


class GivesABlockTwice(PagedAllocator):
    def _take(self, num_blocks):
        taken = super()._take(num_blocks)
        if num_blocks > 2:
            self._free.give(taken[:1])
            taken[0] = taken[1]
        return taken

    def check_integrity(self):
        pass


class RefusesALastBlock(PagedAllocator):
    def acquire(self, row, token_ids, match, salt=0):
        if self._blocks_for(len(token_ids)) == self.num_available:
            return None
        return super().acquire(row, token_ids, match, salt)


class ExtendsByHalves(PagedAllocator):
    def extend(self, rows, num_tokens):
        extension = super().extend(rows, num_tokens)
        if extension is None and len(rows) > 1:
            super().extend(rows[:1], num_tokens[:1])
        return extension


class SwapsPositions(PagedAllocator):
    def extend(self, rows, num_tokens):
        extension = super().extend(rows, num_tokens)
        if extension is None or len(extension.rows) < 2:
            return extension
        return Extension(extension.rows[::-1], extension.positions[::-1], extension.block_ids)


class EvictsOnMatch(PagedPrefixAllocator):
    def match(self, token_ids, salt=0):
        match = super().match(token_ids, salt)
        if self._lru and not len(match.block_ids):
            self._evict(1)
        return match


class MatchesByHashAlone(PagedPrefixAllocator):
    def match(self, token_ids, salt=0):
        match = super().match(np.sort(token_ids), salt)
        return Match(match.num_tokens, match.block_ids)

    def acquire(self, row, token_ids, match, salt=0):
        return super().acquire(row, np.sort(token_ids), match, salt)


class KeepsContentOnReset(PagedPrefixAllocator):
    def reset(self):
        pass


@pytest.mark.parametrize(
    "broken",
    [
        SharesBeforeItIsComputed,
        KeepsHalfOfARow,
        GivesABlockTwice,
        RefusesALastBlock,
        ExtendsByHalves,
        SwapsPositions,
        EvictsOnMatch,
        MatchesByHashAlone,
        KeepsContentOnReset,
    ],
)
def test_broken_allocators(broken) -> None:
    prefix_cache = issubclass(broken, PagedPrefixAllocator)
    with pytest.raises((AssertionError, NanofwError)) as caught:
        check_kv_allocator(
            lambda config: broken(None, config), capabilities={"prefix_cache": prefix_cache}
        )
    assert "in KVAllocatorChecks.test_" in caught.value.__notes__[0]


def test_claims_without_substance_and_substance_without_claims() -> None:
    for factory, claimed in ((PagedAllocator, True), (PagedPrefixAllocator, False)):
        with pytest.raises(AssertionError):
            check_kv_allocator(lambda c: factory(None, c), capabilities={"prefix_cache": claimed})  # noqa: B023


# -- policies -----------------------------------------------------------------------------


class AdmitsNobody(Policy):
    def key(self, request, view):
        return request.arrival

    def admit(self, request, view):
        return request.num_prompt_tokens < 30


class ForgetsNobody(Policy):
    def __init__(self, options, config):
        super().__init__(options, config)
        self.seen = {}

    def key(self, request, view):
        return request.arrival

    def on_finish(self, request, reason, view):
        self.seen[request.id] = view.now


class SharesStateBetweenRuns(Policy):
    calls = 0

    def key(self, request, view):
        type(self).calls += 1
        return -(type(self).calls * 7919 % 31)


class RanksWithoutOrder(Policy):
    def key(self, request, view):
        return request.deadline or "none"


class NamesAnEmptyRow(Policy):
    def key(self, request, view):
        return request.arrival

    def victim(self, for_request, view):
        return None if for_request else 10_000


@pytest.mark.parametrize(
    "broken",
    [AdmitsNobody, ForgetsNobody, SharesStateBetweenRuns, RanksWithoutOrder, NamesAnEmptyRow],
)
def test_broken_policies(broken) -> None:
    with pytest.raises((AssertionError, NanofwError)) as caught:
        check_scheduler(lambda config: broken(None, config))
    assert "in SchedulerChecks.test_" in caught.value.__notes__[0]


# -- attention backends -------------------------------------------------------------------


class Gathers:
    """The plainest backend: reads each row's pages, one row after the other."""

    capabilities = {  # noqa: RUF012
        "dtypes": ("float32", "bfloat16"),
        "head_dims": ("*",),
        "block_sizes": ("*",),
        "sliding_window": True,
    }

    def __init__(self, config) -> None:
        self.config = config

    def allocate(self, num_blocks):
        c = self.config
        shape = (2, num_blocks * c.block_size, c.num_kv_heads, c.head_dim)
        return [torch.zeros(shape, dtype=c.dtype) for _ in range(c.num_layers)]

    def bytes_per_block(self):
        c = self.config
        per_token = 2 * c.num_layers * c.num_kv_heads * c.head_dim * c.dtype.itemsize
        return per_token * c.block_size

    def copy_blocks(self, pool, copies):
        for kv in pool:
            blocks = kv.unflatten(1, (-1, self.config.block_size))
            blocks[:, copies[:, 1]] = blocks[:, copies[:, 0]]

    def prepare(self, batch):
        return None

    def store(self, kv, slots, key, value):
        kept = slots >= 0
        kv[0, slots[kept]], kv[1, slots[kept]] = key[kept], value[kept]

    def slots(self, table, length):
        places = torch.arange(length)
        size = self.config.block_size
        return table[places // size].long() * size + places % size

    def window(self, layer):
        return self.config.sliding_windows[layer]

    def forward(self, query, key, value, layer, kv, batch, scale):
        self.store(kv, batch.slots, key, value)
        out = torch.zeros_like(query)
        for row, length in enumerate(batch.context_lens.tolist()):
            if length:
                lines = slice(batch.query_starts[row], batch.query_starts[row + 1])
                keys, values = kv[:, self.slots(batch.block_tables[row], length)]
                out[lines] = self.attend(query[lines], keys, values, scale, self.window(layer))
        return out

    def attend(self, query, keys, values, scale, window):
        return reference_attention(query, keys, values, scale, window).to(query.dtype)


class WritesToSlotMinusOne(Gathers):
    def store(self, kv, slots, key, value):
        kv[0, slots], kv[1, slots] = key, value


class IgnoresTheTable(Gathers):
    def slots(self, table, length):
        return table[0].long() * self.config.block_size + torch.arange(length)


class WindowOneTooWide(Gathers):
    def window(self, layer):
        window = self.config.sliding_windows[layer]
        return None if window is None else window + 1


class OneWindowForAllLayers(Gathers):
    def window(self, layer):
        return self.config.sliding_windows[0]


class ReadsTheWholeTable(Gathers):
    """Reads all blocks of the table and gives what lies past the row's end no weight."""

    def forward(self, query, key, value, layer, kv, batch, scale):
        out = super().forward(query, key, value, layer, kv, batch, scale)
        width = batch.block_tables.shape[1] * self.config.block_size
        for row, start in enumerate(batch.query_starts[:-1].tolist()):
            stale = kv[1, self.slots(batch.block_tables[row], width)]
            out[start] += (
                (0 * stale)
                .sum(0)
                .repeat_interleave(self.config.num_heads // self.config.num_kv_heads, dim=0)
            )
        return out


class PairsHeadsWrongly(Gathers):
    def attend(self, query, keys, values, scale, window):
        group = query.shape[1] // keys.shape[1]
        return super().attend(
            query, keys.repeat(1, group, 1), values.repeat(1, group, 1), scale, window
        )


class IsNotCausal(Gathers):
    def attend(self, query, keys, values, scale, window):
        return super().attend(query.flip(0), keys, values, scale, window).flip(0)


class ForgetsTheScale(Gathers):
    def attend(self, query, keys, values, scale, window):
        return super().attend(query, keys, values, 1.0, window)


class CopiesOneLayer(Gathers):
    def copy_blocks(self, pool, copies):
        super().copy_blocks(pool[:1], copies)


class UnderstatesItsSize(Gathers):
    def bytes_per_block(self):
        return super().bytes_per_block() // 2


def test_a_plain_backend_passes() -> None:
    backend: Any = Gathers
    check_attention_backend(backend, capabilities=Gathers.capabilities)


@pytest.mark.parametrize(
    "broken",
    [
        WritesToSlotMinusOne,
        IgnoresTheTable,
        WindowOneTooWide,
        OneWindowForAllLayers,
        ReadsTheWholeTable,
        PairsHeadsWrongly,
        IsNotCausal,
        ForgetsTheScale,
        CopiesOneLayer,
        UnderstatesItsSize,
    ],
)
def test_broken_backends(broken) -> None:
    with pytest.raises(AssertionError) as caught:
        check_attention_backend(broken, capabilities=broken.capabilities)
    assert "in AttentionBackendChecks.test_" in caught.value.__notes__[0]


def test_B082_the_check_of_padded_tokens_is_the_one_that_fails() -> None:
    wrong: Any = WritesToSlotMinusOne
    with pytest.raises(AssertionError) as caught:
        check_attention_backend(wrong, capabilities=Gathers.capabilities)
    assert "test_padded_tokens_write_nothing" in caught.value.__notes__[0]


# -- samplers -----------------------------------------------------------------------------


class Standard(StandardSampler):
    def __init__(self, config):
        super().__init__(None, config)


class DrawsByLine(Standard):
    """As a generator shared by the batch would."""

    def sample(self, logits, rows, positions, **how):
        return super().sample(logits, rows, positions + np.arange(len(rows), dtype=np.int32), **how)


class DrawsByRow(Standard):
    def sample(self, logits, rows, positions, **how):
        return super().sample(logits, rows, positions + rows, **how)


class ForgetsThePosition(Standard):
    def sample(self, logits, rows, positions, **how):
        return super().sample(logits, rows, positions * 0, **how)


class ForgetsTheSample(Standard):
    def add_row(self, new):
        super().add_row(replace(new, sample_index=0))


class ForgetsOutputsOnReturn(Standard):
    def add_row(self, new):
        super().add_row(replace(new, token_ids=new.token_ids[: new.num_prompt_tokens]))


class KeepsTheOldParameters(Standard):
    def __init__(self, config):
        super().__init__(config)
        self._known = {}

    def add_row(self, new):
        known = self._known.setdefault(new.row, new.sampling)
        super().add_row(replace(new, sampling=known))


class FailsTheWholeBatch(Standard):
    def sample(self, logits, rows, positions, **how):
        result = super().sample(logits, rows, positions, **how)
        result.failed |= result.failed.any()
        return result


class MistakesInfinityForAWinner(Standard):
    def sample(self, logits, rows, positions, **how):
        return super().sample(
            logits.nan_to_num_(posinf=1e9, neginf=-torch.inf), rows, positions, **how
        )


class DrawsTheImpossible(Standard):
    def sample(self, logits, rows, positions, **how):
        return super().sample(logits.clamp_(min=-2), rows, positions, **how)


class ReturnsLongIds(Standard):
    def sample(self, logits, rows, positions, **how):
        result = super().sample(logits, rows, positions, **how)
        return type(result)(token_ids=result.token_ids.long(), failed=result.failed)


def test_a_sampler_with_few_parameters_passes() -> None:
    class OnlyGreedy(Standard):
        def check(self, sampling, arguments):
            if sampling.temperature or sampling.min_tokens:
                raise ValueError("temperature must be 0, min_tokens too")

    check_sampler(OnlyGreedy)


@pytest.mark.parametrize(
    "broken",
    [
        DrawsByLine,
        DrawsByRow,
        ForgetsThePosition,
        ForgetsTheSample,
        ForgetsOutputsOnReturn,
        KeepsTheOldParameters,
        FailsTheWholeBatch,
        MistakesInfinityForAWinner,
        DrawsTheImpossible,
        ReturnsLongIds,
    ],
)
def test_broken_samplers(broken) -> None:
    with pytest.raises(AssertionError) as caught:
        check_sampler(broken)
    assert "in SamplerChecks.test_" in caught.value.__notes__[0]


def ignoring(**off):
    """A sampler that takes parameters, and samples as if they were others."""

    class Ignores(Standard):
        def add_row(self, new):
            super().add_row(replace(new, sampling=replace(new.sampling, **off)))

    return Ignores


class SquaresTheTemperature(Standard):
    def add_row(self, new):
        squared = new.sampling.temperature**2
        super().add_row(replace(new, sampling=replace(new.sampling, temperature=squared)))


class KeepsOneTokenLess(Standard):
    def add_row(self, new):
        fewer = max(new.sampling.top_k - 1, 0)
        super().add_row(replace(new, sampling=replace(new.sampling, top_k=fewer)))


@pytest.mark.parametrize(
    "broken",
    [
        ignoring(top_k=0),
        ignoring(top_p=1.0),
        ignoring(min_p=0.0),
        ignoring(repetition_penalty=1.0),
        # Found by the check that finds the one above.
        pytest.param(ignoring(presence_penalty=0.0), marks=pytest.mark.slow),
        pytest.param(ignoring(frequency_penalty=0.0), marks=pytest.mark.slow),
        ignoring(logit_bias=None),
        ignoring(bad_words=()),
        ignoring(min_tokens=0),
        ignoring(stop_token_ids=()),
        SquaresTheTemperature,
        KeepsOneTokenLess,
    ],
)
def test_samplers_that_drop_what_they_accepted(broken) -> None:
    """B057's kind: a parameter that `check` lets pass must count."""
    with pytest.raises(AssertionError) as caught:
        check_sampler(broken)
    assert caught.value.__notes__[0] in (
        "in SamplerChecks.test_greedy_rows_obey_penalties_and_bans",
        "in SamplerChecks.test_parameters_shape_the_distribution",
    )


# -- logits processors --------------------------------------------------------------------


class Louder(LogitsProcessor):
    """Multiplies the logits of requests that ask for it."""

    def __init__(self, config):
        super().__init__(None, config)
        self._factors = [1.0] * config.max_num_seqs

    def check(self, arguments):
        if arguments is not None and arguments <= 0:
            raise ValueError("louder must be above 0")

    def add_row(self, new):
        self._factors[new.row] = new.arguments.get("louder", 1.0)
        return self._factors[new.row] != 1.0

    def remove_row(self, row):
        self._factors[row] = 1.0

    def apply(self, logits, rows, positions):
        return logits * torch.tensor([[self._factors[row]] for row in rows.tolist()])


class NotTwice(LogitsProcessor):
    """Bans the token that was sampled last."""

    def __init__(self, config):
        super().__init__(None, config)
        self._last = torch.full((config.max_num_seqs,), -1)

    def check(self, arguments):
        pass

    def add_row(self, new):
        self._last[new.row] = -1
        if len(new.token_ids) > new.num_prompt_tokens:
            self._last[new.row] = int(new.token_ids[-1])
        return True

    def apply(self, logits, rows, positions):
        last = self._last[torch.from_numpy(rows).long()].unsqueeze(1)
        return logits.masked_fill(last == torch.arange(logits.shape[1]), -torch.inf)

    def sampled(self, rows, token_ids):
        self._last[torch.from_numpy(rows).long()] = token_ids.long()


class LetsAllPass(Louder):
    def check(self, arguments):
        pass


class TakesLinesForRows(Louder):
    def apply(self, logits, rows, positions):
        return super().apply(logits, np.arange(len(rows), dtype=np.int32), positions)


class ChangesEverybody(Louder):
    def apply(self, logits, rows, positions):
        return super().apply(logits, rows, positions) + 1


class KeepsTheFactor(Louder):
    def add_row(self, new):
        if "louder" in new.arguments:
            super().add_row(new)
        return True

    def remove_row(self, row):
        pass


class ReturnsDoubles(Louder):
    def apply(self, logits, rows, positions):
        return super().apply(logits, rows, positions).double()


class ForgetsWhatCameBefore(NotTwice):
    def add_row(self, new):
        self._last[new.row] = -1
        return True


class IsDeaf(NotTwice):
    def sampled(self, rows, token_ids):
        pass


class RemembersTheLastOwner(NotTwice):
    def add_row(self, new):
        if len(new.token_ids) > new.num_prompt_tokens:
            self._last[new.row] = int(new.token_ids[-1])
        return True


LOUDER = {"arguments": (None, 2.0, 0.5), "wrong_arguments": (0, -1)}


def test_plain_processors_pass() -> None:
    check_logits_processor(Louder, "louder", **LOUDER)
    check_logits_processor(NotTwice, "not_twice")


@pytest.mark.parametrize(
    "broken", [LetsAllPass, TakesLinesForRows, ChangesEverybody, KeepsTheFactor, ReturnsDoubles]
)
def test_broken_processors(broken) -> None:
    with pytest.raises(AssertionError) as caught:
        check_logits_processor(broken, "louder", **LOUDER)
    assert "in LogitsProcessorChecks.test_" in caught.value.__notes__[0]


@pytest.mark.parametrize("broken", [ForgetsWhatCameBefore, IsDeaf, RemembersTheLastOwner])
def test_broken_processors_that_hear_sampled_tokens(broken) -> None:
    with pytest.raises(AssertionError) as caught:
        check_logits_processor(broken, "not_twice")
    assert "in LogitsProcessorChecks.test_" in caught.value.__notes__[0]
