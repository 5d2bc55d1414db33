"""What all tests share."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # processes that tests start need not compile again
pytest_plugins = ["nanofw.testing.pytest_plugin"]
# How fast an example is made or tried says something of the machine only.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


def pytest_configure() -> None:
    """Interrupts are heard, also where the tests run in the background of a shell, which
    ignores them there and for everything started from there."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
