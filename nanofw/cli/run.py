"""`nanofw run [config.yaml] [key=value …]`: prompts in, results out."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace

from nanofw.assembly import Selection, build_workload, select
from nanofw.cli import ExitCode
from nanofw.cli.arguments import load, split_config
from nanofw.cli.batches import BatchJob, has_batch_lines
from nanofw.cli.files import check_outputs, check_writable
from nanofw.cli.inputs import InputPrompt, check_prompts, read_prompts
from nanofw.cli.outputs import Output, OutputError, open_output
from nanofw.cli.sources import PromptSource, RequestSource, WorkloadSource
from nanofw.cli.steps import StepsFile, open_steps
from nanofw.cli.summary import Summary
from nanofw.config.load import LoadedConfig
from nanofw.config.schema import Config
from nanofw.contracts.clock import VirtualClock
from nanofw.contracts.requests import FinishReason, SamplingParams
from nanofw.engine.base import BaseEngine
from nanofw.engine.engine import Engine
from nanofw.errors import NanofwError
from nanofw.llm.interrupt import Interrupt, noted_interrupt
from nanofw.llm.opening import open_session
from nanofw.llm.progress import RunProgress, run_progress
from nanofw.llm.prompts import Prompt, parse_prompt
from nanofw.llm.results import RequestResult
from nanofw.llm.session import Session, SessionStep

MAX_REFUSALS_SHOWN = 10
MAX_SLEEP_S = 0.1
"""An interrupt is heard after so long at most, while the run waits for the next arrival."""
HELP = """\
usage: nanofw run [CONFIG] [KEY=VALUE ...]

Runs prompts through a model. CONFIG is a YAML file or a preset; without one
the embedded model runs its default prompts. Every key can be set here:

  nanofw run                                        the demo
  nanofw run 'input.prompts=["Once upon a time"]'   another prompt
  nanofw run my.yaml output.file=results.jsonl      JSONL, in input order
  nanofw run my.yaml input.file=prompts.jsonl       text, JSONL or batches
  ... | nanofw run my.yaml input.file=-             prompts from standard input
  nanofw run my.yaml input.workload.name=poisson    generated traffic

Ctrl-C ends the run after the current step and keeps what is finished.
Exit codes: 0 ok, 1 some requests were refused or failed, 2 usage or
configuration, 3 the run could not go on (what was finished is written),
130 interrupted."""


def main(arguments: Sequence[str]) -> int:
    """Run what the command line says; returns the exit code.

    Raises:
        NanofwError: before the first request: the configuration or the model is at fault.
    """
    if any(argument in ("-h", "--help") for argument in arguments):
        print(HELP)
        return ExitCode.OK
    name, _ = split_config(arguments)
    return run(load(arguments), name)


def run(loaded: LoadedConfig, name: str | None = None) -> int:
    """Run all prompts of a configuration; returns the exit code.

    Args:
        name: of the file that it was read from, which no output may overwrite.

    Raises:
        NanofwError: before the first request: the configuration or the model is at fault.
    """
    config = loaded.config
    check_outputs(loaded, name)
    check_prompts(loaded)
    prompts = None if config.input.workload is not None else read_prompts(config.input)
    log_to_stderr()
    output = open_output(config)
    try:
        selection = select(loaded)
        session = open_session(loaded, selection=selection, token_times=config.output.token_times)
        with (
            session.engine,
            noted_interrupt() as interrupt,
            closing(open_steps(config.output)) as steps,
            decisions_noted(session.engine, selection),
        ):
            output.start_run()
            source: RequestSource
            if prompts is None:
                source = workload_source(
                    with_sampling(selection, session.default_sampling),
                    start=session.engine.clock.now(),
                )
            else:
                source = PromptSource(
                    prompts,
                    prompt_reader(prompts, loaded, session, output),
                    stream=output.is_live,
                    add_prompt=output.add_prompt,
                    interrupted=lambda: bool(interrupt.signal),
                )
            job = Run(session, source, output, steps, interrupt)
            return job.to_end(watched=sys.stderr.isatty() and not output.is_live)
    finally:
        output.close()


def decisions_noted(engine: BaseEngine, selection: Selection) -> AbstractContextManager[None]:
    """Within it decisions go to the file that `output.decisions` names, if it names one."""
    path = selection.loaded.config.output.decisions
    if path is None:
        return nullcontext()
    if not isinstance(engine, Engine):
        message = "is for one engine; leave it out, or set engine.replicas to 1"
        raise selection.loaded.error(message, ("output", "decisions"))
    from nanofw.decisions.recorder import recording

    check_writable(path, "output.decisions")
    return recording(engine, selection, path)


def log_to_stderr() -> None:
    """Show nanofw's messages on standard error."""
    logger = logging.getLogger("nanofw")
    if logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)


def workload_source(selection: Selection, start: float) -> WorkloadSource:
    """The generated traffic of a run; `start`: the engine's clock now."""
    workload = build_workload(selection, start=start)
    for note in workload.notes:
        print(f"note: {note}", file=sys.stderr)
    return WorkloadSource(workload, selection.loaded.config.output.logprobs)


def with_sampling(selection: Selection, sampling: SamplingParams) -> Selection:
    """The selection with other parameters for requests that bring none."""
    loaded = selection.loaded
    config = loaded.config.model_copy(update={"sampling": sampling})
    return replace(selection, loaded=replace(loaded, config=config))


def default_sampling(session: Session, config: Config) -> SamplingParams:
    """Sampling of requests that bring none, with the log probabilities that the output wants."""
    if config.output.logprobs is None:
        return session.default_sampling
    return replace(session.default_sampling, logprobs=config.output.logprobs)


def prompt_reader(
    prompts: Sequence[InputPrompt], loaded: LoadedConfig, session: Session, output: Output
) -> Callable[[InputPrompt], Prompt]:
    """What reads the prompts of a run. Lines of an OpenAI batch are answered as such."""
    sampling = default_sampling(session, loaded.config)

    def read(item: InputPrompt) -> Prompt:
        return parse_prompt(item.value, sampling)

    if not has_batch_lines(prompts):
        return read
    job = BatchJob(loaded, session, read, output.to_record)
    output.to_record = lambda ticket, result: job.to_record(prompts[ticket], ticket, result)
    return job.read


class Run:
    """The requests of one command, from the first to the last result."""

    def __init__(
        self,
        session: Session,
        source: RequestSource,
        output: Output,
        steps: StepsFile,
        interrupt: Interrupt,
    ) -> None:
        self._session, self._source, self._output = session, source, output
        self._steps, self._interrupt = steps, interrupt
        self._summary = Summary()
        self._failure: Exception | None = None

    def to_end(self, *, watched: bool) -> int:
        """Step until everything is finished, the engine fails, or an interrupt comes.

        Args:
            watched: show a progress bar.
        """
        with run_progress(self._source.num_requests, enabled=watched) as bar:
            try:
                while not self._interrupt.signal and self._go_on(bar):
                    pass
            except OutputError:
                raise  # a result that cannot be written cannot say so either
            except Exception as error:
                self._fail(error)
        self._output.close()
        self._report()
        if self._failure is not None and not isinstance(self._failure, NanofwError):
            raise self._failure
        return self._exit_code()

    def _go_on(self, bar: RunProgress) -> bool:
        """Take what has come, and step or wait; False when nothing is left."""
        self._source.feed(self._session)
        if self._session.has_unfinished:
            self._step(bar)
        elif not self._wait_for_arrival():
            return False
        else:
            self._session.engine.check_alive()
        return True

    def _wait_for_arrival(self) -> bool:
        """Sleep until the next request comes, or a moment of it; False when none does."""
        at, clock = self._source.next_arrival, self._session.engine.clock
        if at is None:
            return False
        is_virtual = isinstance(clock, VirtualClock)
        clock.wait_until(at if is_virtual else min(at, clock.now() + MAX_SLEEP_S))
        return True

    def _fail(self, error: Exception) -> None:
        """Every request that was handed over, or is still to be, ends with an error."""
        self._failure = error
        # who reads the texts is told why once, at the end
        why = "" if self._output.is_read else f": {error}"
        reason = f"the run could not go on{why}"
        self._source.give_up(self._session, reason)
        self._take_events(self._session.fail(reason))

    def _step(self, bar: RunProgress) -> None:
        step = self._session.step()
        self._take_events(step)
        if step.report is not None:
            self._summary.add_step(step.report)
            self._steps.write(step.report)
        bar.update(len(step.results), step.report)

    def _take_events(self, step: SessionStep) -> None:
        now = self._session.engine.clock.now()
        for ticket, event in step.events:
            result = event.result
            if result is None:
                self._output.show_text(ticket, event.text)
                continue
            if result.finish_reason.is_refused:
                result = self._with_place(ticket, result)
            self._summary.add(result)
            self._output.put_result(ticket, result)
            if self._failure is None:
                self._source.finished(ticket, result, step.outputs.get(ticket), now)

    def _with_place(self, ticket: int, result: RequestResult) -> RequestResult:
        """A refused request with the place that it came from; the first ones are told at once,
        unless the reader of the texts is told anyway."""
        place = f"{self._source.place(ticket)}: "
        reason = f"{place}{str(result.error).removeprefix(place)}"
        num_refused = self._summary.by_reason[FinishReason.REFUSED]
        if num_refused <= MAX_REFUSALS_SHOWN and not self._output.is_read:
            more = num_refused == MAX_REFUSALS_SHOWN
            print(f"refused: {'more, see the results' if more else reason}", file=sys.stderr)
        return replace(result, error=reason)

    def _report(self) -> None:
        try:
            lines = self._summary_lines()
        except NanofwError as error:  # a plugin cannot even be counted
            self._failure, lines = self._failure or error, []
        for line in lines:
            print(line, file=sys.stderr)
        written = [text for text in (self._output.written, self._steps.written) if text]
        if written:
            print(f"written     {', '.join(written)}", file=sys.stderr)
        num_left = self._source.num_requests - self._summary.num_requests
        if self._interrupt.signal:
            print(f"interrupted: {num_left} requests were not finished", file=sys.stderr)
        if isinstance(self._failure, NanofwError):
            print(f"nanofw: {self._failure}", file=sys.stderr)

    def _summary_lines(self) -> list[str]:
        engine = self._session.engine
        return self._summary.lines(
            engine.stats(),
            virtual=isinstance(engine.clock, VirtualClock),
            num_unfinished_tokens=self._session.num_unfinished_tokens,
        )

    def _exit_code(self) -> int:
        if self._failure is not None:
            return ExitCode.FAILED
        if self._interrupt.signal:
            return self._interrupt.exit_code
        everything_good = self._summary.num_served == self._summary.num_requests
        return ExitCode.OK if everything_good else ExitCode.BAD_RESULT
