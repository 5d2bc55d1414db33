"""Arms that differ in more than what was varied are refused before anything runs."""

from __future__ import annotations

from collections.abc import Mapping

from nanofw.assembly import Selection, select
from nanofw.compare.experiment import Experiment
from nanofw.config.layers import COMMAND_LINE
from nanofw.config.merge import Dropped
from nanofw.config.source import dotted
from nanofw.errors import ConfigError
from nanofw.plugins import Component


def select_arms(experiment: Experiment) -> dict[str, Selection]:
    """The components of every arm.

    Raises:
        ConfigError: an arm cannot take a value, or does without one that another arm has, and
            the experiment does not say so.
    """
    found = {arm: _select(experiment, arm) for arm in experiment.arms}
    virtual = {arm: selection.virtual_time for arm, selection in found.items()}
    if len(set(virtual.values())) > 1:
        raise ConfigError(
            "some arms are simulated and some are real; compare like with like",
            key="executor.name",
        )
    for arm in found:
        _check_dropped(arm, experiment.baseline, found)
        _check_dropped(experiment.baseline, arm, found)
    return found


def _select(experiment: Experiment, arm: str) -> Selection:
    try:
        return select(experiment.load(arm))
    except ConfigError as error:
        raise ConfigError(
            f"{error.message} (arm {arm!r})", key=error.key, source=error.source, line=error.line
        ) from None


def _check_dropped(arm: str, other: str, selections: Mapping[str, Selection]) -> None:
    """What an arm dropped because its component is another, and the other arm has."""
    selection, theirs = selections[arm], selections[other]
    same = {item.path for item in theirs.loaded.dropped}
    for item in selection.loaded.dropped:
        is_given = item.source.name == COMMAND_LINE.name
        if item.path in same and not is_given:
            continue
        what = _difference(item, selection)
        if what is None and is_given:
            what = "the arm cannot take it"
        if what is not None:
            raise ConfigError(
                f"is {item.value!r} for arm {other!r} and was dropped for arm {arm!r}, since "
                f"{item.reason}: {what}; set it in each arm, or in none",
                key=dotted(item.path), source=item.source.name, line=item.source.line,
            )  # fmt: skip


def _difference(item: Dropped, selection: Selection) -> str | None:
    """Why a dropped value makes arms differ in more than what was varied, or None."""
    *section, key = item.path
    if (*section, key) == ("executor", "cost_model"):
        if selection.loaded.config.executor.cost_model is not None:
            return None  # the arm names its own
        return "arms whose cost models differ are compared only where the experiment asks for it"
    component: Component | None = None
    if section:
        component = selection.components.get(str(section[-1]))
    options = None if component is None else component.options
    if component is None or options is None or not hasattr(options, str(key)):
        return None
    if str(key) in options.model_fields_set:
        return None  # the arm sets its own
    return (
        f"{component.label} has the option, too, and would run with its default, "
        f"{getattr(options, str(key))!r}"
    )
