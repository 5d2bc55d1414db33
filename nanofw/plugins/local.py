"""Plugins from a file or folder named in `plugins.load`, without packaging."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from nanofw.errors import PluginError


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
        return f"nanofw_local_{stem}_{self.digest[:12]}"

    def load(self) -> ModuleType:
        """The module, executed at most once in a process. Lets its exceptions out."""
        if self.name in sys.modules:
            return sys.modules[self.name]
        is_folder = self.path.is_dir()
        spec = importlib.util.spec_from_file_location(
            self.name,
            self.path / "__init__.py" if is_folder else self.path,
            submodule_search_locations=[str(self.path)] if is_folder else None,
        )
        if spec is None or spec.loader is None:
            raise PluginError(f"plugins.load: {self.path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[self.name]
            raise
        return module


def local_modules(path: Path) -> list[LocalModule]:
    """What a path in `plugins.load` stands for.

    A file: itself. A folder with `__init__.py`: one package. Another folder: each `*.py` in it
    that does not start with an underscore, in alphabetical order.
    """
    path = path.resolve()
    if not path.exists():
        raise PluginError(f"{path} does not exist")
    if path.is_dir() and not (path / "__init__.py").exists():
        files = [file for file in sorted(path.glob("*.py")) if not file.name.startswith("_")]
        if not files:
            raise PluginError(f"{path} holds no Python file")
        return [LocalModule(file, digest(file)) for file in files]
    if path.is_file() and path.suffix != ".py":
        raise PluginError(f"{path} is not a Python file")
    return [LocalModule(path, digest(path))]


def digest(path: Path) -> str:
    """Sha256 over a file, or over all Python sources of a folder with their names."""
    total = hashlib.sha256()
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    for file in files:
        if path.is_dir():
            total.update(file.relative_to(path).as_posix().encode() + b"\0")
        total.update(file.read_bytes() + b"\0")
    return total.hexdigest()
