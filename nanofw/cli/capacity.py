"""`nanofw capacity`: the largest rate at which the objectives hold, for each arm."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from nanofw.cli import ExitCode
from nanofw.cli.compare import check_installed
from nanofw.cli.files import check_writable, writing
from nanofw.cli.progress import progress
from nanofw.cli.signals import Ended, ended_as_by_interrupt
from nanofw.cli.stdout import claim
from nanofw.cli.tables import console, table

if TYPE_CHECKING:
    from rich.console import Console

    from nanofw.compare.sustained import ArmCapacity, Capacities

EPILOG = """\
The experiment is that of nanofw compare (docs/compare.md). What must hold:

  slo: {ttft_s: 0.5, tpot_s: 0.05}   90% of the requests (attainment) meet both
  objectives: [{metric: e2e.p90, max: 2}, {metric: goodput.share, min: 0.99}]

  nanofw capacity experiment.yaml compare.tolerance=0.01

Exit codes as everywhere, and 1 where the objectives of an arm hold at no rate.
"""


def main(arguments: list[str]) -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(
        prog="nanofw capacity", usage="%(prog)s FILE [KEY=VALUE ...]", description=__doc__,
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "words", nargs="+", metavar="FILE [KEY=VALUE ...]",
        help="an experiment, or a run's configuration and a key with several values",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    from nanofw.compare.experiment import load_experiment
    from nanofw.compare.sustained import find_capacities
    from nanofw.config.layers import is_override
    from nanofw.errors import ConfigError

    check_installed("scipy")
    claim()
    files = [word for word in options.words if not is_override(word)]
    if len(files) != 1:
        raise ConfigError("name one experiment", source="command line")
    experiment = load_experiment(files[0], [word for word in options.words if is_override(word)])
    output = experiment.options.output
    if output is not None:
        names = {layer.name for layers in experiment.layers.values() for layer in layers}
        check_writable(output, "output", names)
    try:
        with ended_as_by_interrupt(), progress() as report:
            found = find_capacities(experiment, report)
    except Ended as error:
        print(f"nanofw: ended by {error.signal.name}", file=sys.stderr)
        return error.exit_code
    if output is not None:
        from nanofw.compare.report import write_json

        with writing(output):
            write_json(found.as_json(arguments), output)
    _print(found, console())
    return ExitCode.OK if all(arm.sustained.rate for arm in found.arms) else ExitCode.BAD_RESULT


def _print(found: Capacities, out: Console) -> None:
    if found.experiment.options.name:
        out.print(found.experiment.options.name)
    out.print(f"objectives: {', '.join(item.text() for item in found.objectives)}")
    rows = [
        (
            arm.arm,
            f"{arm.sustained.rate:.4g}",
            f"{arm.sustained.low:.4g} to {arm.sustained.high:.4g}",
            "" if arm.knee is None else f"{arm.knee:.4g}",
            f"{arm.served.rate:.4g}",
            str(arm.sustained.num_runs),
        )
        for arm in found.arms
    ]
    columns = ("arm", "requests/s", "95% interval", "knee", "all it can serve", "runs")
    out.print(table("largest rate at which they hold", columns, rows, numbers=True))
    for arm in found.arms:
        out.print(f"{arm.arm}: {_verdict(arm)}")
        for note in arm.notes:
            out.print(f"  note: {note}")
    for arm in found.arms:
        if arm.points:
            _print_curve(found, arm, out)


def _verdict(arm: ArmCapacity) -> str:
    sustained = arm.sustained
    if not sustained.rate:
        return f"the objectives hold at no rate; the first to break is {sustained.binding}"
    if sustained.is_capacity:
        return (
            "the objectives hold up to all that it can serve; beyond that queues grow for ever, "
            "and longer runs would break them"
        )
    turn = ""
    if arm.knee is not None:
        turn = f"; {arm.knee_metric} turns up at about {arm.knee:.4g} requests/s"
    return f"beyond it {sustained.binding} breaks first{turn}"


def _print_curve(found: Capacities, arm: ArmCapacity, out: Console) -> None:
    from nanofw.compare.report import number_text

    names = [name for name in found.metrics if any(name in point.values for point in arm.points)]
    lines = [
        (f"{point.rate:.4g}", *(number_text(name, point.values[name]) for name in names))
        for point in arm.points
    ]
    out.print(table(f"{arm.arm}: by rate", ("requests/s", *names), lines, numbers=True))
