from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nanofw.errors import ConfigError, DuplicatePlugin, UnknownPlugin
from nanofw.plugins import PluginSettings, Registry, build_registry
from tests.plugins.packages import Install


@pytest.fixture
def search(site: Path) -> list[str]:
    return [str(site)]


def build(search: list[str], environ: dict[str, str] | None = None, **settings: Any) -> Registry:
    return build_registry(
        PluginSettings(**settings),
        environ=environ or {},
        search_path=search,
    )


def test_B090_unknown_name_lists_neighbours_known_names_and_searched_distributions(
    install: Install, search: list[str]
) -> None:
    install("outside", {"scheduler.deadline": "m", "scheduler.lottery": "m"}, version="0.3")
    with pytest.raises(UnknownPlugin) as caught:
        build(search).find("scheduler", "deadlin")
    text = str(caught.value)
    assert "did you mean 'deadline'" in text
    assert "known: deadline, lottery" in text
    assert "searched: outside 0.3" in text


def test_B090_a_name_in_the_allow_list_that_is_not_installed_is_an_error(
    install: Install, search: list[str]
) -> None:
    install("nanofw-deadline", {"scheduler.deadline": "m"})
    with pytest.raises(UnknownPlugin, match="did you mean 'nanofw-deadline'"):
        build(search, only=("nanofw-deadlines",))
    with pytest.raises(UnknownPlugin, match="NANOFW_PLUGINS names 'foo'"):
        build(search, {"NANOFW_PLUGINS": "foo"})


def test_B091_a_duplicate_name_is_an_error_naming_both(install: Install, search: list[str]) -> None:
    install("first", {"sampler.top": "m"}, version="1.0")
    install("second", {"sampler.top": "n"}, version="2.0")
    registry = build(search)
    with pytest.raises(DuplicatePlugin) as caught:
        registry.find("sampler", "top")
    text = str(caught.value)
    assert "first 1.0" in text
    assert "second 2.0" in text
    assert registry.find("sampler", "first:top").provider == "first"
    assert registry.find("sampler", "Second:top").provider == "second"
    with pytest.raises(UnknownPlugin, match="offered by: first 1.0, second 2.0"):
        registry.find("sampler", "third:top")


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_B091_the_result_does_not_depend_on_the_order_of_installation(
    install: Install, search: list[str], order: tuple[str, str]
) -> None:
    for name in order:
        install(name, {"sampler.top": f"of_{name}"})
    registry = build(search, override={"sampler.top": "second"})
    assert registry.find("sampler", "top").module == "of_second"


def test_override_replaces_a_built_in_knowingly(install: Install, search: list[str]) -> None:
    install("nanofw", {"scheduler.fcfs": "builtin"})
    install("outside", {"scheduler.fcfs": "theirs"})
    with pytest.raises(DuplicatePlugin, match="plugins.override"):
        build(search).find("scheduler", "fcfs")
    registry = build(search, override={"scheduler.fcfs": "outside"})
    assert registry.find("scheduler", "fcfs").provider == "outside"
    assert registry.find("scheduler", "nanofw:fcfs").provider == "nanofw"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"scheduler.fcfs": "outsid"}, "did you mean 'outside'"),
        ({"scheduler.fcfsx": "outside"}, "did you mean 'fcfs'"),
        ({"schedulers.fcfs": "outside"}, "did you mean 'scheduler'"),
    ],
)
def test_an_override_that_means_nothing_is_an_error(
    install: Install, search: list[str], override: dict[str, str], message: str
) -> None:
    install("outside", {"scheduler.fcfs": "theirs"})
    with pytest.raises(ConfigError, match=message) as caught:
        build(search, override=override)
    assert caught.value.key == f"plugins.override.{next(iter(override))}"


def test_narrowing_keeps_built_ins_and_says_what_was_left_out(
    install: Install, search: list[str]
) -> None:
    install("nanofw", {"scheduler.fcfs": "builtin"})
    install("one", {"scheduler.a": "m"})
    install("two", {"scheduler.b": "m", "scheduler.c": "m"})
    assert build(search, only=("one",)).names("scheduler") == ["a", "fcfs"]
    assert build(search, only=("scheduler.b",)).names("scheduler") == ["b", "fcfs"]
    assert build(search, {"NANOFW_PLUGINS": ""}).names("scheduler") == ["fcfs"]
    both = build(search, {"NANOFW_PLUGINS": "two"}, only=("two", "one"))
    assert both.names("scheduler") == ["b", "c", "fcfs"]
    with pytest.raises(UnknownPlugin, match="of one 1.0 is left out by NANOFW_PLUGINS"):
        both.find("scheduler", "a")


def test_disable_takes_away_and_notes_what_it_does_not_know(
    install: Install, search: list[str]
) -> None:
    install("nanofw", {"scheduler.fcfs": "builtin", "scheduler.other": "builtin"})
    registry = build(search, disable=("scheduler.fcfs", "scheduler.othr"))
    assert registry.names("scheduler") == ["other"]
    with pytest.raises(UnknownPlugin, match=r"left out by plugins\.disable"):
        registry.find("scheduler", "fcfs")
    assert any("did you mean 'scheduler.other'" in note for note in registry.notes)


def test_require_holds_versions(install: Install, search: list[str]) -> None:
    install("outside", {"scheduler.a": "m"}, version="0.3.1")
    build(search, require={"outside": ">=0.3,<0.4"})
    for require, message in [
        ({"outside": ">=0.4"}, r"outside 0.3.1 is installed, >=0.4 is required: pip install"),
        ({"absent": ">=1"}, r"absent is not installed: pip install 'absent>=1'"),
        ({"outside": "newest"}, r"not a version specifier"),
    ]:
        with pytest.raises(ConfigError, match=message) as caught:
            build(search, require=require)
        assert caught.value.key == f"plugins.require.{next(iter(require))}"


def test_an_unknown_kind_gets_a_near_match(search: list[str]) -> None:
    with pytest.raises(UnknownPlugin, match="did you mean 'kv_allocator'"):
        build(search).find("kv_alocator", "paged")
