"""Processors without a fault. What they do follows from a request's seed and tokens."""

from __future__ import annotations

import numpy as np
import torch

from nanofw.kernels import base_key, position_keys, random_bits, uniform
from nanofw.plugins import HostProcessor, LogitsProcessor, NewRow


class Favour(LogitsProcessor):
    """Makes one token of a request more likely: its argument, or one that follows from its seed."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.tokens: dict[int, int] = {}

    def check(self, arguments) -> None:
        is_id = isinstance(arguments, int) and 0 <= arguments < self.config.vocab_size
        if arguments is not None and not is_id:
            raise ValueError(f"it must be a token below {self.config.vocab_size}")

    def add_row(self, new) -> bool:
        token = new.arguments.get(self.config.name)
        self.tokens[new.row] = new.seed % self.config.vocab_size if token is None else token
        return True

    def remove_row(self, row) -> None:
        del self.tokens[row]

    def apply(self, logits, rows, positions) -> torch.Tensor:
        for line, row in enumerate(rows.tolist()):
            logits[line, self.tokens[row]] += 5.0
        return logits


class Repeats(LogitsProcessor):
    """Takes a half off a token for each time that the output has it (`needs_history: device`)."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.counts = torch.zeros(config.max_num_seqs, config.vocab_size)

    def add_row(self, new) -> bool:
        outputs = new.token_ids[new.num_prompt_tokens :]
        counts = np.bincount(outputs, minlength=self.config.vocab_size)
        self.counts[new.row] = torch.from_numpy(counts)
        return True

    def apply(self, logits, rows, positions) -> torch.Tensor:
        return logits - 0.5 * self.counts[rows]

    def sampled(self, rows, token_ids) -> None:
        self.counts[rows, token_ids.long()] += 1


class Noise(LogitsProcessor):
    """Adds noise to all logits, from a stream of the request's own random numbers."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.rows: dict[int, NewRow] = {}
        self.token_ids = torch.arange(config.vocab_size, dtype=torch.int32)

    def add_row(self, new) -> bool:
        self.rows[new.row] = new
        return True

    def remove_row(self, row) -> None:
        del self.rows[row]

    def apply(self, logits, rows, positions) -> torch.Tensor:
        places = zip(rows.tolist(), positions.tolist(), strict=True)
        return logits + torch.stack([self.noise(self.rows[row], at) for row, at in places])

    def noise(self, new, position) -> torch.Tensor:
        keys = torch.tensor([base_key(new.seed, new.sample_index, 77)], dtype=torch.int32)
        keys = position_keys(keys, torch.tensor([position], dtype=torch.int32))
        return uniform(random_bits(keys, self.token_ids))[0]


class Alternates(HostProcessor):
    """Allows even and odd tokens by turns, beginning with what the prompt's length says."""

    def __init__(self, options, config) -> None:
        super().__init__(options, config)
        self.counts: dict[str, int] = {}
        words = np.zeros((2, -(-config.vocab_size // 32) * 32), np.uint8)
        words[0, ::2] = words[1, 1::2] = 1
        self.allowed = np.packbits(words, axis=1, bitorder="little").view("<i4").astype(np.int32)

    def start(self, request_id, arguments, prompt) -> bool:
        self.counts[request_id] = len(prompt)
        return True

    def advance(self, request_id, token_ids) -> None:
        self.counts[request_id] += len(token_ids)

    def mask(self, request_id, bits) -> None:
        bits &= self.allowed[self.counts[request_id] % 2]

    def finish(self, request_id) -> None:
        del self.counts[request_id]
