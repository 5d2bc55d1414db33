"""A real browser for tests of pages, where one is installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest


def chromium() -> Iterator[Any]:
    """Chromium with nothing in the way; skips the test where it is not installed."""
    programs = [
        shutil.which("chromium") or shutil.which("google-chrome"),
        shutil.which("chromedriver"),
    ]
    webdriver = pytest.importorskip("selenium.webdriver")
    if not all(programs):
        pytest.skip("no chromium with chromedriver here")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for argument in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync",
        "disable-background-networking", "disable-component-update", "window-size=1100,900",
    ):  # fmt: skip
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=programs[1])
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()
