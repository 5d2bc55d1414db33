"""`nanofw run [config.yaml] [key=value …]`: prompts in, results out."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nanofw.cli.inputs import STDIN, Entry, file_entries, listed_entries
from nanofw.cli.interrupt import Interrupt
from nanofw.cli.outputs import JsonlFile, JsonlStream, Output, PlainText
from nanofw.cli.steps import StepsFile, open_steps
from nanofw.cli.summary import Summary
from nanofw.configs.layers import is_override
from nanofw.configs.load import DEFAULT_PRESET, LoadedConfig, load_config
from nanofw.configs.schema import Config, InputSection, OutputSection
from nanofw.core.clock import VirtualClock
from nanofw.core.types import FinishReason, SamplingParams
from nanofw.errors import ConfigError, NanofwError
from nanofw.llm.logs import log_to_stderr
from nanofw.llm.opening import open_session
from nanofw.llm.progress import ProgressBar
from nanofw.llm.prompts import Prompt, parse_prompt
from nanofw.llm.results import RequestResult
from nanofw.llm.session import Finished, Session
from nanofw.text.chat import check_messages

EXIT_OK, EXIT_SOME_FAILED, EXIT_ENGINE = 0, 1, 3
STDOUT = "-"
MAX_REFUSALS_SHOWN = 10
HELP = """\
usage: nanofw run [CONFIG] [KEY=VALUE ...]

Runs prompts through a model. CONFIG is a YAML file or a preset; without one the embedded model
runs its default prompts. Every key of the configuration can be set here:

  nanofw run                                         the demo
  nanofw run 'input.prompts=["Once upon a time"]'    another prompt
  nanofw run my.yaml output.file=results.jsonl       results as JSONL, in input order
  nanofw run my.yaml input.file=prompts.jsonl        prompts from JSONL or text, a request a line
  ... | nanofw run my.yaml input.file=-              prompts from standard input

Ctrl-C ends the run after the current step and keeps what is finished.
Exit codes: 0 ok, 1 some requests were refused or failed, 2 usage or configuration, 3 the run
could not go on (what was finished is written), 130 interrupted."""


def main(arguments: Sequence[str]) -> int:
    """Run what the command line says; returns the exit code.

    Raises:
        NanofwError: before the first request: the configuration or the model is at fault.
    """
    if any(argument in ("-h", "--help") for argument in arguments):
        print(HELP)
        return EXIT_OK
    return run(load_arguments(arguments))


def load_arguments(arguments: Sequence[str]) -> LoadedConfig:
    """`[config.yaml] [key=value …]`; without a configuration the demo's preset.

    Raises:
        ConfigError: an argument is neither, or the configuration cannot be used.
    """
    overrides = [argument for argument in arguments if is_override(argument)]
    names = [argument for argument in arguments if not is_override(argument)]
    if len(names) > 1:
        raise ConfigError(
            f"one configuration at a time, not {', '.join(names)}; values are given as key=value",
            source="command line",
        )
    return load_config(names[0] if names else DEFAULT_PRESET, overrides)


def run(loaded: LoadedConfig) -> int:
    """Run all prompts of a configuration; returns the exit code.

    Raises:
        NanofwError: before the first request: the configuration or the model is at fault.
    """
    config = loaded.config
    entries = list(read_entries(config.input))
    if not entries:
        raise ConfigError("there are no prompts: set input.prompts or input.file", key="input")
    results = config.output.file
    if results is not None and results.name != STDOUT and results == config.input.file:
        raise ConfigError("the results would overwrite the prompts", key="output.file")
    log_to_stderr()
    output = open_output(config.output)
    try:
        session = open_session(loaded, token_times=config.output.token_times)
        with session.engine, Interrupt() as interrupt, open_steps(config.output) as steps:
            job = Run(session, output, steps, interrupt)
            live = streams(config.output)
            job.add(entries, default_sampling(config), stream=live)
            return job.to_end(watched=sys.stderr.isatty() and not live)
    finally:
        output.close()


def read_entries(section: InputSection) -> Iterator[Entry]:
    """The prompts that the configuration names.

    Raises:
        ConfigError: none are named, or a file cannot be read.
    """
    if section.prompts is not None:
        yield from listed_entries(section.prompts)
    elif section.file is not None:
        name = STDIN if section.file.name == STDIN else section.file
        yield from file_entries(name, section.format)
    elif section.workload is not None:
        raise ConfigError(
            "`nanofw run` takes prompts; generated traffic is for `nanofw compare`",
            key="input.workload",
        )


def default_sampling(config: Config) -> SamplingParams:
    """Sampling of requests that bring none, with the log probabilities that the output wants."""
    if config.output.logprobs is None:
        return config.sampling
    return replace(config.sampling, logprobs=config.output.logprobs)


def streams(section: OutputSection) -> bool:
    """Whether somebody reads the texts while they come."""
    return section.file is None and sys.stdout.isatty()


def open_output(section: OutputSection) -> Output:
    """Where results go: a file, JSONL on standard output, or text for reading."""
    if section.file is None:
        return PlainText(sys.stdout, live=streams(section))
    if section.file.name == STDOUT:
        return JsonlStream(sys.stdout)
    return JsonlFile(section.file)


class Run:
    """The requests of one command, from the first prompt to the last result."""

    def __init__(
        self, session: Session, output: Output, steps: StepsFile, interrupt: Interrupt
    ) -> None:
        self._session, self._output = session, output
        self._steps, self._interrupt = steps, interrupt
        self._summary = Summary()
        self._places: list[str] = []
        self._failure: NanofwError | None = None

    def add(self, entries: Sequence[Entry], sampling: SamplingParams, *, stream: bool) -> None:
        """Queue all prompts; those that cannot be served are refused alone."""
        self._places = [entry.place for entry in entries]
        for entry in entries:
            if self._interrupt.signal:
                return
            try:
                if entry.error is not None:
                    raise ValueError(entry.error)
                prompt = parse_prompt(entry.value, sampling)
            except ValueError as error:
                self._session.refuse(str(error))
            else:
                ticket = self._session.add(prompt, stream=stream and prompt.sampling.n == 1)
                self._output.begin(ticket, readable(prompt))

    def to_end(self, *, watched: bool) -> int:
        """Step until everything is finished, the engine fails, or somebody interrupts.

        Args:
            watched: show a progress bar.
        """
        with ProgressBar(len(self._places), enabled=watched) as bar:
            while self._session.has_unfinished and not self._interrupt.signal:
                self._step(bar)
        self._output.close()
        self._report()
        return self._exit_code()

    def _step(self, bar: ProgressBar) -> None:
        try:
            step = self._session.step()
        except NanofwError as error:
            self._failure = error
            self._take(self._session.fail(f"the run could not go on: {error}"))
            return
        for delta in step.deltas:
            self._output.show(delta)
        self._take(step.finished)
        if step.report is not None:
            self._summary.add_step(step.report)
            self._steps.write(step.report)
        bar.update(len(step.finished), step.report)

    def _take(self, finished: Sequence[Finished]) -> None:
        for item in finished:
            result = item.result
            if result.finish_reason is FinishReason.REFUSED:
                result = self._with_place(item.ticket, result)
            self._summary.add(result)
            self._output.put(item.ticket, result)

    def _with_place(self, ticket: int, result: RequestResult) -> RequestResult:
        """A refused request with the place that it came from; the first ones are told at once."""
        place = f"{self._places[ticket]}: "
        reason = f"{place}{str(result.error).removeprefix(place)}"
        num_refused = self._summary.by_reason[FinishReason.REFUSED]
        if num_refused < MAX_REFUSALS_SHOWN:
            print(f"refused: {reason}", file=sys.stderr)
        elif num_refused == MAX_REFUSALS_SHOWN:
            print("refused: more, see the results", file=sys.stderr)
        return replace(result, error=reason)

    def _report(self) -> None:
        engine = self._session.engine
        virtual = isinstance(engine.clock, VirtualClock)
        for line in self._summary.lines(engine.stats(), virtual=virtual):
            print(line, file=sys.stderr)
        num_left = len(self._places) - self._summary.num_requests
        if self._interrupt.signal:
            print(f"interrupted: {num_left} requests were not finished", file=sys.stderr)
        if self._failure is not None:
            print(f"nanofw: {self._failure}", file=sys.stderr)

    def _exit_code(self) -> int:
        if self._failure is not None:
            return EXIT_ENGINE
        if self._interrupt.signal:
            return self._interrupt.exit_code
        everything_good = self._summary.num_good == len(self._places)
        return EXIT_OK if everything_good else EXIT_SOME_FAILED


def readable(prompt: Prompt) -> str:
    """The prompt for readers: its text, the last message of a chat, or how many ids it has."""
    if prompt.text is not None:
        return prompt.text
    if prompt.token_ids is not None:
        return f"({len(prompt.token_ids)} token ids) "
    try:
        return f"{check_messages(prompt.messages)[-1].get('content')}\n"
    except ValueError:
        return ""
