"""What must hold of a descriptor before a run may use it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel

import nanofw
from nanofw.contracts.kinds import KINDS
from nanofw.errors import ApiMismatch, ConfigError, PluginError
from nanofw.plugins.capabilities import capability_problems
from nanofw.plugins.descriptor import Plugin, Requirement
from nanofw.plugins.discovery import Discovery, Entry, normalized
from nanofw.plugins.local import shown_module


def check_descriptor(value: object, kind: str, module: str) -> Plugin:
    """The value that a hook returned, with `":Class"` targets made absolute, or PluginError."""
    where = f"{shown_module(module)}.{kind}()"
    if not isinstance(value, Plugin):
        raise PluginError(f"{where} returned {value!r}, not a Plugin")
    _check_types(value, where)
    if value.kind != kind:
        raise PluginError(
            f"{where} returned {value.name!r} with api {value.api!r}; "
            f"a {kind} states api {KINDS[kind].api!r}"
        )
    if ":" in value.name or not value.name:
        raise PluginError(f"{where}: {value.name!r} cannot be a name")
    target = f"{module}{value.target}" if value.target.startswith(":") else value.target
    if not all(target.partition(":")):
        raise PluginError(
            f"{where}: target {target!r} is not 'package.module:Class'; a class of the same "
            "module is ':Class'"
        )
    named = {
        name: f"{module}{given}"
        for name in ("options", "spec", "checks")
        if isinstance(given := getattr(value, name), str) and given.startswith(":")
    }
    return dataclasses.replace(value, target=target, **named)


def _check_types(value: Plugin, where: str) -> None:
    """Check the types of the fields at run time; annotations are not enforced."""
    texts = {name: getattr(value, name) for name in ("name", "target", "api", "summary")}
    for name, given in texts.items():
        if not isinstance(given, str):
            hint = f", ':{given.__name__}' for example" if isinstance(given, type) else ""
            raise PluginError(f"{where}: {name} should be a string{hint}, not {_shown(given)}")
    what = f"{where}: {value.name!r}"
    options: Any = value.options
    capabilities: Any = value.capabilities
    requires: Any = value.requires
    if not (options is None or isinstance(options, str)):
        check_options_model(options, what)
    _check_model_fields(value, what)
    checks: Any = value.checks
    if checks is not None and not (isinstance(checks, str) and checks.partition(":")[2]):
        raise PluginError(f"{what}: checks should be 'package.module:Class', not {checks!r}")
    if not isinstance(capabilities, Mapping):
        raise PluginError(f"{what}: capabilities should be a mapping, not {capabilities!r}")
    if problems := capability_problems(cast("Mapping[Any, Any]", capabilities)):
        raise PluginError(f"{what}: {'; '.join(problems)}")
    if not isinstance(requires, (tuple, list)):
        raise PluginError(f"{what}: requires should be a tuple, not {requires!r}")
    for item in cast("Sequence[Any]", requires):
        if not isinstance(item, (str, Requirement)):
            raise PluginError(f"{what}: requires names {item!r}; name a Requirement or a string")
        if isinstance(item, str):
            _check_pip_requirement(item, what)


def _check_model_fields(value: Plugin, what: str) -> None:
    """Check what only the manifest of a model states."""
    spec: Any = value.spec
    names: Any = value.architectures
    if spec is not None and not (isinstance(spec, str) and spec.partition(":")[2]):
        raise PluginError(f"{what}: spec should be 'package.module:function', not {spec!r}")
    items = cast("Sequence[Any]", names) if isinstance(names, (tuple, list)) else (None,)
    if not all(isinstance(name, str) for name in items):
        raise PluginError(f"{what}: architectures should be a tuple of names, not {names!r}")
    if value.kind != "model" and (spec is not None or names):
        raise PluginError(f"{what}: spec and architectures are for models, not for a {value.kind}")


def check_options_model(model: Any, what: str) -> type[BaseModel]:
    """The model, when it is one that can validate options; PluginError when not."""
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise PluginError(
            f"{what}: its options should be a pydantic model class, not {_shown(model)}; "
            "derive it from nanofw.plugins.Options"
        )
    if "name" in model.model_fields:
        raise PluginError(f"{what}: an option cannot be called 'name', which chooses the plugin")
    return model


def _shown(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)


def _check_pip_requirement(text: str, what: str) -> None:
    from nanofw.plugins.pip_requirements import parse  # few plugins have one

    try:
        parse(text)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise PluginError(
            f"{what}: requires {text!r}, which is not a pip requirement: {reason}"
        ) from None


def check_api(plugin: Plugin, entry: Entry) -> None:
    """Refuse a plugin that was written against another version of its contract."""
    offered = KINDS[plugin.kind].api
    if plugin.api != offered:
        raise ApiMismatch(
            f"{plugin.kind} {plugin.name!r} of {entry.origin} was written for {plugin.api}; "
            f"nanofw {nanofw.__version__} offers {offered}\n"
            f"  install a version of {entry.provider} for {offered}, or change it as "
            f"docs/plugins/migrating.md shows"
        )


def missing_requirements(plugin: Plugin) -> list[str]:
    """What the plugin needs and this environment lacks, each with its install line."""
    missing: list[str] = []
    for requirement in plugin.requires:
        if isinstance(requirement, Requirement):
            if not _importable(requirement.module):
                missing.append(f"needs the module {requirement.module}: {requirement.install}")
        else:
            from nanofw.plugins.pip_requirements import unmet

            if lack := unmet(requirement):
                missing.append(lack)
    return missing


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except Exception:  # a parent package that fails to import offers nothing
        return False


def check_versions(
    require: Mapping[str, str], found: Discovery, search_path: Sequence[str] | None
) -> None:
    """Hold the environment to `plugins.require`. Raises ConfigError with the key."""
    if not require:
        return
    from nanofw.plugins.pip_requirements import holds

    for name, text in require.items():
        key = f"plugins.require.{name}"
        version = _installed_version(name, found, search_path)
        try:
            is_held = holds(text, version or "0")
        except ValueError:
            raise ConfigError(
                f"{text!r} is not a version specifier like '>=0.3,<0.4'", key=key
            ) from None
        if version is None:
            raise ConfigError(f"{name} is not installed: pip install '{name}{text}'", key=key)
        if not is_held:
            raise ConfigError(
                f"{name} {version} is installed, {text} is required: pip install '{name}{text}'",
                key=key,
            )


def _installed_version(
    name: str, found: Discovery, search_path: Sequence[str] | None
) -> str | None:
    for entry in found.entries:
        if normalized(entry.provider) == normalized(name):
            return entry.version
    path = sys.path if search_path is None else list(search_path)
    for dist in importlib.metadata.distributions(name=name, path=path):
        return dist.version
    return None
