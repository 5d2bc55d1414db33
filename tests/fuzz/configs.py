"""Random configurations: each is valid and means what a plain model says, or is refused by key,
file and line.

    python -m tests.fuzz.configs FIRST COUNT

Seeds from `FIRST` on. Every fourth case is wild: random trees and texts, which may mean anything,
but never end in another exception, take long or fill the memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from nanofw.assembly import build, check, registry_for, select
from nanofw.config.load import LoadedConfig, load_config, plain
from nanofw.config.show import as_lines, as_yaml
from nanofw.config.source import dotted
from nanofw.errors import ConfigError, NanofwError, shown
from nanofw.plugins import Registry, Request
from tests.fuzz.config_cases import RUN, Case, make_case
from tests.fuzz.config_keys import PLUGIN
from tests.fuzz.wild_configs import WildCase, make_wild_case

MAX_SECONDS = 20
"""A case takes some hundredths of a second; a busy machine is many times slower."""
MAX_KILOBYTES = 500 << 10
MAX_MESSAGE = 20_000
_PLACE = re.compile(r"^ *(.+?): ([a-z_]+(?:[.\[][^ ]*)?): ", re.MULTILINE)


class TooSlowError(Exception):
    """A case takes too long."""


class Fuzzer:
    """Runs cases in a folder, which is the current one meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "fuzz_plugin.py").write_text(PLUGIN, encoding="utf-8")
        self._registry: Registry | None = None

    def problem(self, seed: int) -> str | None:
        """What is wrong with the reading of a case; None: nothing."""
        case = make_wild_case(seed) if seed % 4 == 3 else make_case(seed)
        with self._written(case), limited():
            try:
                found = self._wild(case) if isinstance(case, WildCase) else self._known(case)
            except Exception:
                found = traceback.format_exc()
        if found is None:
            return None
        files = "\n".join(f"--- {name}\n{text}" for name, text in case.files.items())
        return f"seed {seed}: {found}\n{files}--- {case.overrides!r} {shown(case.values, 2000)}"[
            :9000
        ]

    @contextlib.contextmanager
    def _written(self, case: Case | WildCase) -> Iterator[None]:
        for name, text in case.files.items():
            (self._folder / name).write_text(text, encoding="utf-8", errors="surrogatepass")
        with mock.patch.dict(os.environ, case.environment if isinstance(case, Case) else {}):
            yield

    def _known(self, case: Case) -> str | None:
        try:
            loaded = load_config(RUN, case.overrides, values=case.values)
            if self._registry is None:
                self._registry = registry_for(loaded)
            check(loaded, self._registry)
        except NanofwError as error:
            return refusal_problem(case, error)
        if case.wrong:
            return f"accepted, though {', '.join(case.wrong)} is wrong"
        return (
            value_problem(case, loaded)
            or self._shown_problem(loaded)
            or self._run_problem(case, loaded)
        )

    def _shown_problem(self, loaded: LoadedConfig) -> str | None:
        """What is shown must load to the same configuration."""
        (self._folder / "shown.yaml").write_text(as_yaml(loaded), encoding="utf-8")
        as_lines(loaded)
        again = load_config("shown.yaml")
        if as_yaml(again) == as_yaml(loaded):
            return None
        return f"what is shown is another configuration: {as_yaml(again)}"

    def _run_problem(self, case: Case, loaded: LoadedConfig) -> str | None:
        """What is valid is explained, and a small run starts."""
        selection = select(loaded, self._registry)
        explained = json.loads(json.dumps(selection.explanation.as_dict()))
        (chosen,) = [item for item in explained["choices"] if item["kind"] == "scheduler"]
        given = {key: item.value for key, item in case.expected.items() if is_option(key)}
        name = (
            case.expected["scheduler.name"].value if "scheduler.name" in case.expected else "fcfs"
        )
        shown = {f"scheduler.{key}": value for key, value in chosen["options"].items()}
        if chosen["name"] != name or any(shown[key] != value for key, value in given.items()):
            return f"explain says {chosen}, not {name} with {given}"
        if case.seed % 20 == 0:
            with build(selection) as engine:
                engine.add_request(Request(id="a", prompt_token_ids=[1, 2, 3]))
                while engine.has_unfinished:
                    engine.step()
        return None

    def _wild(self, case: WildCase) -> str | None:
        try:
            loaded = load_config(RUN, case.overrides, values=case.values)
        except ConfigError as error:
            return wild_problem(error)
        except NanofwError as error:
            return f"{type(error).__name__}: {error}"
        if problem := self._shown_problem(loaded):
            return problem
        try:
            check(loaded)
            select(loaded)
        except NanofwError as error:
            return f"a long message: {error}" if len(str(error)) > MAX_MESSAGE else None
        return None


def refusal_problem(case: Case, error: NanofwError) -> str | None:
    """A refusal names a value that is wrong, with its place, and no other one."""
    text, wrong = str(error), case.wrong
    if not wrong:
        return f"refused: {text}"
    named = False
    for source, key in _PLACE.findall(text):
        meant = [
            path for path in wrong if f"{key}.".startswith(f"{path}.") or key.startswith(f"{path}[")
        ]
        above = [path for path in wrong if path.startswith(f"{key}.")]
        if not meant and not above:
            return f"it names {key}, which is right: {text}"
        place = wrong[meant[0]].source if meant else source
        is_merged = bool(meant) and isinstance(wrong[meant[0]].value, dict)
        if place != source and not is_merged:
            return f"{key} is from {place}, not from {source}: {text}"
        named = True
    return None if named else f"it names none of {', '.join(wrong)}: {text}"


def wild_problem(error: ConfigError) -> str | None:
    """A refusal says where, briefly."""
    if len(str(error)) > MAX_MESSAGE:
        return f"a message of {len(str(error))} characters"
    is_list = error.key is None and "values cannot be used" in str(error)
    if error.source is None and not is_list:
        return f"it has no source: {error}"
    if str(error.source).endswith(".yaml") and error.key and error.line is None:
        is_whole = error.key == "base"
        return None if is_whole else f"it has no line: {error}"
    return None


def value_problem(case: Case, loaded: LoadedConfig) -> str | None:
    """Every value, its source, and what was dropped."""
    config: Any = plain(loaded.config)
    for key, item in case.expected.items():
        section, _, name = key.partition(".")
        found = config[section][name]
        if not is_option(key) and not _is(found, item.value):
            return f"{key} is {found!r}, not {item.value!r}"
        source = str(loaded.values.source((section, name)))
        if source != item.source and not isinstance(item.value, dict):
            return f"{key} comes from {item.source}, not from {source}"
    dropped = {dotted(item.path) for item in loaded.dropped}
    return None if dropped == case.dropped else f"dropped: {dropped}, not {case.dropped}"


def is_option(key: str) -> bool:
    return key.startswith("scheduler.") and key != "scheduler.name"


def _is(found: Any, expected: Any) -> bool:
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    return found == expected


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raise where the block takes too long or too much memory."""

    def stop(*_: Any) -> None:
        raise TooSlowError(f"it takes more than {MAX_SECONDS} seconds")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    usual = signal.signal(signal.SIGALRM, stop)
    before_s, _ = signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, usual)
        signal.setitimer(signal.ITIMER_REAL, before_s)  # that of the test, or none
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if grown > MAX_KILOBYTES:
        raise MemoryError(f"it takes {grown:,} kB")


@contextlib.contextmanager
def in_folder() -> Iterator[Fuzzer]:
    """A fuzzer in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield Fuzzer(Path(folder))


def main() -> None:
    first, count = map(int, sys.argv[1:3])
    problems = 0
    with in_folder() as fuzzer:
        for seed in range(first, first + count):
            if problem := fuzzer.problem(seed):
                problems += 1
                print(problem, flush=True)
    print(f"{count} configurations, {problems} problems")
    sys.exit(problems > 0)


if __name__ == "__main__":
    main()
