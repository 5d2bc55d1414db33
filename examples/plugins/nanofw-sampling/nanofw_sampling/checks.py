"""What the checks must know of both: arguments of requests, and a distribution."""

from __future__ import annotations

import numpy as np

from nanofw.testing import LogitsProcessorChecks, SamplerChecks
from nanofw_sampling.manifest import MirostatOptions


class XTCChecks(LogitsProcessorChecks):
    name = "xtc"
    arguments = (None, {"probability": 0}, {"threshold": 0.3}, {"probability": 1.0})
    wrong_arguments = (3, {"probability": 2}, {"threshold": 0}, {"threshold": "a"}, {"stream": 17})


class MirostatChecks(SamplerChecks):
    name = "mirostat"
    arguments = (None, {"tau": 1.5}, {"tau": 3.0, "eta": 0.5})
    wrong_arguments = ("a", {"tau": 0}, {"eta": 2}, {"mu": 1})
    options = MirostatOptions(tau=1.2)

    def probabilities(self, logits, sampling, prompt, output):
        """The same, and at first nothing of more than twice the surprise that is wanted."""
        whole = super().probabilities(logits, sampling, prompt, output)
        surprise = -np.log2(np.maximum(whole, 1e-30))
        whole = np.where(surprise > max(2 * self.options.tau, surprise.min()), 0, whole)
        return whole / whole.sum()
