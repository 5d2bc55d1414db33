"""This process and its Ray cluster: joined by the first engine, left after the last."""

from __future__ import annotations

import logging
import os
import socket
import threading

import ray
from ray.exceptions import RayActorError, RayError

from nanofw.errors import ConfigError

_CONNECT_TIMEOUT_S = 5.0

_lock = threading.Lock()
_num_users = 0
_was_joined_here = False


def join(address: str | None) -> None:
    """Connect this process, unless it is connected already. Each call needs its `leave`.

    Raises:
        ConfigError: there is no such cluster.
    """
    global _num_users, _was_joined_here
    with _lock:
        if not ray.is_initialized():
            _check_reachable(address)
            # A library sends usage reports only if its user asks for them.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            try:
                ray.init(
                    address=address, include_dashboard=False, log_to_driver=False,
                    logging_level=logging.ERROR,
                )  # fmt: skip
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise _unreachable(error) from error
            _was_joined_here = True
        _num_users += 1


def leave() -> None:
    """Disconnect after the last user, if `join` connected; a cluster of one's own ends then."""
    global _num_users, _was_joined_here
    with _lock:
        _num_users -= 1
        if _num_users == 0 and _was_joined_here:
            _was_joined_here = False
            ray.shutdown()


def _check_reachable(address: str | None) -> None:
    """Ray itself would try for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(error) from None


def _unreachable(error: Exception) -> ConfigError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ConfigError(f"no Ray cluster can be reached: {reason}", key="executor.address")


def cause(error: RayError) -> str:
    """The sentence of Ray's report that says what happened, without its advice."""
    lines = [line.strip() for line in str(error).splitlines()]
    if isinstance(error, RayActorError):
        lines = [line for line in lines if line.startswith("The actor ")][-1:] or lines
    return " ".join(lines).partition(" Some common causes")[0]
