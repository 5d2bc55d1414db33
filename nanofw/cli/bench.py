"""`nanofw bench latency | throughput | startup | serve`: how fast a machine is with a model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from nanofw.cli import ExitCode
from nanofw.cli.arguments import add_config
from nanofw.cli.bench_serve import SERVE, serve
from nanofw.cli.measurement import add_json, begin, graph_line, heading, uncounted
from nanofw.cli.progress import progress
from nanofw.cli.tables import console, table

if TYPE_CHECKING:
    from nanofw.assembly import Selection
    from nanofw.bench.latency import LatencyOptions, Timing
    from nanofw.bench.startup import StartupTimes
    from nanofw.bench.throughput import ThroughputPass
    from nanofw.contracts.requests import Request

LATENCY = """\
Times a decode step by batch size, as (t(n tokens) - t(1 token)) / (n - 1) with
fresh prompts, and the first token by prompt length.

Keys that begin with bench. say what is measured:
bench.batch_sizes=[1,32] (default: those of 1, 8, 32, 128, 256 that
engine.max_num_seqs allows), bench.prompt_tokens=128, bench.output_tokens
(default: 385 up to 8 requests, else 129), bench.first_token=[128,2048] (prompt
lengths), bench.repeats=3, bench.warm_up=1 (repeats that are not counted),
bench.seed=0.
"""
THROUGHPUT = """\
Serves the same requests several times: the first pass is cold.

Keys that begin with bench. say what is measured:
bench.traffic=auto (own: what the configuration's input names; random; auto:
own where that is a workload or a file), bench.num_requests=256,
bench.prompt_tokens, bench.output_tokens (lengths of random traffic: a number,
or {distribution: uniform, low: 100, high: 1024}, the default),
bench.at_once=true (false: requests come when the workload says),
bench.passes=3, bench.seed=0.
"""
STARTUP = """\
Times fresh processes from their start to the first token, phase by phase.

Keys that begin with bench. say what is measured:
bench.states=[cold,kernels_cold,warm] (cold: no compiled kernels, and the
checkpoint not in the page cache; kernels_cold: no compiled kernels),
bench.prompt_tokens=128, bench.repeats=3 (processes of each), bench.seed=0,
bench.timeout_s=1800.
"""


def main(arguments: list[str]) -> int:
    """Entry of the command."""
    parser = argparse.ArgumentParser(prog="nanofw bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_text, text, action in (
        ("latency", "a decode step by batch size, the first token by length", LATENCY, _latency),
        ("throughput", "tokens per second on a workload", THROUGHPUT, _throughput),
        ("startup", "from a command to the first token", STARTUP, _startup),
        ("serve", "load on an OpenAI endpoint, and what its clients see", SERVE, serve),
    ):
        sub = commands.add_parser(
            name, help=help_text, description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        add_config(sub)
        add_json(sub)
        sub.set_defaults(parser=sub, action=action)
    known, _ = parser.parse_known_args(arguments[:1])
    options: argparse.Namespace = known.parser.parse_intermixed_args(arguments[1:])
    return known.action(options, arguments)


# -- latency ------------------------------------------------------------------------------


def _latency(given: argparse.Namespace, arguments: list[str]) -> int:
    from nanofw.assembly import select
    from nanofw.bench.latency import LatencyOptions, latencies

    options, _, loaded, measured = begin(
        "bench latency", LatencyOptions, _timing_record, given, arguments
    )
    selection = select(loaded)

    def show(found: Sequence[Timing]) -> None:
        out = console()
        heading(selection, _repeats(options))
        for kind, title, columns in (
            ("decode", "a decode step", ("requests", "prompt", "output")),
            ("first_token", "to the first token", ("", "prompt", "")),
        ):
            lines = [_timing(item) for item in found if item.kind == kind]
            if lines:
                rates = "tokens/s" if kind == "decode" else "prompt tokens/s"
                names = [*columns, "ms", "lowest", "highest", rates]
                out.print(table(title, names, lines, numbers=True))

    with progress() as report:
        measured.take(latencies(selection, options, report))
    return measured.finish(selection, show)


def _repeats(options: LatencyOptions) -> str:
    if options.repeats == 1:
        return f"one measurement of each, after {uncounted(options.warm_up)}"
    return f"median and range of {options.repeats}, after {uncounted(options.warm_up)}"


def _timing(item: Timing) -> tuple[str, ...]:
    is_decode = item.kind == "decode"
    return (
        str(item.batch_size) if is_decode else "",
        str(item.prompt_tokens),
        str(item.output_tokens) if is_decode else "",
        *(f"{1e3 * value:.3f}" for value in (item.median, min(item.seconds), max(item.seconds))),
        f"{item.tokens_per_s:,.0f}",
    )


def _timing_record(item: Timing) -> dict[str, object]:
    return {**asdict(item), "median_s": item.median, "tokens_per_s": item.tokens_per_s}


# -- throughput ---------------------------------------------------------------------------


def _throughput(given: argparse.Namespace, arguments: list[str]) -> int:
    from nanofw.assembly import select
    from nanofw.bench.bounds import check_real
    from nanofw.bench.throughput import ThroughputOptions, passes

    options, _, loaded, measured = begin(
        "bench throughput", ThroughputOptions, _pass_record, given, arguments
    )
    selection = select(loaded)
    check_real(selection)
    kind = options.kind(selection)
    requests = _requests(selection) if kind == "prompts" else []

    def show(found: Sequence[ThroughputPass]) -> None:
        traffic = {"random": "random lengths", "prompts": "the configuration's prompts"}
        name = loaded.config.input.workload
        what = traffic.get(kind) or f"workload {name.name if name else ''}"
        heading(selection, f"{found[0].num_requests} requests, {what}")
        _print_passes(found, at_once=options.at_once or kind == "prompts")

    with progress() as report:
        measured.take(passes(selection, options, requests, report))
    measured.finish(selection, show)
    has_failed = any(item.num_failed for item in measured.found)
    return ExitCode.BAD_RESULT if has_failed else ExitCode.OK


def _requests(selection: Selection) -> list[Request]:
    """The prompts of the configuration, ready for the engine; one that cannot be read is an
    error.
    """
    from nanofw.cli.inputs import read_prompts
    from nanofw.errors import ConfigError
    from nanofw.llm.encoding import Encoder, engine_request
    from nanofw.llm.opening import text_of
    from nanofw.llm.prompts import parse_prompt

    config = selection.loaded.config
    encoder = Encoder(*text_of(selection.spec))
    made: list[Request] = []
    for item in read_prompts(config.input):
        try:
            if item.error is not None:
                raise ConfigError(item.error)
            prompt = encoder.encode(parse_prompt(item.value, config.sampling))
        except ValueError as error:
            raise ConfigError(f"{item.place}: {error}", key="input") from None
        made.append(engine_request(prompt, f"request-{len(made)}", arrival=0.0))
    return made


def _print_passes(found: Sequence[ThroughputPass], *, at_once: bool) -> None:
    from nanofw.measure.latencies import LATENCIES, title

    out = console()
    lines = [
        (
            f"{item.number}{' (cold)' if item.number == 1 else ''}",
            f"{item.seconds:.3f}",
            f"{item.num_output_tokens:,}",
            f"{item.output_tokens_per_s:,.0f}",
            f"{item.total_tokens_per_s:,.0f}",
            f"{item.requests_per_s:.2f}",
        )
        for item in found
    ]
    columns = ("pass", "s", "output tokens", "output/s", "all tokens/s", "requests/s")  # fmt: skip
    out.print(table(None, columns, lines, numbers=True))
    for item in found:
        if events := _events(item):
            out.print(f"pass {item.number}: {', '.join(events)}")
    last = found[-1]
    statistics = ("mean", "p50", "p90", "p99", "max")
    shown = [
        (title(name), *(f"{1e3 * last.latencies[name][key]:,.2f}" for key in statistics))
        for name in LATENCIES
        if name in last.latencies
    ]
    if shown:
        out.print(table(f"ms of pass {last.number}", ("", *statistics), shown, numbers=True))
    if last.graph_steps:
        out.print(graph_line(last.graph_steps))
    if at_once:
        out.print("all requests come at once: TTFT and E2E include the wait in the queue")
    for note in dict.fromkeys(note for item in found for note in item.notes):
        out.print(f"note: {note}")


def _events(item: ThroughputPass) -> list[str]:
    """What happened in a pass that most have not."""
    counts = ((item.num_preemptions, "preemptions"), (item.num_failed, "requests failed"))
    events = [f"{num} {what}" for num, what in counts if num]
    if item.num_cached_tokens:
        events.append(f"{item.hit_rate:.0%} of the prompt tokens were in the prefix cache")
    return events


def _pass_record(item: ThroughputPass) -> dict[str, object]:
    return {
        **asdict(item),
        "output_tokens_per_s": item.output_tokens_per_s,
        "total_tokens_per_s": item.total_tokens_per_s,
        "requests_per_s": item.requests_per_s,
    }


# -- start-up -----------------------------------------------------------------------------


def _startup(given: argparse.Namespace, arguments: list[str]) -> int:
    from nanofw.assembly import select
    from nanofw.bench.startup import StartupOptions, starts

    options, words, loaded, measured = begin(
        "bench startup", StartupOptions, _start_record, given, arguments
    )
    selection = select(loaded)

    def show(found: Sequence[StartupTimes]) -> None:
        heading(selection, _processes(options.repeats))
        _print_starts(found)

    with progress() as report:
        measured.take(starts(selection, words, options, report))
    return measured.finish(selection, show)


def _processes(num: int) -> str:
    return "seconds of one process" if num == 1 else f"seconds, median and range of {num} processes"


def _print_starts(found: Sequence[StartupTimes]) -> None:
    out = console()
    names = list(dict.fromkeys(name for item in found for name in item.phases))
    lines = [
        (name, *(_spread(item.phases[name]) if name in item.phases else "" for item in found))
        for name in names
    ]
    lines.append(("all", *(_spread(item.totals) for item in found)))
    lines.append(("second request", *(_spread(item.second_request_s) for item in found)))
    states = [item.state.replace("_", " ") for item in found]
    out.print(table("to the first token", ("phase", *states), lines, numbers=True))
    for item in found:
        for note in item.notes:
            out.print(f"note: {item.state}: {note}")


def _spread(seconds: Sequence[float]) -> str:
    from statistics import median

    text = f"{median(seconds):.3f}"
    return f"{text} ({min(seconds):.3f} to {max(seconds):.3f})" if len(seconds) > 1 else text


def _start_record(item: StartupTimes) -> dict[str, object]:
    return {**asdict(item), "total_s": item.totals, "median_s": item.median}
