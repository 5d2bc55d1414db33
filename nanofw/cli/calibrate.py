"""`nanofw calibrate`: time steps of a real run and fit a cost model to them."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nanofw.cli import ExitCode
from nanofw.cli.arguments import add_config, load, own_options
from nanofw.cli.files import check_writable, files_read
from nanofw.cli.progress import progress
from nanofw.cli.tables import console, table

if TYPE_CHECKING:
    from nanofw.bench.calibrate import Errors, MeasuredStep
    from nanofw.sim.fitted import Fit

EPILOG = """\
The file is used as

  executor: {name: sim, cost_model: {name: fitted, file: cost.json}}

Keys that begin with calibrate. change what is run: calibrate.max_users=16,
calibrate.max_prompt=200, calibrate.max_output=48,
calibrate.requests_per_user=6, calibrate.repeats=1, calibrate.seed=0.
"""


def main(arguments: list[str]) -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(
        prog="nanofw calibrate", description=__doc__, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_config(parser)
    parser.add_argument("--output", type=Path, default=Path("cost.json"), help="default: cost.json")
    options = parser.parse_intermixed_args(arguments)
    from nanofw.assembly import select
    from nanofw.assembly.provenance import commit, machine
    from nanofw.bench.calibrate import Design, fit, record
    from nanofw.errors import ConfigError, PluginLoadError

    if importlib.util.find_spec("scipy") is None:
        raise PluginLoadError("nanofw calibrate needs scipy: pip install 'nanofw[compare]'")
    design, words = own_options(options.config, "calibrate", Design)
    loaded = load(words)
    check_writable(options.output, "--output", files_read(loaded, words))
    selection = select(loaded)
    if selection.virtual_time:
        raise ConfigError("a simulated run has no times to measure; choose another executor",
                          key="executor.name")  # fmt: skip
    with progress(refresh_per_second=1) as report:  # a refresh takes time that steps then lack
        steps = record(selection, design, report=report)
    facts = selection.explanation.facts
    about = {
        "model": Path(str(facts["model"])).name, "device": facts["device"],
        "dtype": facts["dtype"], "overlap": selection.overlap, "machine": machine(),
        "commit": commit(),
    }  # fmt: skip
    made, errors = fit(steps, about)
    made.write(options.output)
    _print(steps, made, errors, options.output)
    return ExitCode.OK


def _print(steps: Sequence[MeasuredStep], made: Fit, errors: Errors, output: Path) -> None:
    from nanofw.bench.calibrate import table as means

    out = console()
    columns = ("rows in a step", "steps", "measured ms", "fitted ms")
    rows = [
        (name, str(num), f"{1e3 * measured:.3f}", f"{1e3 * fitted:.3f}")
        for name, num, measured, fitted in means(steps, made)
    ]
    out.print(table("mean step time", columns, rows, numbers=True))
    out.print(
        f"error on held-out steps: median {errors.median:.1%}, 90th percentile {errors.p90:.1%}; "
        f"of their sum {errors.total:.1%}"
    )
    out.print(f"written to {output}")
