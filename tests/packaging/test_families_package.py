"""The package of two families, as a wheel in an environment of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.environment import ROOT, Environment, install_with_tests

PACKAGE = ROOT / "examples" / "plugins" / "nanofw-families"


@pytest.fixture(scope="module")
def with_families(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package's tests, beside which it is installed."""
    folder = tmp_path_factory.mktemp("families")
    return install_with_tests(environment, PACKAGE, "nanofw_families", folder)


@pytest.mark.slow
def test_both_give_the_logits_and_tokens_of_transformers(
    environment: Environment, with_families: Path
) -> None:
    done = environment.run(
        "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=with_families
    )
    assert done.returncode == 0, done.stdout
