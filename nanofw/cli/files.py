"""Files that commands read and write; a file that is read is never overwritten."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanofw.config.load import LoadedConfig

STDIN = STDOUT = "-"
"""Stands for a standard stream where a file is named."""
PENDING_SUFFIX = ".pending"
"""Of the file with results that wait for earlier ones."""


def check_writable(path: Path, key: str, read: Iterable[str | Path] = ()) -> None:
    """Find out before hours of runs, not after, that their result cannot be written.

    Args:
        key: what named the path, for the message.
        read: files that the command reads; they may not be overwritten.

    Raises:
        ConfigError: it cannot, or would overwrite one of them.
    """
    from nanofw.errors import ConfigError

    for name in read:
        if is_same_file(path, Path(name)):
            raise ConfigError(f"would overwrite {name}; name another file", key=key)
    is_new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", key=key) from None
    if is_new:  # a command that fails later leaves no empty file
        path.unlink()


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Name the file in an error of a write to it: Python names it only when it is opened."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def files_read(loaded: LoadedConfig, words: Sequence[str] = ()) -> set[str]:
    """Files that a configuration came from, with those that the command line names."""
    from nanofw.config.layers import looks_like_file

    names = {source.name for source in loaded.values.sources.values()} | {*words}
    return {name for name in names if looks_like_file(name)}


def is_same_file(left: Path, right: Path) -> bool:
    """Whether two paths lead to one regular file, or will when it is made."""
    try:
        if left.exists() and not left.is_file():
            return False  # a device, a pipe
        return left.resolve() == right.resolve() or left.samefile(right)
    except OSError:
        return False


def check_outputs(loaded: LoadedConfig, name: str | None = None) -> None:
    """Refuse to write over what the run reads, or two outputs into one file.

    Raises:
        ConfigError: with the key of the output.
    """
    section, prompts = loaded.config.output, loaded.config.input.file
    read = [("the prompts", prompts)] if prompts is not None and prompts.name != STDIN else []
    read += [("the configuration", Path(file)) for file in files_read(loaded, [name or ""])]
    outputs = (
        ("file", section.file), ("steps", section.steps), ("decisions", section.decisions)
    )  # fmt: skip
    for key, path in outputs:
        if path is None or (key == "file" and path.name == STDOUT):
            continue
        pending = path.with_name(path.name + PENDING_SUFFIX)
        for what, other in read:
            if is_same_file(path, other):
                message = f"would overwrite {what}, {other}; name another file"
                raise loaded.error(message, ("output", key))
            if key == "file" and is_same_file(pending, other):
                message = f"its {pending.name} would overwrite {what}, {other}; name another file"
                raise loaded.error(message, ("output", key))
        read.append((f"output.{key}", path))
        read.append((f"the pending results of output.{key}", pending))
