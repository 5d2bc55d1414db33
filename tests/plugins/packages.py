"""Installed packages without an installer: real dist-info folders and manifest sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from nanofw.plugins import KINDS

Install = Callable[..., Path]


def write_dist_info(
    folder: Path, name: str, version: str, points: Mapping[str, str], suffix: str = "dist-info"
) -> Path:
    info = folder / f"{name.replace('-', '_')}-{version}.{suffix}"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / ("METADATA" if suffix == "dist-info" else "PKG-INFO")).write_text(
        metadata, encoding="utf-8"
    )
    lines = [f"{point} = {module}" for point, module in points.items()]
    text = "\n".join(["[nanofw]", *lines, ""])
    (info / "entry_points.txt").write_text(text, encoding="utf-8")
    return info


def manifest(name: str, *, kind: str = "scheduler", extra: str = "", **fields: str) -> str:
    """Source of a manifest with one plugin, a class that has all methods of its kind."""
    given = {"api": repr(KINDS[kind].api), **fields}
    arguments = "".join(f", {key}={value}" for key, value in given.items())
    return f"""
from nanofw.plugins import KINDS, Plugin, Requirement, hookimpl

BASE = KINDS[{kind!r}].base
METHODS = dict.fromkeys(getattr(BASE, "__abstractmethods__", ()))
Target = type("Target", (BASE,), METHODS)
{extra}
@hookimpl
def {kind}():
    return Plugin({name!r}, ":Target"{arguments})
"""
