"""Limits on latencies that a request must meet to count as good."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import PositiveFloat

from nanofw.config.schema import Section
from nanofw.contracts.arrays import BoolArray, FloatArray


class Slo(Section):
    """A request counts as good if it meets all of these limits."""

    ttft_s: PositiveFloat | None = None
    """Time to first token, from the scheduled arrival."""
    tpot_s: PositiveFloat | None = None
    """Time per output token after the first."""
    e2e_s: PositiveFloat | None = None
    """End-to-end latency."""

    def met_by(self, latencies: Mapping[str, FloatArray]) -> BoolArray:
        """bool[n]: whether each request meets every limit that is set; undefined TPOT does.

        Args:
            latencies: float64[n] by `ttft`, `tpot` and `e2e`, in seconds.
        """
        good = np.ones(len(latencies["e2e"]), np.bool_)
        for name, limit in (("ttft", self.ttft_s), ("tpot", self.tpot_s), ("e2e", self.e2e_s)):
            if limit is not None:
                good &= ~(latencies[name] > limit)
        return good
