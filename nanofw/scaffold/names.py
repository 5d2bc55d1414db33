"""The names of a new package: of its plugin, distribution, module and class."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import keyword
import re
import sys
from dataclasses import dataclass

import nanofw.plugins
from nanofw.contracts.kinds import KINDS
from nanofw.errors import NanofwError, UnknownPlugin, near, shown
from nanofw.plugins.discovery import GROUP, normalized

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ARCHITECTURE = re.compile(r"[A-Z][A-Za-z0-9]*")
_DISTRIBUTION = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", re.IGNORECASE)
LONGEST = 60
NOUNS = {
    "model": "model",
    "scheduler": "policy",
    "kv_allocator": "allocator",
    "attention_backend": "backend",
    "sampler": "sampler",
    "logits_processor": "processor",
    "executor": "executor",
    "cost_model": "cost_model",
    "workload": "workload",
    "router": "router",
}
"""What the module of a plugin is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageNames:
    """Everything that a new package is called.

    Attributes:
        name: of the plugin, what a configuration writes.
        distribution: what pip installs, and the folder.
        module: what Python imports.
        class_name: of the plugin's class.
        is_host: a logits processor that works on the host.
    """

    kind: str
    name: str
    distribution: str
    module: str
    class_name: str
    is_host: bool = False

    @property
    def noun(self) -> str:
        """The module that holds the class."""
        return NOUNS[self.kind]


def names_of(
    kind: str, name: str, distribution: str | None = None, *, is_host: bool = False
) -> PackageNames:
    """The names of a new package.

    Args:
        distribution: None: `nanofw-` and the plugin's name.
        is_host: of a logits processor: a `HostProcessor`.

    Raises:
        UnknownPlugin: there is no such kind.
        NanofwError: a name cannot be one, or is taken.
    """
    if kind not in KINDS:
        raise UnknownPlugin(f"no kind {kind!r}{near(kind, KINDS)}; kinds: {', '.join(KINDS)}")
    if is_host and kind != "logits_processor":
        raise NanofwError(f"a {kind} has one form: --host is for a logits_processor alone")
    _check_name(kind, name)
    lower = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    distribution = distribution or f"nanofw-{lower.replace('_', '-')}"
    if not _DISTRIBUTION.fullmatch(distribution) or len(distribution) > LONGEST:
        raise NanofwError(
            f"{shown(distribution)} cannot be the name of a package: letters, digits, '-', '_' and "
            f"'.', a letter or digit first and last, at most {LONGEST} in all"
        )
    module = normalized(distribution).replace("-", "_")
    _check_module(module, distribution, f"{kind}.{name}")
    class_name = name if kind == "model" else "".join(map(str.capitalize, name.split("_")))
    if class_name in (*nanofw.plugins.__all__, "None", "True", "False"):
        class_name += "".join(map(str.capitalize, NOUNS[kind].split("_")))
    return PackageNames(
        kind=kind, name=name, distribution=distribution, module=module, class_name=class_name,
        is_host=is_host,
    )  # fmt: skip


def _check_name(kind: str, name: str) -> None:
    if kind == "model":
        what = "the architecture of its checkpoints, such as MyForCausalLM: letters and digits"
        is_name = _ARCHITECTURE.fullmatch(name)
    else:
        what = "small letters, digits and '_', a letter first"
        is_name = _NAME.fullmatch(name)
    if not is_name or len(name) > LONGEST or keyword.iskeyword(name):
        raise NanofwError(f"{shown(name)} cannot be the name of a {kind}: {what}, no keyword")
    builtin = importlib.metadata.distribution("nanofw").entry_points.select(group=GROUP)
    if f"{kind}.{name}" in builtin.names:
        raise NanofwError(f"nanofw has a {kind} {name!r} itself: choose a name of your own")


def _check_module(module: str, distribution: str, entry: str) -> None:
    """Raise where the module would hide another one, or could not be imported."""
    if not module.isidentifier() or keyword.iskeyword(module):
        raise NanofwError(
            f"the package {distribution!r} would hold the module {module!r}, which Python cannot "
            "import: choose another name with --package"
        )
    is_hidden = importlib.util.find_spec(module) is not None and not _offers(distribution, entry)
    if module in sys.stdlib_module_names or is_hidden:
        raise NanofwError(
            f"the package {distribution!r} would hold the module {module!r}, which is installed "
            "already: choose another name with --package"
        )


def _offers(distribution: str, entry: str) -> bool:
    """Whether the package is installed with that plugin: an author who begins once more."""
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return entry in found.entry_points.select(group=GROUP).names
