"""The largest rate of every arm at which the objectives hold, and its curve of latency by load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from nanofw.assembly import Selection, build_workload, chosen_workload
from nanofw.assembly.provenance import origin, run_record
from nanofw.compare.arms import select_arms
from nanofw.compare.capacity import LoadCapacity
from nanofw.compare.experiment import Experiment
from nanofw.compare.load_curve import CurvePoint, curve, knee
from nanofw.compare.objective import Objective
from nanofw.compare.processes import CarryOut, workers
from nanofw.compare.rate_search import Asking, Probe, SustainedRate, Values, search
from nanofw.compare.report import finite
from nanofw.compare.run import RunResult
from nanofw.compare.task import Task
from nanofw.config.load import plain
from nanofw.config.slo import Slo
from nanofw.errors import ConfigError
from nanofw.measure.progress import ProgressReport, silent

NUM_BURSTS = 3
CURVE_RUNS = 3
CURVE_METRICS = ("ttft.mean", "ttft.p99", "tpot.mean", "e2e.mean", "e2e.p99", "throughput.tokens")


@dataclass(slots=True)
class ArmCapacity:
    """What was found of an arm.

    Attributes:
        served: the rate that it can serve at all.
        points: of the curve, by rate.
        knee: the rate at which `knee_metric` turns up; None: it is not seen.
    """

    arm: str
    served: LoadCapacity
    sustained: SustainedRate
    points: list[CurvePoint] = field(default_factory=list[CurvePoint])
    knee: float | None = None
    knee_metric: str = ""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Capacities:
    """What was found of all arms."""

    experiment: Experiment
    selections: Mapping[str, Selection]
    objectives: tuple[Objective, ...]
    metrics: tuple[str, ...]
    arms: list[ArmCapacity] = field(default_factory=list[ArmCapacity])

    def as_json(self, arguments: Sequence[str] = ()) -> dict[str, object]:
        """Everything as plain values; undefined numbers are null."""
        return {
            "name": self.experiment.options.name,
            "objectives": [objective.text() for objective in self.objectives],
            "arms": [finite(asdict(arm)) for arm in self.arms],
            "provenance": {
                **origin(arguments),
                "experiment": plain(self.experiment.options),
                "arms": {arm: run_record(found) for arm, found in self.selections.items()},
            },
        }


def find_capacities(experiment: Experiment, report: ProgressReport = silent) -> Capacities:
    """Search all arms at once, their runs in processes; real ones one by one.

    Raises:
        ConfigError: there is nothing to keep, or the traffic has no rate.
    """
    options = experiment.options
    objectives = _objectives(experiment)
    named = [objective.metric for objective in objectives]
    goodput = ("goodput.rate", "goodput.share") if options.slo != Slo() else ()
    metrics = tuple(dict.fromkeys((*named, *CURVE_METRICS, *goodput)))
    experiment = replace(
        experiment,
        options=options.model_copy(
            update={"metrics": metrics, "primary": None, "repeats": 3, "expect": ()}
        ),
    )
    selections = select_arms(experiment)
    for selection in selections.values():
        chosen_workload(selection)
    found = Capacities(experiment, selections, objectives, metrics)
    most = len(experiment.arms) * 3 * max(CURVE_RUNS, 8)
    with workers(experiment, selections, most, report) as carry_out:
        _Rounds(found, carry_out).run()
    return found


def _objectives(experiment: Experiment) -> tuple[Objective, ...]:
    options = experiment.options
    if options.objectives:
        return options.objectives
    if options.slo == Slo():
        raise ConfigError(
            "nothing says what a rate must keep: give slo, for example {ttft_s: 0.5, tpot_s: "
            "0.05}, or objectives, for example [{metric: e2e.p90, max: 2}]",
            key="objectives",
        )
    return (Objective(metric="goodput.share", min=options.attainment),)


class _Rounds:
    """Carries out the runs that all searches ask for, round by round."""

    def __init__(self, found: Capacities, carry_out: CarryOut) -> None:
        self._found, self._carry_out = found, carry_out
        self._options = found.experiment.options
        self._rates: dict[tuple[str, int], float] = {}
        self._notes: dict[str, dict[str, None]] = {arm: {} for arm in found.experiment.arms}

    def run(self) -> None:
        """Bursts, the searches, the curves."""
        arms, options = self._found.experiment.arms, self._options
        served = self._served()
        known: dict[str, dict[Probe, Values]] = {arm: {} for arm in arms}
        searches = {
            arm: search(
                self._found.objectives,
                served[arm].rate,
                tolerance=options.tolerance,
                max_seeds=options.max_repeats,
                known=known[arm],
            )
            for arm in arms
        }
        sustained = self._search(searches)
        rates = {
            arm: sorted({share * sustained[arm].rate for share in options.curve} - {0.0})
            for arm in arms
        }
        wanted = {
            arm: [
                (rate, seed)
                for rate in rates[arm]
                for seed in range(CURVE_RUNS)
                if (rate, seed) not in known[arm]
            ]
            for arm in arms
        }
        for arm, values in self._carry(wanted).items():
            known[arm].update(values)
        metric = next(
            (item.metric for item in self._found.objectives if item.max is not None), "e2e.mean"
        )
        for arm in arms:
            points = curve(known[arm], rates[arm], self._found.metrics)
            self._found.arms.append(
                ArmCapacity(
                    arm, served[arm], sustained[arm], points, knee(points, metric), metric,
                    tuple(self._notes[arm]),
                )
            )  # fmt: skip

    def _served(self) -> dict[str, LoadCapacity]:
        """What each arm can serve at all: bursts, or as the experiment says."""
        arms, given = self._found.experiment.arms, self._options.capacity
        if given is not None:
            return dict.fromkeys(arms, LoadCapacity.given(given))
        seeds = range(self._options.seed, self._options.seed + NUM_BURSTS)
        tasks = [
            Task(arm, None, number, seed, 0.0) for arm in arms for number, seed in enumerate(seeds)
        ]
        rates: dict[str, list[float]] = {arm: [] for arm in arms}
        self._carry_out(tasks, lambda task, run: rates[task.arm].append(run.capacity))
        for arm, some in rates.items():
            if not all(rate > 0 for rate in some):
                raise ConfigError(f"arm {arm!r} served nothing", key="arms")
        return {arm: LoadCapacity.of_bursts(some) for arm, some in rates.items()}

    def _search(self, searches: Mapping[str, Asking[SustainedRate]]) -> dict[str, SustainedRate]:
        found: dict[str, SustainedRate] = {}
        answers: dict[str, Mapping[Probe, Values] | None] = dict.fromkeys(searches)
        while answers:
            wanted: dict[str, list[Probe]] = {}
            for arm, values in answers.items():
                asks = searches[arm]
                try:
                    wanted[arm] = next(asks) if values is None else asks.send(values)
                except StopIteration as end:
                    found[arm] = end.value
            answers = {**self._carry(wanted)}
        return found

    def _carry(self, wanted: Mapping[str, list[Probe]]) -> dict[str, dict[Probe, Values]]:
        """Do the runs that all arms ask for, in one round."""
        tasks, probes = list[Task](), dict[Task, Probe]()
        for arm, some in wanted.items():
            for rate, number in some:
                seed = self._options.seed + number
                task = Task(arm, rate, number, seed, self._rate(arm, seed) / rate)
                tasks.append(task)
                probes[task] = rate, number
        found: dict[str, dict[Probe, Values]] = {arm: {} for arm in wanted}

        def take(task: Task, run: RunResult) -> None:
            found[task.arm][probes[task]] = run.values
            self._notes[task.arm].update(dict.fromkeys(run.notes))

        if tasks:
            self._carry_out(tasks, take)
        return found

    def _rate(self, arm: str, seed: int) -> float:
        """Arrivals per second of the traffic as it is."""
        known = self._rates.get((arm, seed))
        if known is not None:
            return known
        selection = self._found.selections[arm]
        rate = build_workload(selection, seed=seed).rate
        if rate is None:
            raise selection.loaded.error(
                "has no arrival rate, so a largest rate cannot be searched", ("input", "workload")
            )
        self._rates[arm, seed] = rate
        return rate
