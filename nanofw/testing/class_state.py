"""State that classes hold, which all components of one process would share."""

from __future__ import annotations

LONGEST = 80


def class_state(kind: type) -> dict[str, str]:
    """The data that a class and its bases hold, as text, by `Class.attribute`."""
    found: dict[str, str] = {}
    for cls in kind.__mro__[-2::-1]:  # without `object`
        for name, value in vars(cls).items():
            hidden = name.startswith(("__", "_abc_"))
            if not hidden and not callable(value) and not hasattr(value, "__get__"):
                found[f"{cls.__name__}.{name}"] = _text(value)
    return found


def check_class_state(before: dict[str, str], kind: type) -> None:
    """Nothing of a class changed since `class_state` was taken.

    Raises AssertionError, which names each attribute with what it was and what it became.
    """
    after = class_state(kind)
    changed = [
        f"{name} was {_short(before.get(name, 'not there'))} and became {_short(text)}"
        for name, text in after.items()
        if before.get(name) != text
    ]
    assert not changed, (
        f"state belongs to the object, since a process may have several: {'; '.join(changed)}"
    )


def _text(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # then it is compared by what keeps it from being shown
        return f"{type(value).__name__} ({type(error).__name__})"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
