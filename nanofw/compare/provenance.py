"""Where a comparison comes from: what ran, in which versions, on what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nanofw.assembly.provenance import origin, run_record
from nanofw.compare.runner import Results
from nanofw.config.load import plain


def provenance(results: Results, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Plain values: versions, commit, machine, and every arm's resolved configuration."""
    options = results.experiment.options
    return {
        **origin(arguments),
        "virtual_time": results.virtual,
        "seeds": [options.seed + i for i in range(options.repeats)],
        "experiment": plain(options),
        "arms": {arm: run_record(selection) for arm, selection in results.selections.items()},
    }
