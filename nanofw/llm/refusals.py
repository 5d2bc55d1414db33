"""The boundary between a request and the run: whatever goes wrong with a request refuses it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from nanofw.errors import NanofwError, RequestError, refusal_reason
from nanofw.narrowing import is_object


@contextmanager
def refused_alone(request_id: str | None) -> Generator[None, None, None]:
    """Around everything that reads, encodes or adds a request.

    Raises:
        RequestError: instead of whatever was raised within, with the reason.
        NanofwError: as it is: the run cannot go on.
    """
    try:
        yield
    except NanofwError:
        raise
    except Exception as error:
        raise RequestError(request_id or "", refusal_reason(error)) from error


def id_of(prompt: object) -> str | None:
    """The id that a prompt brings, before anything else of it is read; None: none is usable."""
    if not is_object(prompt):
        return None
    request_id = prompt.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, (str, int)):
        return None
    try:
        return str(request_id) or None
    except ValueError:  # a number of more digits than Python writes
        return None
