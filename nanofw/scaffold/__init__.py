"""Packages for plugins: `nanofw plugins new` writes one that works, for an author to change."""

from __future__ import annotations

from nanofw.scaffold.names import PackageNames, names_of
from nanofw.scaffold.package import KINDS_OFFERED, package_files, write_package

__all__ = ["KINDS_OFFERED", "PackageNames", "names_of", "package_files", "write_package"]
