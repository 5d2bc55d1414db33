"""Faults that people found in the conformance kit, by their ids: samplers and logits processors.

Right plugins must pass; wrong ones must be caught, with what was seen.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from nanofw.kernels import base_key, exponential, position_keys, random_bits, to_device, uniform
from nanofw.plugins import LogitsProcessor, SampledTokens, Sampler
from nanofw.samplers import LogitEdits
from nanofw.testing import check_logits_processor, check_sampler

# -- right ones ---------------------------------------------------------------------------


class Tosses(LogitsProcessor):
    """Forbids a row's best token in about half of its steps: random by the request's seed."""

    stage = "scaled"

    def __init__(self, config: Any) -> None:
        super().__init__(None, config)
        self._keys = torch.zeros((config.max_num_seqs, 2), dtype=torch.int32)

    def add_row(self, new: Any) -> bool:
        self._keys[new.row] = torch.tensor(base_key(new.seed, new.sample_index, 16))
        return True

    def apply(self, logits: torch.Tensor, rows: Any, positions: Any) -> torch.Tensor:
        keys = position_keys(self._keys[torch.tensor(rows)], torch.tensor(positions))
        numbers = uniform(random_bits(keys, torch.zeros(1, dtype=torch.int32)))[:, 0]
        best = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[1]).bool()
        return logits.masked_fill(best & (numbers < 0.5).unsqueeze(1), -torch.inf)


class Cools(LogitsProcessor):
    """A target that moves with what was sampled, kept by request, as Mirostat's is."""

    def __init__(self, config: Any) -> None:
        super().__init__(None, config)
        self._heat: dict[str, float] = {}
        self._ids: dict[int, str] = {}

    def check(self, arguments: Any) -> None:
        if arguments is not None and not 0 < arguments < 10:
            raise ValueError(f"cools is {arguments}; it must be above 0 and below 10")

    def add_row(self, new: Any) -> bool:
        self._ids[new.row] = new.request_id
        self._heat.setdefault(new.request_id, float(new.arguments.get("cools", 0)))
        return "cools" in new.arguments

    def remove_row(self, row: int) -> None:
        del self._ids[row]

    def finish(self, request_id: str) -> None:
        del self._heat[request_id]

    def apply(self, logits: torch.Tensor, rows: Any, positions: Any) -> torch.Tensor:
        heat = [self._heat[self._ids[row]] for row in rows.tolist()]
        return logits * (1 + torch.tensor(heat).unsqueeze(1))

    def sampled(self, rows: Any, token_ids: torch.Tensor) -> None:
        for row, token in zip(rows.tolist(), token_ids.tolist(), strict=True):
            self._heat[self._ids[row]] *= 0.5 + token / 100


class Typical(Sampler):
    """Samples by squared probabilities: a distribution of its own, with everybody's penalties."""

    def __init__(self, config: Any) -> None:
        super().__init__(None, config)
        self._edits = LogitEdits(config)
        self._keys = np.zeros((config.max_num_seqs, 2), np.int32)

    def check(self, sampling: Any, arguments: Any) -> None:
        if sampling.temperature != 1 or sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p:
            raise ValueError("temperature must be 1, and nothing may be cut")

    def add_row(self, new: Any) -> None:
        self._edits.add_row(new)
        self._keys[new.row] = base_key(new.seed, new.sample_index)

    def remove_row(self, row: int) -> None:
        self._edits.remove_row(row)

    def edit(self, logits: torch.Tensor, rows: Any, positions: Any) -> torch.Tensor:
        return self._edits.apply(logits, rows, positions)

    def sample(
        self, logits: Any, rows: Any, positions: Any, *, scaled: bool = False, sharded: bool = False
    ) -> SampledTokens:
        cpu = torch.device("cpu")
        keys = position_keys(to_device(self._keys[rows], cpu), to_device(positions, cpu))
        noise = exponential(random_bits(keys, torch.arange(logits.shape[1], dtype=torch.int32)))
        token_ids = (2 * logits - noise.log()).argmax(-1).int()
        failed = ~logits.amax(-1).isfinite()
        self._edits.sampled(rows, token_ids)
        return SampledTokens(token_ids=token_ids, failed=failed)


def squared(logits: Any, sampling: Any, prompt: Any, output: Any) -> Any:
    from nanofw.testing.sampler_reference import shaped

    weights = shaped(logits, sampling, prompt, output) ** 2
    return weights / weights.sum()


def test_F023_a_processor_with_random_numbers_passes() -> None:
    check_logits_processor(Tosses, "tosses")


def test_F023_a_processor_with_state_by_request_passes() -> None:
    check_logits_processor(Cools, "cools", arguments=(None, 2.0, 7.5), wrong_arguments=(0, 10))


def test_F023_a_sampler_with_a_distribution_of_its_own_passes() -> None:
    check_sampler(Typical, probabilities=squared)
    with pytest.raises(AssertionError, match=r"have shares .* should have"):
        check_sampler(Typical)


# -- wrong ones ---------------------------------------------------------------------------


class OneStateForAll(Cools):
    """State in the class: every object has it."""

    shared: ClassVar[dict[str, float]] = {}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._heat = self.shared


class ReadsAnotherName(Cools):
    def add_row(self, new: Any) -> bool:
        return super().add_row(new) and "warms" in new.arguments

    def apply(self, logits: torch.Tensor, rows: Any, positions: Any) -> torch.Tensor:
        return logits


class NeverForgets(Cools):
    def finish(self, request_id: str) -> None:
        self._heat[f"{request_id} was here, and left its heat"] = self._heat.pop(request_id)


class KeepsItsIds(Cools):
    def finish(self, request_id: str) -> None:
        """Nothing: the same id starts where the last one ended."""


class ForgetsOnPreemption(Cools):
    def remove_row(self, row: int) -> None:
        self._heat.pop(self._ids.pop(row), None)

    def finish(self, request_id: str) -> None:
        self._heat.pop(request_id, None)


class TossesAnyCoin(Tosses):
    """Random numbers of the process."""

    def apply(self, logits: torch.Tensor, rows: Any, positions: Any) -> torch.Tensor:
        return logits + torch.rand(len(logits), 1)


class TossesByRow(Tosses):
    def add_row(self, new: Any) -> bool:
        self._keys[new.row] = torch.tensor(base_key(new.row, 0, 16))
        return True


class Misspelt(Cools):
    def finished(self, request_id: str) -> None: ...


class OfVersion1(LogitsProcessor):
    def __init__(self, config: Any) -> None:
        super().__init__(None, config)

    def add(self, new: Any) -> bool:
        return False

    def apply(self, logits: torch.Tensor, rows: Any, positions: Any) -> torch.Tensor:
        return logits


class ReturnsLists(Cools):
    def apply(self, logits: torch.Tensor, rows: Any, positions: Any) -> Any:
        return super().apply(logits, rows, positions).tolist()


class CutsTheVocabulary(Cools):
    def apply(self, logits: torch.Tensor, rows: Any, positions: Any) -> torch.Tensor:
        return super().apply(logits, rows, positions)[:, :10]


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        (OneStateForAll, r"\d+ logits differ, the first at \(.*\): .* instead of"),
        (ReadsAnotherName, r"none of \[2.0\] under the name 'cools' changes any logit"),
        (NeverForgets, r"after 48 more requests the processor keeps \d+ bytes more"),
        (KeepsItsIds, r"which had ended: \d+ logits differ"),
        (ForgetsOnPreemption, r"tokens and a preemption: \d+ logits differ"),
        (TossesAnyCoin, r"\d+ logits differ, the first at"),
        (TossesByRow, r"\d+ logits differ, the first at"),
        (Misspelt, r"finished\(\) is not a method of LogitsProcessor; did you mean finish"),
        (OfVersion1, r"add\(\) is not a method of LogitsProcessor; did you mean add_row"),
        (ReturnsLists, r"apply\(\) returned list, not a tensor"),
        (CutsTheVocabulary, r"apply\(\) returned .*\[\d, 10\], was given .*\[\d, 64\]"),
    ],
)
def test_F024_wrong_processors_are_caught_with_what_was_seen(broken: Any, seen: str) -> None:
    arguments = (None,) if issubclass(broken, (Tosses, OfVersion1)) else (None, 2.0)
    with pytest.raises(AssertionError, match=seen):
        check_logits_processor(broken, "cools", arguments=arguments)


class OneBatchForAll(Typical):
    """Edits in the class: every object has them."""

    shared: ClassVar[list[LogitEdits]] = []

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.shared.append(self._edits)
        self._edits = self.shared[0]


class ReturnsAList(Typical):
    def sample(self, *args: Any, **how: Any) -> Any:
        result: Any = super().sample(*args, **how)
        result.token_ids = result.token_ids.tolist()
        return result


class Scaling(Typical):
    """Applies twice what `scale` should apply once."""

    def scale(self, logits: torch.Tensor, rows: Any) -> torch.Tensor:
        return 0.1 * logits


class HidesWhatIsNotFinite(Typical):
    def edit(self, logits: torch.Tensor, rows: Any, positions: Any) -> torch.Tensor:
        return super().edit(logits, rows, positions).nan_to_num_(posinf=0.0, neginf=-torch.inf)


class Removes(Typical):
    def remove_rows(self, row: int) -> None: ...


@pytest.mark.parametrize(
    ("broken", "seen"),
    [
        (OneBatchForAll, r"another sampler changed it: request \d got \[.*\] instead of \["),
        (ReturnsAList, r"sample\(\) returned token_ids as list, not as a tensor"),
        (Scaling, r"after scale\(\) \[.*\], without it \["),
        (HidesWhatIsNotFinite, r"failed is \[.*\], not \[False, True, True, True, False\]"),
        (Removes, r"remove_rows\(\) is not a method of Sampler; did you mean remove_row"),
    ],
)
def test_F024_wrong_samplers_are_caught_with_what_was_seen(broken: Any, seen: str) -> None:
    with pytest.raises(AssertionError, match=seen):
        check_sampler(broken, probabilities=squared)
