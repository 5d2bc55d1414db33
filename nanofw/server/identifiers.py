"""Names of requests and answers. They are not secrets: a guessed one opens nothing."""

from __future__ import annotations

import random

_dice = random.Random()  # uuid4 asks the system each time, which costs more than all of this


def new_identifier() -> str:
    """32 digits of base 16 that no other answer has."""
    return f"{_dice.getrandbits(128):032x}"
