"""`nanofw replay LOG`: decide a log again, show the first step that differs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nanofw.cli import ExitCode
from nanofw.cli.stdout import claim
from nanofw.cli.tables import console, table

if TYPE_CHECKING:
    from rich.console import Console

    from nanofw.decisions.log import DecisionLog
    from nanofw.decisions.records import StepRecord
    from nanofw.decisions.replay import Difference

EPILOG = """\
  nanofw replay run.jsonl                           as it was, by this version
  nanofw replay run.jsonl scheduler.name=priority   by another policy

Requests, times and sampled tokens are those of the log, so a log of a run on a
device can be decided again anywhere. Exit codes as everywhere, and 1 when a
step differs.
"""
MAX_RANKS = 20


def main(arguments: list[str]) -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(
        prog="nanofw replay", usage="%(prog)s LOG [KEY=VALUE ...]", description=__doc__,
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("words", nargs="+", metavar="LOG [KEY=VALUE ...]", help="a decision log")
    options = parser.parse_args(arguments)
    from nanofw.config.layers import is_override
    from nanofw.decisions.log import read_log
    from nanofw.decisions.replay import replay_log
    from nanofw.errors import ConfigError

    claim()
    names = [word for word in options.words if not is_override(word)]
    if len(names) != 1:
        raise ConfigError("name one decision log, and changes as key=value", source="command line")
    log = read_log(Path(names[0]))
    replayed = replay_log(log, [word for word in options.words if is_override(word)])
    difference = replayed.difference
    if difference is None:
        console().print(f"the same choices in all {replayed.num_calls:,} plans")
        return ExitCode.OK
    _print(log, difference, console())
    return ExitCode.BAD_RESULT


def _print(log: DecisionLog, difference: Difference, out: Console) -> None:
    step = log.calls[difference.call].step
    where = "an attempt to plan" if step is None else f"step {step}"
    seconds = difference.planned - log.start
    out.print(
        f"the first difference is in {where}, {seconds:.6f} s after the first arrival; "
        f"{difference.call:,} plans before it are the same"
    )
    rows = list(zip(_choices(difference.before), _choices(difference.after), strict=True))
    labels = ("decodes", "prefill goes on", "get a row", "paused", "preempted before it")
    lines = [(label, *pair) for label, pair in zip(labels, rows, strict=True)]
    out.print(table("decided", ("", "log", "now"), lines))
    if difference.error:
        out.print(f"now: {difference.error}")
    _print_ranks(difference, out)


def _choices(record: StepRecord | None) -> tuple[str, ...]:
    from nanofw.decisions.log import shown_id
    from nanofw.decisions.sentences import names

    if record is None:
        return ("-",) * 5
    return (
        str(record.decodes) if record.step is not None else "no plan",
        ", ".join(f"{shown_id(name)} ({count})" for name, count in record.chunks) or "-",
        ", ".join(
            f"{shown_id(new.id)} ({new.num_tokens}, {new.num_cached} cached)" for new in record.new
        )
        or "-",
        names(record.paused) or "-",
        names([item.id for item in record.preempted]) or "-",
    )


def _print_ranks(difference: Difference, out: Console) -> None:
    from nanofw.decisions.log import shown_id
    from nanofw.decisions.sentences import key_text

    both = {new.id for record in (difference.before, difference.after) if record is not None
            for new in record.new}  # fmt: skip
    shown = [item for item in difference.ranks if item.id in both]
    shown += [item for item in difference.ranks if item.id not in both]
    rows = [
        (
            shown_id(item.id),
            "" if item.before is None else f"{item.before} ({key_text(item.key_before)})",
            "" if item.after is None else f"{item.after} ({key_text(item.key_after)})",
        )
        for item in shown[:MAX_RANKS]
    ]
    title = f"{len(difference.ranks)} requests wait; ranks and keys, those that get a row first:"
    out.print(table(title, ("request", "log", "now"), rows))
