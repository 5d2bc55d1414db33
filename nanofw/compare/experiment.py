"""What is compared: a base configuration, arms as changes of it, traffic, loads, repeats.

```yaml
base: sim                          # preset or file, as in a run's configuration
config: {engine: {max_num_seqs: 16}}
arms:
  fcfs: {}
  shortest: {scheduler: {name: shortest_job_first, by: output}}
workload: {name: poisson, num_requests: 2000}
loads: [0.5, 0.9]                  # of the capacity, which is found first
primary: e2e.mean
```
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, NonNegativeInt, PositiveFloat

from nanofw.compare.endpoints import (
    MeasureEndpoint,
    endpoint_problems,
    endpoints_of,
    own_layers,
)
from nanofw.compare.expectation import Expectation
from nanofw.compare.layer_parts import merged, part
from nanofw.compare.metrics import DEFAULT_METRICS, Metric
from nanofw.compare.objective import Objective
from nanofw.compare.sweep import swept_arms
from nanofw.config.document import read_file
from nanofw.config.layers import defaults, file_layers, override_layer
from nanofw.config.load import LoadedConfig, resolve
from nanofw.config.schema import Config, Section
from nanofw.config.slo import Slo
from nanofw.config.source import ConfigLayer, KeyPath, ValueSource, nearest_source
from nanofw.config.validation import Values, validate
from nanofw.errors import ConfigError
from nanofw.narrowing import is_dict

AA = "A/A"
"""The arm that is the baseline again."""

Share = Annotated[float, Field(ge=0, lt=0.5)]
MAX_ARMS = 1000
MAX_REPEATS = 10_000
MAX_POINTS = 1000
MAX_RUNS = 1_000_000
"""Arms times points times repeats: each is a task and a line of the result."""
MAX_PROCESSES = 1024
Points: TypeAlias = Annotated[tuple[PositiveFloat, ...], Field(min_length=1, max_length=MAX_POINTS)]


class ExperimentOptions(Section):
    """The experiment file."""

    name: str = ""
    """One line that says what the experiment is about."""
    base: str | tuple[str, ...] | None = None
    """Presets or files that `config` overrides."""
    config: dict[str, object] = Field(default_factory=dict[str, object])
    """Configuration that all arms share."""
    arms: Annotated[dict[str, dict[str, object]], Field(min_length=1, max_length=MAX_ARMS)]
    """For each arm, its name and the keys that it changes in `config`. An arm with the key
    `endpoint` is a server that runs already."""
    sweep: dict[str, tuple[object, ...]] | None = None
    """For each key of the configuration, a list of values. Each combination of values makes one
    arm; if there are `arms`, one for each of them."""
    pareto: Annotated[tuple[str, ...], Field(max_length=10)] = ()
    """Metrics of the Pareto front, that is, of the arms that no other arm beats in all of these
    metrics."""
    baseline: str | None = None
    """The arm that others are compared with; null: the first."""
    workload: dict[str, object] | None = None
    """Short for `config.input.workload`."""
    loads: Points | None = None
    """Arrival rates as fractions of the baseline's capacity."""
    rates: Points | None = None
    """Arrival rates in requests per second. If neither `loads` nor `rates` is set, the rate of the
    workload is used."""
    capacity: PositiveFloat | None = None
    """The rate, in requests per second, that counts as load 1; null: it is measured with runs of
    the baseline."""
    repeats: Annotated[int, Field(ge=1, le=MAX_REPEATS)] = 10
    """Runs of each arm at each load, each with traffic of its own seed."""
    until: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Stop the runs of a load early if the interval of every effect that decides is narrow enough:
    half its width must be at most this share of the baseline's value."""
    seed: NonNegativeInt = 0
    """Seed of the first run. Each further run has the next number."""
    primary: str | None = "e2e.mean"
    """The metric that decides; null: all metrics decide, with Holm's correction."""
    metrics: Annotated[tuple[str, ...], Field(max_length=1000)] = DEFAULT_METRICS
    """The metrics that are reported."""
    slo: Slo = Slo()
    """Limits for goodput."""
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """If no arm differs from the baseline, the chance that the experiment has at least one wrong
    verdict."""
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.001
    """The largest effect that does not matter, as a share of the baseline's value."""
    warm_up: Share = 0.1
    """Share of the time of arrivals that is not counted, at the start."""
    drain: Share = 0.1
    """Share of the time of arrivals that is not counted, at the end."""
    aa: bool = True
    """Run the baseline against itself, in virtual time on other arrivals."""
    host_time: bool = False
    """Add the time that the scheduler really takes to virtual time; results then depend on the
    machine."""
    processes: Annotated[int, Field(ge=1, le=MAX_PROCESSES)] | Literal["auto"] = "auto"
    """How many processes compute simulated runs. Real runs follow one another."""
    expect: tuple[Expectation, ...] = ()
    """Conditions on the result."""
    objectives: Annotated[tuple[Objective, ...], Field(max_length=100)] = ()
    """Conditions that must hold at the rate that `nanofw capacity` searches; an empty list:
    `attainment`."""
    attainment: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the requests that must meet `slo`, if there are no `objectives`."""
    tolerance: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    """`nanofw capacity` stops when half the width of the interval of the largest rate is at most
    this share of the rate."""
    max_repeats: Annotated[int, Field(ge=3, le=MAX_REPEATS)] = 60
    """Largest number of runs of `nanofw capacity` at one rate."""
    curve: Annotated[tuple[PositiveFloat, ...], Field(max_length=100)] = (
        0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2,
    )  # fmt: skip
    """Shares of the largest rate at which `nanofw capacity` shows latency and goodput."""
    decisions: Path | None = None
    """Folder for a decision log of every run."""
    records: Path | None = None
    """Folder for a table of every run's requests: arrival, first token, end, client, hits."""
    records_format: Literal["csv", "parquet"] = "csv"
    """Format of the tables in `records`."""
    resume: bool = False
    """Use the finished runs of an earlier, interrupted call of this experiment; they are stored
    beside `output`."""
    output: Path | None = None
    """JSON file for the whole result."""
    report: Path | None = None
    """HTML file for people: pictures, tables, provenance, and the whole result."""

    def problems(self) -> Iterator[tuple[KeyPath, str]]:
        """What does not fit together: the key that is wrong, and why."""
        if self.loads is not None and self.rates is not None:
            yield ("rates",), "give either loads or rates"
        for key, points in (("loads", self.loads or ()), ("rates", self.rates or ())):
            for index, point in enumerate(points):
                if point in points[:index]:
                    yield (key, index), f"{point:g} is given twice; repeats sets the number of runs"
        if self.baseline is not None and self.baseline not in self.arms:
            yield ("baseline",), f"{self.baseline!r} is not one of the arms: {_listed(self.arms)}"
        if AA in self.arms:
            yield ("arms", AA), "is what the baseline against itself is called; name it otherwise"
        points = len(self.loads or self.rates or (1,))
        num = (len(self.arms) + self.aa) * points * self.repeats
        if num > MAX_RUNS:
            yield (
                ("repeats",),
                f"{len(self.arms)} arms at {points} loads, {self.repeats:,} times each, are "
                f"{num:,} runs; at most {MAX_RUNS:,} are done",
            )
        if "" in self.arms:
            yield ("arms",), "an arm needs a name"
        yield from self._bound_problems()
        yield from endpoint_problems(self)
        for index, item in enumerate(self.expect):
            for key, problem in self._expectation_problems(item):
                yield ("expect", index, key), problem

    def _bound_problems(self) -> Iterator[tuple[KeyPath, str]]:
        """What is wrong with the names of metrics, and with their bounds."""
        for key, names in (("metrics", self.reported), ("pareto", self.pareto)):
            for index, name in enumerate(names):
                yield from self._metric_problems((key, index), name)
        if self.primary is not None:
            yield from self._metric_problems(("primary",), self.primary)
        for index, objective in enumerate(self.objectives):
            for key, problem in objective.problems():
                yield ("objectives", index, key), problem

    def _metric_problems(self, path: KeyPath, name: str) -> Iterator[tuple[KeyPath, str]]:
        try:
            Metric.parse(name)
        except ValueError as error:
            yield path, str(error)
        if name.startswith("goodput.") and self.slo == Slo():
            yield (
                path,
                "goodput needs a limit that requests meet: set slo, for example {ttft_s: 0.5}",
            )

    def _expectation_problems(self, item: Expectation) -> Iterator[tuple[str, str]]:
        for key in ("metric", "against_metric"):
            for _, problem in self._metric_problems((), getattr(item, key) or item.metric):
                yield key, problem
        for key in ("arm", "against"):
            if (arm := getattr(item, key) or item.arm) not in self.arms:
                yield key, f"{arm!r} is not one of the arms: {_listed(self.arms)}"
        points = self.loads or self.rates or ()
        if item.verdict is not None and self.primary not in (None, item.metric):
            yield "verdict", f"only the primary metric, {self.primary}, gets a verdict"
        if item.load is not None and item.load not in points:
            yield "load", f"{item.load} is not one of {list(points)}"

    @property
    def reported(self) -> tuple[str, ...]:
        """The metrics to report; goodput where `slo` sets a limit or `metrics` names it."""
        named = [name for name in self.metrics if name.startswith("goodput.")]
        if self.slo != Slo():
            return self.metrics if named else (*self.metrics, "goodput.rate")
        if "metrics" in self.model_fields_set:
            return self.metrics
        return tuple(name for name in self.metrics if name not in named)

    @property
    def all_metrics(self) -> tuple[str, ...]:
        """Reported ones, the primary and those that expectations name, each once."""
        primary = (self.primary,) if self.primary else ()
        named = [*self.pareto, *(item.metric for item in self.expect)]
        named += [item.against_metric for item in self.expect if item.against_metric]
        return tuple(dict.fromkeys((*primary, *self.reported, *named)))


@dataclass(frozen=True, slots=True)
class Experiment:
    """A loaded experiment.

    Attributes:
        layers: of each arm's configuration, lowest first; plain data that any process can load.
        measure_endpoint: what measures arms that are endpoints.
    """

    options: ExperimentOptions
    layers: Mapping[str, tuple[ConfigLayer, ...]]
    measure_endpoint: MeasureEndpoint | None = None

    @property
    def endpoints(self) -> dict[str, str]:
        """The addresses of the arms that are endpoints: of all arms, or of none."""
        return endpoints_of(self.options)

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(self.layers)

    @property
    def baseline(self) -> str:
        return self.options.baseline or self.arms[0]

    def load(self, arm: str) -> LoadedConfig:
        """The validated configuration of an arm. Raises `ConfigError` with its place."""
        return resolve(self.layers[arm])


def load_experiment(name: Path | str, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment file, or make one of a run's configuration or preset.

    A file without `arms` is a run's configuration: then an override with several values,
    `scheduler.name=fcfs,shortest_job_first`, makes the arms; the rest of the overrides changes
    the run, or the experiment where they begin with `compare.`.

    Raises:
        ConfigError: with key, file and line.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        layer = read_file(path)
        if "arms" in layer.data or "sweep" in layer.data:
            made = _from_file(layer, path, overrides)
            _check_traffic(made, "workload", str(name))
            return made
    made = _short_form(str(name), overrides)
    _check_traffic(made, "input.workload", str(name))
    return made


def _check_traffic(experiment: Experiment, key: str, source: str) -> None:
    """Every arm has requests to serve."""
    lacking = [
        arm for arm, layers in experiment.layers.items() if not any(map(_has_traffic, layers))
    ]
    if lacking:
        whose = "" if len(lacking) == len(experiment.arms) else f" for {', '.join(lacking)}"
        message = (
            f"is required{whose}: the traffic, for example {{name: poisson, num_requests: 400}}"
        )
        raise ConfigError(message, key=key, source=source)


def _has_traffic(layer: ConfigLayer) -> bool:
    section = layer.data.get("input")
    if is_dict(section):
        return section.get("workload") is not None
    return section is not None  # nonsense, which validation reports with its place


def _from_file(layer: ConfigLayer, path: Path, overrides: Sequence[str]) -> Experiment:
    above = override_layer([text.removeprefix("compare.") for text in overrides])
    for key in set(above.data) & set(Config.model_fields) - set(ExperimentOptions.model_fields):
        raise ConfigError(
            f"is a key of the configuration: config.{key} for all arms, or in the arms of the file",
            key=key,
            source=above.name,
        )
    data = merged(layer.data, above.data)
    sources = {**layer.sources, **above.sources}
    swept = swept_arms(data, sources, MAX_ARMS)
    made = {**data, "arms": {name: dict[str, object]() for name in swept}} if swept else data
    options = _options(made, Values(data, sources, above.texts, {}))
    whole = ConfigLayer(layer.name, data, sources)
    below = [defaults(), *_bases(options, path, sources)]
    shared = [part(whole, ("config",))] if "config" in data else []
    if data.get("workload") is not None:
        shared.append(part(whole, ("workload",), ("input", "workload")))
    arms: dict[str, tuple[ConfigLayer, ...]] = {}
    for name in options.arms:
        change = swept.get(name)
        arm = name if change is None else change.arm
        own = () if arm is None else own_layers(part(whole, ("arms", arm)))
        arms[name] = (*below, *shared, *own, *([change.layer] if change else []))
    return Experiment(options, arms)


def _short_form(name: str, overrides: Sequence[str]) -> Experiment:
    lists = [text for text in overrides if _values(text) is not None]
    own = [text.removeprefix("compare.") for text in overrides if text.startswith("compare.")]
    rest = [text for text in overrides if text not in lists and not text.startswith("compare.")]
    if not lists:
        raise ConfigError(
            "nothing to compare: it has no arms, and no key=value has several values; "
            "try scheduler.name=fcfs,shortest_job_first",
            source=name,
        )
    varied = [text.partition("=")[0] for text in lists]
    for text in rest:
        key = text.partition("=")[0]
        if clash := [other for other in varied if f"{other}.".startswith(f"{key}.")]:
            raise ConfigError(f"is given beside the values of {clash[0]}, which it would replace",
                              key=key, source="command line")  # fmt: skip
    below = (defaults(), *file_layers(name))
    above_all = override_layer(rest)  # above the arms' own, which may drop what files say
    choices = [[(text.partition("=")[0], value) for value in _values(text) or ()] for text in lists]
    num = math.prod(map(len, choices))
    if num > MAX_ARMS:
        raise ConfigError(
            f"the values of {' and '.join(items[0][0] for items in choices)} make {num:,} arms; "
            f"at most {MAX_ARMS:,} are compared",
            source="command line",
        )
    arms: dict[str, tuple[ConfigLayer, ...]] = {}
    for combination in itertools.product(*choices):
        change = override_layer([f"{key}={value}" for key, value in combination])
        arm = ", ".join(value for _, value in combination)
        if arm in arms:
            raise ConfigError(f"the arm {arm!r} is given twice", source="command line")
        arms[arm] = (*below, change, above_all)
    above = override_layer(own)
    empty: dict[str, object] = {name: dict[str, object]() for name in arms}
    data: dict[str, object] = {**above.data, "arms": empty}
    values = Values(data, above.sources, above.texts, {})
    return Experiment(_options(data, values), arms)


def _values(override: str) -> list[str] | None:
    """The values of `key=a,b`; None when there is one."""
    key, _, text = override.partition("=")
    if "," not in text or text[:1] in "[{\"'" or key.startswith("compare."):
        return None
    return [value.strip() for value in text.split(",")]


def _bases(
    options: ExperimentOptions, path: Path, sources: Mapping[KeyPath, ValueSource]
) -> list[ConfigLayer]:
    names = (options.base,) if isinstance(options.base, str) else options.base or ()
    layers: list[ConfigLayer] = []
    for index, name in enumerate(names):
        named_by = nearest_source(sources, ("base", index))
        layers += file_layers(name, named_by, path.resolve().parent)
    return layers


def _options(data: dict[str, object], values: Values) -> ExperimentOptions:
    """The validated options. Raises `ConfigError` with the place of everything that is wrong."""
    options = validate(ExperimentOptions, data, values)
    problems = [values.error(message, path) for path, message in options.problems()]
    if len(problems) == 1:
        raise problems[0]
    if problems:
        lines = [f"{len(problems)} values cannot be used", *map(str, problems)]
        raise ConfigError("\n  ".join(lines))
    return options


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(names)
