"""How often a 95% interval misses where one stops when it is narrow: why some are computed wider.

    python -m benchmarks.sim.stopping [--repeats 20000] [--json FILE]

Normal values, Student's interval after each look, for widths that are reached soon, late or never.
`rate_search` looks after 8, 12, 18, 27, 40 and 60 seeds, and stops by the interval that it reports;
`capacity` looks after 3 to 10 bursts, and stops by the interval at 0.05.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from nanofw.compare import capacity, rate_search

WIDTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.5, 2.0, 3.0, 5.0)
"""Half of the interval at which one stops, in standard deviations."""


def looks_of_search(most: int = 60) -> list[int]:
    looks = [rate_search.MIN_SEEDS]
    while looks[-1] < most:
        looks.append(min(most, looks[-1] + max(4, looks[-1] // 2)))
    return looks


def missed(
    values: np.ndarray, looks: list[int], width: float, stop_at: float, report_at: float
) -> float:
    """The share of the rows of normal values whose reported interval does not hold the mean, 0."""
    misses = done = np.zeros(len(values), np.bool_)
    for num in looks:
        mean, spread = values[:, :num].mean(1), values[:, :num].std(1, ddof=1) / math.sqrt(num)
        narrow = stats.t.ppf(1 - stop_at / 2, num - 1) * spread <= width
        stops = ~done & (narrow | (num == looks[-1]))
        misses = misses | (stops & (abs(mean) > stats.t.ppf(1 - report_at / 2, num - 1) * spread))
        done = done | stops
    return float(misses.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bursts = list(range(capacity.MIN_BURSTS, capacity.MAX_BURSTS + 1))
    lines: list[dict[str, Any]] = []
    for name, looks, alphas in (
        ("rate_search", looks_of_search(), [(0.05, 0.05), (rate_search.ALPHA,) * 2]),
        ("capacity", bursts, [(0.05, 0.05), (0.05, capacity.ALPHA)]),
    ):
        values = np.random.default_rng(0).standard_normal((options.repeats, looks[-1]))
        for stop_at, report_at in alphas:
            shares = [missed(values, looks, width, stop_at, report_at) for width in WIDTHS]
            by_width = dict(zip(WIDTHS, shares, strict=True))
            lines.append(
                {"name": name, "looks": looks, "stop_at": stop_at, "report_at": report_at,
                 "worst": max(shares), "by_width": by_width}
            )  # fmt: skip
            print(json.dumps(lines[-1]))
    if options.json is not None:
        record = {"benchmark": "sim/stopping", "repeats": options.repeats, "lines": lines}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
