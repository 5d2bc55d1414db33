"""What is held of every `check` of a request's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def check_arguments(
    check: Callable[[object], object], right: Iterable[object], wrong: Iterable[object]
) -> None:
    """Wrong ones are refused with a ValueError that says something, right ones pass."""
    for argument in right:
        check(argument)
    for argument in wrong:
        reason = None
        try:
            check(argument)
        except ValueError as error:
            reason = str(error)
        assert reason is not None, f"check lets the arguments {argument!r} pass"
        assert reason, f"check refuses {argument!r} without a reason"
