"""Sampling over a vocabulary that is split over ranks: each finds its best, then the best of these.

Tokens keep their numbers of the whole vocabulary, and every token has a random number of its own,
so the winner is the one of a run on a single rank. Ranks exchange a few numbers for each row
instead of all logits.
"""

from __future__ import annotations

import torch

from nanofw.contracts.communicator import Communicator, SingleRank
from nanofw.contracts.model_spec import vocabulary_of_rank


class Shards:
    """The tokens of this rank, and the exchange with the others.

    Attributes:
        tokens: of this rank.
        are_split: whether there are several ranks, and each has tokens.
    """

    def __init__(self, vocab_size: int, communicator: Communicator | None) -> None:
        self._ranks: Communicator = communicator or SingleRank()
        size = self._ranks.size
        self.tokens: range = vocabulary_of_rank(vocab_size, self._ranks.rank, size)
        self.are_split: bool = size > 1 and len(vocabulary_of_rank(vocab_size, size - 1, size)) > 0

    def all(self, numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[..., s] numbers of each rank, in rank order."""
        return self._ranks.all_gather(numbers.unsqueeze(0), dim=0).unbind(0)

    @staticmethod
    def best(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Of [c, s] parts, for each column the part whose first line is highest: [c, s].

        Among equals the first rank wins, whose tokens have the lowest ids.
        """
        best = parts[0]
        for part in parts[1:]:
            best = torch.where(part[0] > best[0], part, best)
        return best
