"""Plugins from a file or folder named in `plugins.load`, without packaging."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import islice
from pathlib import Path
from types import CodeType, ModuleType

from nanofw.errors import PluginError
from nanofw.plugins.discovery import normalized

MAX_BYTES = 16 << 20
"""Of the sources of a local plugin."""
MAX_FILES = 2000
PREFIX = "nanofw_local_"
"""Of the names of local modules in `sys.modules`."""


@dataclass(frozen=True, slots=True)
class LocalModule:
    """A file, or a package folder, that can be imported under a name of its own.

    Attributes:
        path: the file, or the folder with `__init__.py`.
        digest: sha256 of its Python sources, in hex.
    """

    path: Path
    digest: str

    @property
    def name(self) -> str:
        """Name in `sys.modules`: other content is another module, in every process."""
        stem = re.sub(r"\W", "_", self.path.stem)
        return f"{PREFIX}{stem}_{self.digest[:12]}"

    def load(self) -> ModuleType:
        """The module, executed at most once in a process. Lets its exceptions out."""
        if self.name in sys.modules:
            return sys.modules[self.name]
        is_folder = self.path.is_dir()
        location = self.path / "__init__.py" if is_folder else self.path
        loader = _FromSource(self.name, str(location))
        spec = importlib.util.spec_from_file_location(
            self.name,
            location,
            loader=loader,
            submodule_search_locations=[str(self.path)] if is_folder else None,
        )
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.name] = module
        if _SUBMODULES not in sys.meta_path:
            sys.meta_path.insert(0, _SUBMODULES)
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[self.name]
            raise
        return module


class _FromSource(SourceFileLoader):
    """Compiles a file as it is now. Python tells the bytecode of an earlier content by seconds and
    size alone, so a file that was edited within a second could run as it was before."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Submodules(MetaPathFinder):
    """Finds the modules of local packages, so that they are compiled from their source, too."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(PREFIX):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _FromSource(spec.loader.name, spec.loader.path)
        return spec


_SUBMODULES = _Submodules()


def local_modules(path: Path) -> list[LocalModule]:
    """What a path in `plugins.load` stands for.

    A file: itself. A folder with `__init__.py`: one package. Another folder: each `*.py` in it
    that does not start with an underscore, in alphabetical order.
    """
    try:
        path = path.resolve()
        is_there = path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise PluginError(f"{path} cannot be looked up: {error}") from None
    if not is_there:
        raise PluginError(f"{path} does not exist")
    if path.is_dir() and not (path / "__init__.py").exists():
        files = [file for file in sorted(path.glob("*.py")) if not file.name.startswith("_")]
        if not files:
            raise PluginError(f"{path} holds no Python file")
        return [LocalModule(file, digest(file)) for file in files]
    if not path.is_dir() and path.suffix != ".py":
        raise PluginError(f"{path} is not a Python file")
    return [LocalModule(path, digest(path))]


def digest(path: Path) -> str:
    """Sha256 over a file, or over all Python sources of a folder with their names.

    Raises PluginError for what has no end, or is larger than sources are.
    """
    total = hashlib.sha256()
    num_bytes = 0
    for file in _sources(path):
        if not file.is_file():
            raise PluginError(f"{file} is not a regular file")
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        num_bytes += len(content)
        if num_bytes > MAX_BYTES:
            raise PluginError(f"{path} has more than {MAX_BYTES:,} bytes of Python")
        if path.is_dir():
            total.update(os.fsencode(file.relative_to(path).as_posix()) + b"\0")
        total.update(content + b"\0")
    return total.hexdigest()


def _sources(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = list(islice(path.rglob("*.py"), MAX_FILES + 1))
    if len(files) > MAX_FILES:
        raise PluginError(f"{path} has more than {MAX_FILES:,} Python files")
    return sorted(files)


def shown_module(name: str) -> str:
    """The name of a module for messages: of a local file its stem."""
    return re.sub(rf"^{PREFIX}(\w+)_[0-9a-f]{{12}}$", r"\1", name)


def told_apart(paths: Collection[Path], taken: Collection[str]) -> dict[Path, str]:
    """What local files are called: their stem, and so much of their path that no other is.

    Args:
        taken: names that others have.
    """
    names: dict[Path, str] = {}
    for path in paths:
        others = {normalized(name) for name in taken}
        for depth in range(1, len(path.parts) + 1):
            others_here = {normalized(_tail(other, depth)) for other in paths if other != path}
            names[path] = _tail(path, depth)
            if normalized(names[path]) not in others | others_here:
                break
        else:
            names[path] = str(path)
    return names


def _tail(path: Path, depth: int) -> str:
    """The stem with the folders above it, `depth` parts in all."""
    return "/".join((*path.parts[max(0, len(path.parts) - depth) : -1], path.stem))
