"""Runs of a workload against an endpoint, one after the other."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator

from nanofw.assembly import Selection, build_workload
from nanofw.bench.serve.bodies import Bodies
from nanofw.bench.serve.endpoint import Endpoint, connection, served_model
from nanofw.bench.serve.figures import ServeRun, summarize
from nanofw.bench.serve.generator import LoadGenerator
from nanofw.bench.serve.options import ServeOptions
from nanofw.contracts.workload import Workload
from nanofw.errors import ConfigError
from nanofw.llm.opening import text_of
from nanofw.measure.progress import ProgressReport, silent

LEAD_S = 0.05
"""Seconds between the making of a workload and its first request."""


def serve_runs(
    selection: Selection, options: ServeOptions, report: ProgressReport = silent
) -> Iterator[ServeRun]:
    """A run at each rate, `repeats` times. An interrupted one comes with what there was of it.

    Raises:
        ConfigError: no workload is named, or no endpoint answers.
    """
    if selection.loaded.config.sampling.n != 1:
        message = "must be 1: latencies are of requests with one answer"
        raise selection.loaded.error(message, ("sampling", "n"))
    points = [(rate, options.seed + i) for i in range(options.repeats)
              for rate in options.rates or (None,)]  # fmt: skip
    for number, (rate, seed) in enumerate(points):
        what = f"run {number + 1} of {len(points)}"
        run = LoadRun(selection, options, seed, _time_scale(selection, rate, seed))
        try:
            asyncio.run(run.to_end(lambda done, total, w=what: report(done, total, w)))
        except KeyboardInterrupt:
            if run.generator is not None:
                yield run.result(rate, complete=False)
            raise
        yield run.result(rate, complete=True)


class LoadRun:
    """One run.

    Args:
        scale: of the workload's time.
        observed: what is sent in the place of the workload.
    """

    def __init__(
        self,
        selection: Selection,
        options: ServeOptions,
        seed: int,
        scale: float,
        observed: Callable[[Workload], Workload] = lambda workload: workload,
    ) -> None:
        self._selection, self._options, self._seed = selection, options, seed
        self._scale, self._observed = scale, observed
        self._tokenizer = text_of(selection.spec, simulated=True)[0]
        self._notes: tuple[str, ...] = ()
        self.generator: LoadGenerator | None = None

    async def to_end(self, report: ProgressReport = silent) -> None:
        """Send everything, and wait for the last answer."""
        options = self._options
        api_key = _api_key(options)
        async with connection(options.url, api_key, options.timeout_s) as client:
            model = options.model or await served_model(client)
            bodies = Bodies(options, model, self._tokenizer)
            bodies.check()
            path = "chat/completions" if options.api == "chat" else "completions"
            workload = self._observed(self._workload())
            self._notes, total = workload.notes, workload.num_requests
            self.generator = LoadGenerator(
                workload,
                Endpoint(client, path),
                bodies.make,
                self._read_answer,
                max_open=options.max_open,
                note=lambda done: report(done, total, ""),
            )
            await self.generator.run()

    def _workload(self) -> Workload:
        """Made so early that its first request is not late already."""

        def make(start: float) -> Workload:
            return build_workload(
                self._selection, seed=self._seed, start=start, time_scale=self._scale
            )

        begin = time.monotonic()
        make(begin)
        return make(time.monotonic() + 2 * (time.monotonic() - begin) + LEAD_S)

    def _read_answer(self, text: str) -> list[int]:
        if self._tokenizer is None:
            return []
        return self._tokenizer.encode(text, add_special_tokens=False)

    def result(self, rate: float | None, *, complete: bool) -> ServeRun:
        """What came of it until now."""
        generator = self.generator
        assert generator is not None
        return summarize(
            generator, self._options, rate=rate, seed=self._seed, complete=complete,
            notes=self._notes,
        )  # fmt: skip


def _api_key(options: ServeOptions) -> str | None:
    if options.api_key_env is None:
        return None
    key = os.environ.get(options.api_key_env)
    if not key:
        message = f"the environment has no variable {options.api_key_env}"
        raise ConfigError(message, key="bench.api_key_env")
    return key


def _time_scale(selection: Selection, rate: float | None, seed: int) -> float:
    if rate is None:
        return 1.0
    own = build_workload(selection, seed=seed).rate
    if own is None:
        raise ConfigError(
            "the workload has no arrival rate: its requests come when others have ended",
            key="bench.rates",
        )
    return own / rate
