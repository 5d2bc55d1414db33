"""What the kit offers, what it costs to import, and that its page is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nanofw.testing
from nanofw.errors import UnknownPlugin
from nanofw.testing import SchedulerChecks, check_scheduler, construct, installed, load_component
from nanofw.testing.checks import run_checks
from tests.spawn import run_python

PAGE = Path(__file__).parents[2] / "docs" / "plugins" / "testing.md"


def test_importing_the_kit_imports_neither_torch_nor_pytest() -> None:
    code = "import sys, nanofw.testing; print({'torch', 'pytest', 'hypothesis'} & set(sys.modules))"
    assert run_python("-c", code).strip() == "set()"


def test_all_that_is_exported_is_there_and_described() -> None:
    for name in nanofw.testing.__all__:
        assert getattr(nanofw.testing, name).__doc__, name


def test_the_page_names_what_there_is() -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 11
    for block in blocks:
        scope: dict = {}
        exec(compile(block, str(PAGE), "exec"), scope)
        checks = [value for name, value in scope.items() if name.startswith("Test")]
        assert len(checks) == 1
        if issubclass(checks[0], SchedulerChecks):
            run_checks(checks[0]())


def test_one_installed_plugin_with_options() -> None:
    component = load_component("scheduler", "earliest_deadline_first", {"default_slack_s": 3})
    assert component.options.default_slack_s == 3
    check = construct(component)
    assert type(check).__name__ == "EarliestDeadlineFirst"
    with pytest.raises(UnknownPlugin, match="earliest_deadline_first"):
        load_component("scheduler", "earliest_deadline")


def test_installed_plugins_of_one_package() -> None:
    names = [component.name for component in installed("kv_allocator", "nanofw")]
    assert names == sorted(names)
    assert {"paged", "paged_prefix"} <= set(names)
    assert installed("kv_allocator", "no-such-package") == []


def test_installed_plugins_whose_options_have_no_defaults() -> None:
    fixed = {"requests": [{"prompt_tokens": 8, "output_tokens": 4}]}
    plain = {component.name for component in installed("workload", "nanofw")}
    given = installed("workload", "nanofw", options={"fixed": fixed})
    assert {component.name for component in given} == plain | {"fixed"}
    assert len(next(c for c in given if c.name == "fixed").options.requests) == 1
    assert "constant" in {component.name for component in installed("cost_model")}


def test_a_failure_names_its_check() -> None:
    class Fails(Exception):
        pass

    def factory(config):
        raise Fails

    with pytest.raises(Fails) as caught:
        check_scheduler(factory)
    assert caught.value.__notes__[0].startswith("in SchedulerChecks.test_")
