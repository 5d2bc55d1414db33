"""`nanofw profile`: where a step's time goes, as tables and a trace for Perfetto."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nanofw.cli.arguments import add_config
from nanofw.cli.files import check_writable, files_read, writing
from nanofw.cli.measurement import add_json, begin, graph_line, heading, uncounted
from nanofw.cli.progress import progress
from nanofw.cli.tables import console, readable_number, table

if TYPE_CHECKING:
    from rich.console import Console

    from nanofw.bench.profile import Profile
    from nanofw.measure.step_traces import StepTrace, Work

ROWS = 16
"""Kernels or operators that a table shows; the JSON has all."""
NAME_WIDTH = 44
EPILOG = """\
On a GPU the first table has kernels, those of replayed graphs included; on a
CPU operators. The trace opens in https://ui.perfetto.dev, with the engine's
host phases as spans.

Keys that begin with profile. say what is profiled: profile.decode=[1,256]
(batch sizes; default: 1 and engine.max_num_seqs, 256 at most),
profile.prefill=[1024] (lengths of prompts), profile.context_tokens=128,
profile.steps=20, profile.warm_up=5, profile.seed=0. [] leaves a kind out.
"""


def main(arguments: list[str]) -> int:
    """Entry of the command."""
    given = _parser().parse_intermixed_args(arguments)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is imported, below
    from nanofw.assembly import select
    from nanofw.bench.profile import ProfileOptions, profiles

    options, words, loaded, measured = begin("profile", ProfileOptions, _record, given, arguments)
    if given.trace is not None:
        read = {*files_read(loaded, words), *([given.json] if given.json else [])}
        check_writable(given.trace, "--trace", read)
    selection = select(loaded)
    traces: list[StepTrace] = []

    def found() -> Iterator[Profile]:
        for profile, trace in profiles(selection, options, report):
            if given.trace is not None:
                traces.append(trace)
            yield profile

    def show(every: Sequence[Profile]) -> None:
        heading(selection, f"{options.steps} steps each, after {uncounted(options.warm_up)}")
        for profile in every:
            print_profile(profile, console())

    with progress() as report:
        measured.take(found())
    try:
        return measured.finish(selection, show)
    finally:
        if traces and given.trace is not None:
            _write_traces(traces, given.trace)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nanofw profile", description=__doc__, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_config(parser)
    parser.add_argument(
        "--trace", metavar="FILE", type=Path,
        help="write a trace for Perfetto; compressed when the name ends in .gz",
    )  # fmt: skip
    add_json(parser)
    return parser


def _write_traces(traces: Sequence[StepTrace], path: Path) -> None:
    from nanofw.measure import step_traces

    with writing(path):
        step_traces.write(step_traces.joined(traces), path)
    print(f"trace in {path}: open it in https://ui.perfetto.dev", file=sys.stderr)


def print_profile(profile: Profile, out: Console) -> None:
    out.print(f"\n{profile.text}: {1e3 * profile.step_seconds:.3f} ms a step")
    whose = "kernel or copy" if profile.busy_seconds is not None else "operator of the host"
    base = profile.busy_seconds if profile.busy_seconds is not None else profile.step_seconds
    if profile.busy_seconds is None:  # the profiler slows operators down, and all of them alike
        base = profile.recorded_step_seconds
    lines = [_work(item, base) for item in profile.work[:ROWS]]
    rest = profile.work[ROWS:]
    if rest:
        count, seconds = sum(item.count for item in rest), sum(item.seconds for item in rest)
        lines.append((f"{len(rest)} others", *_numbers(count, seconds, base)))
    if profile.busy_seconds is None:
        seconds = base - sum(item.seconds for item in profile.work)
        lines.append(("outside operators", *_numbers(None, seconds, base)))
    out.print(table(None, (whose, "a step", "ms", "share"), lines, numbers=True))
    if profile.idle is not None and profile.num_kernels is not None:
        out.print(
            f"{profile.num_kernels:.1f} kernels a step, {profile.kernels_per_layer:.1f} of them in "
            f"each layer; the device is idle {profile.idle:.1%} of a step"
        )
    if profile.graph_steps:
        out.print(graph_line(profile.graph_steps))
    if profile.parts:
        heads = ("part", "ms", "at least", "GB", "GB/s", "GFLOP", "GFLOP/s")
        out.print(table(None, heads, _parts(profile), numbers=True))
    out.print(_least(profile))
    out.print(table(None, ("host phase", "ms", "share"), _host(profile), numbers=True))


def _work(item: Work, base: float) -> tuple[str, ...]:
    from nanofw.measure.step_traces import short_name

    name = short_name(item.name)
    if len(name) > NAME_WIDTH:  # both ends tell kernels of one library apart
        name = f"{name[: NAME_WIDTH - 16]}…{name[-15:]}"
    return name, *_numbers(item.count, item.seconds, base)


def _numbers(count: float | None, seconds: float, base: float) -> tuple[str, str, str]:
    return "" if count is None else f"{count:.1f}", f"{1e3 * seconds:.4f}", f"{seconds / base:.1%}"


def _parts(profile: Profile) -> list[tuple[str, ...]]:
    """Kernels by kind: their time, what it would be at the card's rates, what they must do."""
    lines: list[tuple[str, ...]] = []
    for part in profile.parts:
        card, done = profile.card, ("", "", "", "")
        if part.flops:
            amounts = part.num_bytes / 1e9, part.flops / 1e9
            done = tuple(
                readable_number(value)
                for amount in amounts
                for value in (amount, amount / part.seconds)
            )
        least = f"{1e3 * part.least_seconds(card):.4f}" if card and part.flops else ""
        lines.append((part.name, f"{1e3 * part.seconds:.4f}", least, *done))
    if profile.card is not None:
        rates = profile.card.bytes_per_s / 1e9, profile.card.flops_per_s / 1e9
        copy, product = (readable_number(rate) for rate in rates)
        lines.append(("the card, measured", "", "", "", copy, "", product))
    return lines


def _least(profile: Profile) -> str:
    """What a step must read and compute, and the rates at which it did."""
    least, seconds = profile.least, profile.step_seconds
    gigabytes, gigaflops = least.num_bytes / 1e9, least.flops / 1e9
    return (
        f"at least {readable_number(gigabytes)} GB of weights and KV and "
        f"{readable_number(gigaflops)} GFLOP: {readable_number(gigabytes / seconds)} GB/s, "
        f"{readable_number(gigaflops / seconds)} GFLOP/s"
    )


def _host(profile: Profile) -> list[tuple[str, str, str]]:
    """Phases that follow each other, their parts indented, and what is left of the step."""
    from nanofw.measure.host_phases import SUBMIT, TOP_PHASES

    base, host = profile.step_seconds, profile.host
    lines: list[tuple[str, str, str]] = []
    rest = base

    def add(name: str, seconds: float) -> None:
        lines.append((name, f"{1e3 * seconds:.4f}", f"{seconds / base:.1%}"))

    for phase in ("accept", *TOP_PHASES):
        if phase not in host:
            continue
        add("collect (waits)" if phase == "collect" else phase, host[phase])
        rest -= host[phase]
        if phase == "submit":
            for name, seconds in host.items():
                if name.startswith(SUBMIT):
                    add(f"  {name.removeprefix(SUBMIT)}", seconds)
    add("between them", rest)
    return lines


def _record(profile: Profile) -> dict[str, object]:
    return {
        **asdict(profile),
        "idle": profile.idle,
        "num_kernels": profile.num_kernels,
        "kernels_per_layer": profile.kernels_per_layer,
        "parts": [asdict(part) for part in profile.parts],
    }
