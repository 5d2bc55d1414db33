"""What this machine and this Python have, for `nanofw doctor`. Nothing here raises."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Required, TypedDict

import nanofw
from nanofw.machine import (
    matrix_instructions,
    num_free_cores,
    num_usable_cores,
    processor_name,
)

if TYPE_CHECKING:
    from types import ModuleType

    from nanofw.plugins.discovery import Entry


class SystemFacts(TypedDict):
    """Versions and the host."""

    nanofw: str
    python: str
    system: str
    processor: str
    matrix_instructions: str | None
    cores: int
    free_cores: int
    omp_num_threads: str | None
    memory_bytes: int | None
    nvidia_driver: str | None


class PackageFacts(TypedDict, total=False):
    """A package: its state is `ok`, or what is wrong."""

    name: Required[str]
    use: Required[str]
    version: Required[str | None]
    state: Required[str]
    install: str


class DeviceFacts(TypedDict, total=False):
    """A device, and a sentence in `problem` where something is amiss."""

    device: Required[str]
    name: str
    total_bytes: int | None
    free_bytes: int
    capability: str
    cuda: str | None
    problem: str


class BackendFacts(TypedDict, total=False):
    """An attention backend: usable, or why not."""

    name: Required[str]
    origin: str
    usable: Required[bool]
    reason: str


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution that nanofw can use.

    Attributes:
        name: as pip knows it.
        module: what is imported.
        use: what it is for.
        install: the line that brings it.
        needed: without it no model runs.
    """

    name: str
    module: str
    use: str
    install: str
    needed: bool = False


PACKAGES = (
    Package("torch", "torch", "running models", "pip install torch", needed=True),
    Package("safetensors", "safetensors", "weights", "pip install safetensors", needed=True),
    Package("tokenizers", "tokenizers", "text", "pip install tokenizers", needed=True),
    Package("triton", "triton", "kernels on NVIDIA GPUs", "pip install 'nanofw[triton]'"),
    Package("flash-attn", "flash_attn", "attention, Ampere and later", "pip install flash-attn"),
    Package(
        "tokenspeed-fa3",
        "flash_attn_interface",
        "attention, Hopper",
        "pip install 'nanofw[fa3]'",
    ),
    Package(
        "flash-attn-4",
        "flash_attn.cute",
        "attention, Hopper and Blackwell",
        "pip install flash-attn-4",
    ),
    Package("llguidance", "llguidance", "structured output", "pip install 'nanofw[structured]'"),
    Package("huggingface_hub", "huggingface_hub", "models by hub id", "pip install 'nanofw[hub]'"),
    Package("transformers", "transformers", "nanofw verify", "pip install 'nanofw[verify]'"),
    Package("ray", "ray", "executor ray, replicas", "pip install 'nanofw[ray]'"),
    Package("scipy", "scipy", "nanofw compare, calibrate", "pip install 'nanofw[compare]'"),
    Package("statsmodels", "statsmodels", "nanofw compare", "pip install 'nanofw[compare]'"),
)
"""What is looked for, in the order in which it is shown."""


def system() -> SystemFacts:
    """Versions and the host: plain values."""
    return {
        "nanofw": f"{nanofw.__version__} in {Path(nanofw.__file__).parent}",
        "python": f"{platform.python_version()} in {sys.prefix}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor_name(),
        "matrix_instructions": ", ".join(matrix_instructions()) or None,
        "cores": num_usable_cores(),
        "free_cores": num_free_cores(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "memory_bytes": _main_memory(),
        "nvidia_driver": _nvidia_driver(),
    }


def packages() -> list[PackageFacts]:
    """Version of each package, or why it cannot be used, with its install line."""
    return [_package(item) for item in PACKAGES]


def devices() -> list[DeviceFacts]:
    """The CPU, and what torch sees beside it; a sentence in `problem` where something is amiss."""
    torch = _imported("torch")
    if isinstance(torch, str):
        return [{"device": "none", "problem": f"torch cannot be imported: {torch}"}]
    cpu: DeviceFacts = {
        "device": "cpu", "name": processor_name(), "total_bytes": _main_memory(),
    }  # fmt: skip
    return [cpu, *_accelerators(torch)]


def backends(device: str) -> list[BackendFacts]:
    """Each installed attention backend on a device: usable, or why not."""
    from nanofw.plugins import build_registry

    try:
        entries = [e for e in build_registry().entries if e.kind == "attention_backend"]
    except Exception as error:
        return [{"name": "all", "usable": False, "reason": f"{type(error).__name__}: {error}"}]
    return [_backend(entry, device) for entry in entries]


def _package(item: Package) -> PackageFacts:
    found: PackageFacts = {"name": item.name, "use": item.use, "version": None, "state": "ok"}
    try:
        found["version"] = importlib.metadata.version(item.name)
    except importlib.metadata.PackageNotFoundError:
        if not _is_importable(item.module):
            state = "missing, needed" if item.needed else "missing"
            return {**found, "state": state, "install": item.install}
    if item.module in ("torch", "triton"):  # compiled for one platform, and quick enough to try
        error = _imported(item.module)
        if isinstance(error, str):
            found["state"] = f"cannot be imported: {error}"
            found["install"] = item.install
    return found


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except Exception:  # a submodule's parent is imported
        return False


def _imported(module: str) -> ModuleType | str:
    """The module, or a line that says why it cannot be imported."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # a broken build raises what it likes
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _accelerators(torch: ModuleType) -> list[DeviceFacts]:
    try:
        if torch.cuda.is_available():
            return [_cuda_device(torch, index) for index in range(torch.cuda.device_count())]
    except Exception as error:
        return [{"device": "cuda", "problem": f"{type(error).__name__}: {error}"}]
    driver = _nvidia_driver()
    if driver is None:
        return []
    reason = (
        "this torch was built without CUDA; install one that was: https://pytorch.org"
        if torch.version.cuda is None
        else f"torch for CUDA {torch.version.cuda} cannot use it: is the driver recent enough?"
    )
    return [{"device": "cuda", "problem": f"there is an NVIDIA driver ({driver}), but {reason}"}]


def _cuda_device(torch: ModuleType, index: int) -> DeviceFacts:
    found: DeviceFacts = {"device": f"cuda:{index}"}
    try:
        facts = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
    except Exception as error:  # in use by others, or fallen off the bus
        return {**found, "problem": f"{type(error).__name__}: {error}"}
    return {
        **found,
        "name": facts.name,
        "capability": f"{facts.major}.{facts.minor}",
        "total_bytes": total,
        "free_bytes": free,
        "cuda": torch.version.cuda or torch.version.hip,
    }


def _backend(entry: Entry, device: str) -> BackendFacts:
    from nanofw.assembly.claims import probe
    from nanofw.plugins import Component, load_plugin
    from nanofw.plugins.checks import missing_requirements
    from nanofw.plugins.component import options_model

    found: BackendFacts = {"name": entry.name, "origin": entry.origin, "usable": False}
    try:
        plugin = load_plugin(entry)
        missing = missing_requirements(plugin)
        if missing:
            return {**found, "reason": "; ".join(missing)}
        model = options_model(plugin, entry)
        component = Component(plugin=plugin, options=model() if model else None, entry=entry)
        claims = probe(component, device)
    except Exception as error:
        return {**found, "reason": (str(error).splitlines() or [type(error).__name__])[0]}
    if isinstance(claims, str):
        return {**found, "reason": claims}
    uses = claims.get("uses")
    return {**found, "usable": True, "reason": f"uses {uses}" if uses else ""}


def _main_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _nvidia_driver() -> str | None:
    """The driver's version, or None without a driver."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    if found:
        return found[1]
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout.splitlines() or [None])[0]
