"""`nanofw compare`: arms on the same traffic, what differs, how sure that is."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from nanofw.cli import ExitCode
from nanofw.cli.files import check_writable, writing
from nanofw.cli.progress import progress
from nanofw.cli.signals import Ended, ended_as_by_interrupt
from nanofw.cli.stdout import claim
from nanofw.cli.tables import console

if TYPE_CHECKING:
    from nanofw.compare.analysis import Analysis
    from nanofw.compare.experiment import Experiment
    from nanofw.compare.results import Results

EPILOG = """\
An experiment file names arms, traffic and loads (docs/compare.md). A run's
configuration is compared by giving several values:

  nanofw compare run.yaml scheduler.name=fcfs,shortest_job_first

In either form, keys that begin with compare. set the experiment's own:
compare.repeats=5, compare.loads=[0.8,0.95], compare.primary=ttft.p99,
compare.output=result.json, compare.report=result.html.

Exit codes as everywhere, and 1 when the result is not what the file expects or
an arm served nothing.
"""


def main(arguments: list[str]) -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(
        prog="nanofw compare", usage="%(prog)s FILE ... [KEY=VALUE ...]",
        description=__doc__, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "files", nargs="*", metavar="FILE ... [KEY=VALUE ...]",
        help="experiments, one after the other, or one run's configuration or preset; then changes",
    )  # fmt: skip
    options = parser.parse_intermixed_args(arguments)
    from nanofw.compare.experiment import load_experiment
    from nanofw.config.layers import is_override
    from nanofw.errors import ConfigError

    check_installed("scipy", "statsmodels")
    claim()
    files = [word for word in options.files if not is_override(word)]
    if not all(name.strip() for name in files):
        raise ConfigError("an argument is empty; name an experiment file", source="command line")
    overrides = [word for word in options.files if is_override(word)]
    if not files:
        raise ConfigError(
            "name an experiment file, or a run's configuration and a key with several values",
            source="command line",
        )
    experiments = [load_experiment(name, overrides) for name in files]
    try:
        with ended_as_by_interrupt():
            met = [_run(experiment, arguments) for experiment in experiments]
    except Ended as error:
        print(f"nanofw: ended by {error.signal.name}", file=sys.stderr)
        return error.exit_code
    return ExitCode.OK if all(met) else ExitCode.BAD_RESULT


def _run(experiment: Experiment, arguments: list[str]) -> bool:
    """Run one experiment and report it; whether every arm served and all is as expected."""
    from nanofw.compare.analysis import analyse
    from nanofw.compare.kept_runs import remove_kept
    from nanofw.compare.report import missing_text, print_report
    from nanofw.compare.runner import run_experiment

    _check_outputs(experiment)
    if experiment.endpoints:
        check_installed("httpx", "httpx_sse", extra="serve")
        from nanofw.cli.endpoint_arms import measure_endpoint

        experiment = replace(experiment, measure_endpoint=measure_endpoint)

    def keep(finished: Results) -> None:
        """What was finished is written, what was not is told."""
        written = _write(finished, None, arguments)
        where = f"in {' and '.join(written)}" if written else "lost, as there is no output"
        print(f"{len(finished.order)} runs were finished and are {where}", file=sys.stderr)
        print(f"missing: {missing_text(finished)}", file=sys.stderr)

    with progress() as report:
        results = run_experiment(experiment, report, keep)
    analysis = analyse(results)
    try:  # files first: the reader of the tables may close the pipe
        _write(results, analysis, arguments)
        remove_kept(experiment)
    finally:
        print_report(results, analysis, console())
    served = all(run.num_measured for runs in results.runs.values() for run in runs)
    return served and all(outcome.met for outcome in analysis.outcomes)


def _write(results: Results, analysis: Analysis | None, arguments: list[str]) -> list[str]:
    """The files that the experiment names; their names."""
    options = results.experiment.options
    paths = [path for path in (options.output, options.report) if path is not None]
    if not paths:
        return []
    from nanofw.compare.report import as_json, write_json

    data = as_json(results, analysis, arguments)
    if options.output is not None:
        with writing(options.output):
            write_json(data, options.output)
    if options.report is not None:
        from nanofw.compare.html import write_html

        with writing(options.report):
            write_html(results, analysis, data, options.report)
    return [str(path) for path in paths]


def _check_outputs(experiment: Experiment) -> None:
    """Find out before hours of runs, not after, that their result cannot be written."""
    options = experiment.options
    names = {layer.name for layers in experiment.layers.values() for layer in layers}
    if options.output is not None:
        check_writable(options.output, "output", names)
        names.add(str(options.output))
    if options.report is not None:
        check_writable(options.report, "report", names)
        check_installed("matplotlib")


def check_installed(*packages: str, extra: str = "compare") -> None:
    """Raise PluginLoadError, with what to install, where one of them is missing."""
    from nanofw.errors import PluginLoadError

    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise PluginLoadError(f"nanofw compare needs {package}: pip install 'nanofw[{extra}]'")
