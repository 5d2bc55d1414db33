"""Logging levels as the configuration asks for them."""

from __future__ import annotations

import logging

from nanofw.config.schema import LoggingSection


def set_levels(section: LoggingSection) -> None:
    """Set the levels of nanofw's loggers; where messages go is the application's choice."""
    logging.getLogger("nanofw").setLevel(section.level.upper())
    for module, level in section.modules.items():
        logging.getLogger(module).setLevel(level.upper())


def log_to_stderr() -> None:
    """Show nanofw's messages on standard error, for the command line."""
    logger = logging.getLogger("nanofw")
    if logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
