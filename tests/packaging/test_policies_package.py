"""The package of published policies, as a wheel in an environment of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.environment import ROOT, Environment, install_with_tests

PYTEST = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
PACKAGE = ROOT / "examples" / "plugins" / "nanofw-policies"


@pytest.fixture(scope="module")
def with_policies(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package's tests, beside which it is installed."""
    folder = tmp_path_factory.mktemp("policies")
    return install_with_tests(environment, PACKAGE, "nanofw_policies", folder, "claims")


@pytest.mark.slow
def test_each_policy_does_what_its_paper_says(
    environment: Environment, with_policies: Path
) -> None:
    wanted = "not TestWeighted and not TestFast and not TestSarathi and not TestAndes"
    wanted += " and not TestToken and not TestPrefix and not TestSLO"
    done = environment.run(*PYTEST, "-k", wanted, "-m", "not slow", cwd=with_policies)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_each_policy_keeps_the_contract(environment: Environment, with_policies: Path) -> None:
    done = environment.run(*PYTEST, cwd=with_policies)
    assert done.returncode == 0, done.stdout
