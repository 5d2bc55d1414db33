"""A pytest plugin that parametrises tests over installed nanofw plugins.

Name it in a `conftest.py`; it is not an entry point, so pytest does not load it by itself:

    pytest_plugins = ["nanofw.testing.pytest_plugin"]

A test that takes `component` then runs once for each plugin that its marker names:

    @pytest.mark.nanofw_plugins("scheduler", distribution="my-package")
    def test_it_keeps_the_contract(component):
        check_scheduler(lambda: construct(component))
"""

from __future__ import annotations

from functools import cache

import pytest

from nanofw.plugins import Registry, build_registry
from nanofw.testing.components import installed


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "nanofw_plugins(kind, distribution=None, options={}): once for each installed plugin of "
        "the kind",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `component` its values."""
    marker = metafunc.definition.get_closest_marker("nanofw_plugins")
    if marker is None or "component" not in metafunc.fixturenames:
        return
    found = installed(*marker.args, registry=_registry(), **marker.kwargs)
    if not found:
        asked = ", ".join(
            [*map(repr, marker.args), *(f"{k}={v!r}" for k, v in marker.kwargs.items())]
        )
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: no plugin matches nanofw_plugins({asked}); "
            "is its package installed? A plugin with an option that has no default needs "
            "options={'its_name': {...}}"
        )
    metafunc.parametrize("component", found, ids=[item.name for item in found])


@cache
def _registry() -> Registry:
    """What is installed; read once for all tests."""
    return build_registry()
