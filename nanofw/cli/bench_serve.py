"""`nanofw bench serve`: load on an OpenAI endpoint, and what its clients see."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from nanofw.cli import ExitCode
from nanofw.cli.measurement import begin
from nanofw.cli.progress import progress
from nanofw.cli.tables import console, readable_percent, table

if TYPE_CHECKING:
    from nanofw.bench.serve.figures import ServeRun
    from nanofw.bench.serve.options import ServeOptions

SERVE = """\
Sends the requests of input.workload to an endpoint, each at its time, and says
what its clients see. The endpoint may be nanofw's or any that speaks OpenAI's
API. CONFIG names the workload, and by model.path the vocabulary of its prompts.

Keys that begin with bench. say what is measured:
bench.url=http://127.0.0.1:8000, bench.model (default: the first that the
endpoint offers), bench.api=completions (or chat), bench.prompts=auto (ids,
text), bench.rates=[1,2,4] (requests per second, a run each; default: as the
workload says), bench.repeats=1, bench.seed=0, bench.slo.ttft_s, .tpot_s, .e2e_s
(limits for goodput), bench.warm_up=0.1, bench.drain=0.1 (shares of the arrivals
that are cut), bench.api_key_env (environment variable with the key),
bench.hints=true (send clients, priorities, deadlines, expected lengths),
bench.body={...} (further keys of each request), bench.max_open=4096,
bench.timeout_s=600.
"""
STATISTICS = ("mean", "p50", "p90", "p99", "max")


def serve(given: argparse.Namespace, arguments: list[str]) -> int:
    """The command, once its words are read."""
    _check_installed("httpx", "httpx_sse")
    from nanofw.assembly import chosen_workload, select
    from nanofw.bench.serve.options import ServeOptions
    from nanofw.bench.serve.runs import serve_runs

    given.config.append("executor.name=sim")  # nothing is computed here
    options, _, loaded, measured = begin("bench serve", ServeOptions, _run_record, given, arguments)
    selection = select(loaded)
    workload = chosen_workload(selection).name

    def show(found: Sequence[ServeRun]) -> None:
        _print(found, options, workload)

    with progress() as report:
        measured.take(serve_runs(selection, options, report))
    measured.finish(selection, show)
    runs: list[ServeRun] = measured.found
    has_failed = any(run.num_failed or run.num_refused or run.num_shed for run in runs)
    return ExitCode.BAD_RESULT if has_failed else ExitCode.OK


def _run_record(run: ServeRun) -> dict[str, object]:
    return asdict(run)


def _check_installed(*packages: str) -> None:
    from nanofw.errors import PluginLoadError

    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise PluginLoadError(
                f"nanofw bench serve needs {package}: pip install 'nanofw[serve]'"
            )


def _print(found: Sequence[ServeRun], options: ServeOptions, workload: str) -> None:
    out = console()
    out.print(f"{options.url}: {options.api}, workload {workload}")
    columns = ("run", "rate", "requests", "measured", "refused", "failed", "s", "output/s",
               "requests/s", "goodput/s")  # fmt: skip
    lines = [_line(number, run) for number, run in enumerate(found, 1)]
    out.print(table(None, columns, lines, numbers=True))
    for number, run in enumerate(found, 1):
        shown = [(name, *_ms(values)) for name, values in _latencies(run).items()]
        shown.append(("generator late", *_ms(run.send_lateness)))
        out.print(table(f"ms of run {number}", ("", *STATISTICS), shown, numbers=True))
        if run.clients:
            out.print(_clients(number, run))
    for note in dict.fromkeys(note for run in found for note in run.notes):
        out.print(f"note: {note}")


def _line(number: int, run: ServeRun) -> tuple[str, ...]:
    refused = run.num_refused + run.num_shed
    return (
        f"{number}{'' if run.complete else ' (interrupted)'}",
        "" if run.rate is None else f"{run.rate:g}",
        str(run.num_requests),
        str(run.num_measured),
        str(refused) if refused else "",
        str(run.num_failed) if run.num_failed else "",
        f"{run.seconds:.2f}",
        f"{run.tokens_per_s:,.0f}",
        f"{run.requests_per_s:.2f}",
        "" if run.goodput_rate is None else f"{run.goodput_rate:.2f}",
    )


def _latencies(run: ServeRun) -> dict[str, Mapping[str, float]]:
    from nanofw.measure.latencies import LATENCIES, title

    return {title(name): run.latencies[name] for name in LATENCIES if name in run.latencies}


def _ms(values: Mapping[str, float]) -> list[str]:
    return [f"{1e3 * values[key]:,.2f}" if key in values else "" for key in STATISTICS]


def _clients(number: int, run: ServeRun) -> object:
    lines = [
        (
            client or "(none)",
            str(own.num_requests),
            readable_percent(own.share),
            *(
                f"{1e3 * own.latencies[name][key]:,.2f}" if name in own.latencies else ""
                for name, key in (("ttft", "mean"), ("ttft", "p90"), ("tpot", "mean"))
            ),
            *(f"{1e3 * own.latencies['e2e'][key]:,.2f}" for key in ("mean", "p90")),
        )
        for client, own in run.clients.items()
    ]
    columns = ("client", "requests", "tokens", "TTFT mean", "p90", "TPOT mean", "E2E mean", "p90")
    return table(f"clients of run {number}, ms", columns, lines, numbers=True)
