"""`nanofw why LOG REQUEST`: when it waited, for what and behind whom, when it ran."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nanofw.cli import ExitCode
from nanofw.cli.files import check_writable, writing
from nanofw.cli.stdout import stdout
from nanofw.cli.tables import console, table

if TYPE_CHECKING:
    from nanofw.decisions.log import DecisionLog

EPILOG = """\
A run writes a log where output.decisions names a file, and each run of nanofw
compare where the experiment's key decisions names a folder. Without REQUEST
the requests that waited longest are listed. A further sample of a request is
REQUEST/1, REQUEST/2, ...
"""
MAX_LISTED = 20


def main(arguments: list[str]) -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(
        prog="nanofw why", description=__doc__, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("log", metavar="LOG", help="a decision log")
    parser.add_argument("requests", nargs="*", metavar="REQUEST", help="ids of requests")
    parser.add_argument(
        "--timeline", metavar="FILE", type=Path,
        help="write steps, requests, queue and KV over time as a trace for ui.perfetto.dev",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    from nanofw.decisions.log import read_log
    from nanofw.decisions.sentences import lines
    from nanofw.decisions.story import Teller

    log = read_log(Path(options.log))
    if options.timeline is not None:
        _write_timeline(log, options.timeline)
    if not options.requests:
        _list(log)
        return ExitCode.OK
    teller, out = Teller(log), stdout()
    for number, name in enumerate(options.requests):
        story = teller.tell(name)
        text = "\n".join(lines(log, story))
        print(f"\n{text}" if number else text, file=out)
    if log.is_cut:
        print("the log ends in the middle of a line: the run was ended from outside", file=out)
    return ExitCode.OK


def _write_timeline(log: DecisionLog, path: Path) -> None:
    from nanofw.decisions.timeline import timeline_trace
    from nanofw.measure.step_traces import write

    check_writable(path, "--timeline", [log.path])
    with writing(path):
        write(timeline_trace(log), path)


def _list(log: DecisionLog) -> None:
    """The requests that waited longest until their first row."""
    from nanofw.decisions.log import shown_id

    waits = [
        (log.calls[life.stays[0].began].planned - life.arrival, life)
        for life in log.lives.values()
        if life.stays
    ]
    waits.sort(key=lambda item: -item[0])
    rows = [
        (shown_id(life.id), f"{wait:.6g}", str(len(life.stays) - 1))
        for wait, life in waits[:MAX_LISTED]
    ]
    title = f"{len(log.lives)} requests, {len(log.calls)} plans; those that waited longest:"
    console().print(table(title, ("request", "waited, s", "preemptions"), rows, numbers=True))
