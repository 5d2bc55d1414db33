"""The package of a published sampler and processor, as a wheel in an environment of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.environment import ROOT, Environment, install_with_tests

PACKAGE = ROOT / "examples" / "plugins" / "nanofw-sampling"


@pytest.fixture(scope="module")
def with_sampling(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package's tests, beside which it is installed."""
    folder = tmp_path_factory.mktemp("sampling")
    return install_with_tests(environment, PACKAGE, "nanofw_sampling", folder)


@pytest.mark.slow
def test_both_keep_their_contracts_and_do_what_they_should(
    environment: Environment, with_sampling: Path
) -> None:
    done = environment.run(
        "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=with_sampling
    )
    assert done.returncode == 0, done.stdout
