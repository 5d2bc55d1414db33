"""From a configuration and a registry to the components of a run: chosen and checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from nanofw.assembly import capabilities
from nanofw.assembly.capabilities import Needs
from nanofw.assembly.explanation import Choice, Explanation, Feature
from nanofw.assembly.model_source import read_spec
from nanofw.assembly.threads import let_idle_threads_sleep
from nanofw.config.load import LoadedConfig
from nanofw.config.schema import ComponentSection
from nanofw.config.source import DEFAULT, KeyPath, dotted
from nanofw.contracts.model_spec import ModelSpec, tensor_parallel_sizes
from nanofw.errors import (
    CapabilityError,
    ConfigError,
    ModelError,
    NanofwError,
    PluginError,
    PluginLoadError,
)
from nanofw.plugins import Component, Entry, PluginSettings, Registry, load_plugin
from nanofw.plugins.checks import missing_requirements
from nanofw.plugins.manager import build_registry, guarded
from nanofw.plugins.names import near
from nanofw.plugins.status import options_model

AUTO = "auto"
AUTO_ORDER: Mapping[str, tuple[str, ...]] = {
    "executor": ("torch",),
    "attention_backend": ("triton", "flash_attn", "sdpa"),
}
"""What `auto` tries, in this order. Only these: no installation changes what `auto` takes."""

BUILT_BY_EXECUTOR = ("model", "attention_backend", "sampler", "logits_processor")
"""What an executor builds itself unless its capability `needs` says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The components of a run and every resolved fact.

    Attributes:
        components: by kind; `logits_processor` is a list in YAML order.
        spec: the model, in the dtype of the run.
        device: `cpu`, `cuda:1`, ...
        num_blocks: None: as many as fit.
        virtual_time: the executor moves the clock.
    """

    loaded: LoadedConfig
    registry: Registry
    components: Mapping[str, Any]
    spec: ModelSpec
    device: str
    max_model_len: int
    block_size: int
    num_blocks: int | None
    overlap: bool
    cuda_graphs: bool
    prefill_graphs: bool
    virtual_time: bool
    explanation: Explanation


def registry_for(loaded: LoadedConfig) -> Registry:
    """The registry that a configuration's `plugins` section asks for."""
    section = loaded.config.plugins
    settings = PluginSettings(
        only=section.only,
        disable=section.disable,
        load=section.load,
        require=section.require,
        override=section.override,
    )
    try:
        return build_registry(settings)
    except ConfigError as error:
        raise loaded.placed(error) from None


def select(loaded: LoadedConfig, registry: Registry | None = None) -> Selection:
    """Choose, validate options, match capabilities. Builds nothing.

    Raises:
        ConfigError: a value or an option, with key, file and line.
        PluginError: a component that is not there, not unique, or broken.
        CapabilityError: with every reason at once.
        ModelError: the checkpoint is not there or not supported.
    """
    let_idle_threads_sleep()  # before anything imports torch
    return _Selector(loaded, registry or registry_for(loaded)).run()


def check(loaded: LoadedConfig, registry: Registry | None = None) -> list[str]:
    """Find every named component and validate its options; reads no model, imports no target.

    Returns `kind name (origin)` of each. Raises as `select` does.
    """
    return _Selector(loaded, registry or registry_for(loaded)).check()


def choose_workload(loaded: LoadedConfig, registry: Registry) -> Component:
    """The component that `input.workload` names. Raises as `select` does."""
    section = loaded.config.input.workload
    path: KeyPath = ("input", "workload")
    if section is None:
        raise loaded.error("is required here: name a workload, poisson say", path)
    selector = _Selector(loaded, registry)
    component = selector.find_component(path, section, "workload")
    if selector.option_errors:
        raise selector.option_errors[0]
    return component


@dataclass(slots=True)
class _Selector:
    """The work of `select`, one paragraph per method."""

    loaded: LoadedConfig
    registry: Registry
    choices: list[Choice] = field(default_factory=list[Choice])
    claims: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    reasons: list[str] = field(default_factory=list[str])
    option_errors: list[ConfigError] = field(default_factory=list[ConfigError])

    def run(self) -> Selection:
        config = self.loaded.config
        executor = self._candidates(("executor",), config.executor, "executor")[0]
        wanted = executor.plugin.capabilities.get("needs", BUILT_BY_EXECUTOR)
        virtual = bool(executor.plugin.capabilities.get("virtual_time", False))
        spec = self._spec(weights="model" in wanted)
        device = self._device(executor)
        spec = self._in_dtype(spec, device, virtual)
        needs = self._needs(spec, device)
        components: dict[str, Any] = {
            "executor": self._take(executor, config.executor.name, needs),
            "scheduler": self._choose(("scheduler",), config.scheduler, "scheduler", needs),
            "kv_allocator": self._choose(
                ("kv_allocator",), config.kv_allocator, "kv_allocator", needs
            ),
        }
        self._choose_built_by_executor(components, wanted, needs)
        size = needs.block_size or capabilities.block_size(self.claims)
        if isinstance(size, str):
            self.reasons.append(size)
            size = capabilities.PREFERRED_BLOCK_SIZE
        overlap = self._overlap(device, virtual)
        graphs = self._cuda_graphs(device)
        prefill_graphs = self._prefill_graphs(graphs)
        self._raise_all([overlap, graphs])
        self._check_ranks(spec, wanted)
        max_model_len = self._max_model_len(spec)
        facts = self._facts(spec, device, max_model_len, size)
        return Selection(
            loaded=self.loaded,
            registry=self.registry,
            components=components,
            spec=spec,
            device=device,
            max_model_len=max_model_len,
            block_size=size,
            num_blocks=None
            if config.kv_allocator.num_blocks == AUTO
            else config.kv_allocator.num_blocks,
            overlap=overlap.value,
            cuda_graphs=graphs.value,
            prefill_graphs=prefill_graphs.value,
            virtual_time=virtual,
            explanation=Explanation(
                choices=tuple(self.choices),
                features=(overlap, graphs, prefill_graphs),
                facts=facts,
                notes=self._notes(wanted),
            ),
        )

    def check(self) -> list[str]:
        """The work of `check`."""
        config = self.loaded.config
        executor = self._candidates(("executor",), config.executor, "executor")[0]
        wanted = executor.plugin.capabilities.get("needs", BUILT_BY_EXECUTOR)
        sections: list[tuple[KeyPath, str, ComponentSection | None]] = [
            (("executor",), "executor", config.executor),
            (("executor", "cost_model"), "cost_model", config.executor.cost_model),
            (("scheduler",), "scheduler", config.scheduler),
            (("kv_allocator",), "kv_allocator", config.kv_allocator),
            (("input", "workload"), "workload", config.input.workload),
        ]
        if "attention_backend" in wanted:
            section = config.attention_backend
            sections.append((("attention_backend",), "attention_backend", section))
        if "sampler" in wanted:
            sections.append((("sampler",), "sampler", config.sampler))
        for index, section in enumerate(config.logits_processors):
            sections.append((("logits_processors", index), "logits_processor", section))
        self.option_errors.clear()
        found: list[str] = []
        for path, kind, section in sections:
            if section is not None and section.name != AUTO:
                component = self._candidates(path, section, kind)[0]
                found.append(f"{kind} {component.name}{component.origin_text}")
        self._raise_all([])
        return found

    def find_component(self, path: KeyPath, section: ComponentSection, kind: str) -> Component:
        """One named component with its options; errors of these are noted."""
        return self._candidates(path, section, kind)[0]

    # -- the model and the device ---------------------------------------------------------

    def _spec(self, *, weights: bool) -> ModelSpec:
        path = self.loaded.config.model.path
        if path is None:
            raise self.loaded.error(
                "is required: a folder, a hub id, or embedded:demo", ("model", "path")
            )
        return read_spec(path, weights=weights)

    def _device(self, executor: Component) -> str:
        """The first device that the executor has here, or the one that was asked for."""
        asked = self.loaded.config.engine.device
        claimed = [str(item) for item in executor.plugin.capabilities.get("devices", ())]
        if asked != AUTO:
            return asked
        for device in claimed:
            if device == capabilities.ANY:
                return "cpu"
            if not isinstance(capabilities.probe(executor, device), str):
                return device
        return claimed[0] if claimed else "cpu"

    def _in_dtype(self, spec: ModelSpec, device: str, virtual: bool) -> ModelSpec:
        asked = self.loaded.config.model.dtype
        if asked == AUTO:
            asked = "float32" if device == "cpu" and not virtual else spec.dtype
        return dataclasses.replace(spec, dtype=asked)

    def _needs(self, spec: ModelSpec, device: str) -> Needs:
        size = self.loaded.config.kv_allocator.block_size
        return Needs(
            device=device,
            dtype=spec.dtype,
            spec=spec,
            tensor_parallel_size=self.loaded.config.engine.tensor_parallel_size,
            replicas=self.loaded.config.engine.replicas,
            block_size=None if size == AUTO else size,
        )

    def _num_blocks(self) -> int | None:
        asked = self.loaded.config.kv_allocator.num_blocks
        return None if asked == AUTO else asked

    def _check_ranks(self, spec: ModelSpec, wanted: Sequence[str]) -> None:
        asked = self.loaded.config.engine.tensor_parallel_size
        possible = tensor_parallel_sizes(spec)
        if "model" in wanted and asked not in possible:
            raise self.loaded.error(
                f"{asked} ranks cannot share {spec.num_heads} query heads, {spec.num_kv_heads} KV "
                f"heads and {spec.intermediate_size} intermediate features evenly; this model "
                f"takes {', '.join(map(str, possible))}",
                ("engine", "tensor_parallel_size"),
            )

    def _max_model_len(self, spec: ModelSpec) -> int:
        asked = self.loaded.config.engine.max_model_len
        if asked is not None and asked > spec.max_model_len:
            raise self.loaded.error(
                f"{asked} is longer than the model, which supports {spec.max_model_len}",
                ("engine", "max_model_len"),
            )
        return asked or spec.default_model_len

    # -- components -----------------------------------------------------------------------

    def _choose_built_by_executor(
        self, components: dict[str, Any], wanted: Sequence[str], needs: Needs
    ) -> None:
        config = self.loaded.config
        if "model" in wanted:
            name = config.model.name or self._architecture(needs.spec)
            section = ComponentSection(name=name)
            components["model"] = self._choose(("model",), section, "model", needs)
        if "attention_backend" in wanted:
            components["attention_backend"] = self._choose(
                ("attention_backend",), config.attention_backend, "attention_backend", needs
            )
        if "sampler" in wanted:
            components["sampler"] = self._choose(("sampler",), config.sampler, "sampler", needs)
        components["logits_processor"] = self._processors(needs, wanted)
        self._cost_model(components, wanted, needs)

    def _architecture(self, spec: ModelSpec) -> str:
        """The checkpoint's, when there is a model for it."""
        known = self.registry.names("model")
        if spec.architecture in known or any(
            e.name == spec.architecture for e, _ in self.registry.left_out
        ):
            return spec.architecture
        raise ModelError(
            f"{spec.path}: architecture {spec.architecture!r} is not supported"
            f"{near(spec.architecture, known)}; supported: {', '.join(known)}. Others can be "
            "added as plugins of kind model, see docs/models.md"
        )

    def _processors(self, needs: Needs, wanted: Sequence[str]) -> list[Component]:
        """In YAML order. An executor that builds none still runs with those on the host."""
        chosen: list[Component] = []
        for index, section in enumerate(self.loaded.config.logits_processors):
            path: KeyPath = ("logits_processors", index)
            component = self._choose(path, section, "logits_processor", needs)
            if any(component.name == other.name for other in chosen):
                raise self.loaded.error(f"{component.name} is listed twice", (*path, "name"))
            if "logits_processor" in wanted or is_host(component):
                chosen.append(component)
            else:
                self.reasons.append(
                    f"logits_processor {component.name!r}: the executor "
                    f"{self.loaded.config.executor.name!r} runs no processor on its device"
                )
        return chosen

    def _cost_model(self, components: dict[str, Any], wanted: Sequence[str], needs: Needs) -> None:
        section = self.loaded.config.executor.cost_model
        if section is None:
            return
        path: KeyPath = ("executor", "cost_model")
        if "cost_model" not in wanted:
            raise self.loaded.error("only a simulated executor takes one", path)
        components["cost_model"] = self._choose(path, section, "cost_model", needs)

    def _choose(
        self, path: KeyPath, section: ComponentSection, kind: str, needs: Needs
    ) -> Component:
        """The named component, or the first of the `auto` list that fits."""
        candidates = self._candidates(path, section, kind)
        if section.name != AUTO:
            return self._take(candidates[0], section.name, needs)
        passed_over: list[tuple[str, str]] = []
        for component in candidates:
            reasons = self._unfit(component, needs)
            if not reasons:
                return self._take(component, AUTO, needs, passed_over)
            passed_over.append((component.name, "; ".join(reasons)))
        listed = "\n    ".join(f"{name}: {reason}" for name, reason in passed_over)
        raise CapabilityError(f"no {kind} fits:\n    {listed or 'none is installed'}")

    def _candidates(self, path: KeyPath, section: ComponentSection, kind: str) -> list[Component]:
        if section.name != AUTO:
            return [self._load(path, section, self._find(path, kind, section.name))]
        if kind not in AUTO_ORDER:
            raise self.loaded.error(f"auto does not exist for {kind}; name one", (*path, "name"))
        installed = set(self.registry.names(kind))
        names = [name for name in AUTO_ORDER[kind] if name in installed]
        if section.options:
            keys = ", ".join(section.options)
            raise self.loaded.error(f"{keys}: options need a component's name beside them", path)
        if not names:
            raise CapabilityError(f"auto finds no {kind}: tried {', '.join(AUTO_ORDER[kind])}")
        return [self._load(path, section, self._find(path, kind, name)) for name in names]

    def _find(self, path: KeyPath, kind: str, name: str) -> Entry:
        try:
            return self.registry.find(kind, name)
        except PluginError as error:
            source = self.loaded.values.source((*path, "name"))
            raise type(error)(f"{source}: {dotted((*path, 'name'))}: {error}") from None

    def _load(self, path: KeyPath, section: ComponentSection, entry: Entry) -> Component:
        plugin = load_plugin(entry)
        component = Component(plugin=plugin, entry=entry)
        missing = missing_requirements(plugin)
        if missing and section.name != AUTO:
            raise PluginLoadError(f"{plugin.kind} {plugin.name!r} of {entry.origin} {missing[0]}")
        if missing:
            return component
        model = options_model(component.plugin, component.entry)
        try:
            options = guarded(
                lambda: self.loaded.options(path, _raw_options(section, model), model),
                f"{plugin.kind} {plugin.name!r} of {entry.origin}",
                "validate its options",
                passing=(NanofwError,),
            )
        except ConfigError as error:
            self.option_errors.append(error)
            options = None
        return dataclasses.replace(component, options=options)

    def _unfit(self, component: Component, needs: Needs) -> list[str]:
        """Every reason why `auto` passes a candidate over."""
        if missing := missing_requirements(component.plugin):
            return missing
        try:
            claims = capabilities.probe(component, needs.device)
        except PluginLoadError as error:
            return [str(error).splitlines()[0]]
        if isinstance(claims, str):
            return [claims]
        return capabilities.problems(component, claims, needs)

    def _take(
        self,
        component: Component,
        requested: str,
        needs: Needs,
        passed_over: Sequence[tuple[str, str]] = (),
    ) -> Component:
        """Note a choice, its claims, and whatever it lacks."""
        claims: Mapping[str, Any] | str = component.plugin.capabilities
        if not self.option_errors:
            claims = capabilities.probe(component, needs.device)
        label = f"{component.kind} {component.name!r}"
        if isinstance(claims, str):
            self.reasons.append(f"{label}: {claims}")
            claims = {}
        else:
            found = capabilities.problems(component, claims, needs)
            self.reasons += [f"{label}: {reason}" for reason in found]
        self.claims[label] = claims
        self.choices.append(
            Choice(
                kind=component.kind,
                name=component.name,
                requested=requested,
                origin=component.entry.origin if component.entry else "",
                passed_over=tuple(passed_over),
                options=_plain_options(component.options) if component.options else {},
                claims=dict(claims),
            )
        )
        return component

    # -- features -------------------------------------------------------------------------

    def _overlap(self, device: str, virtual: bool) -> Feature:
        asked = self.loaded.config.engine.overlap
        lacking = capabilities.lacking(self.claims, capabilities.OVERLAP_KINDS, "overlap")
        if asked == AUTO:
            on_cpu = device == "cpu" and not virtual
            reason = "on CPU planning and computing share the cores" if on_cpu else ""
            return _feature("overlap", asked, not on_cpu, reason, lacking)
        return _feature("overlap", asked, bool(asked), "", lacking)

    def _cuda_graphs(self, device: str) -> Feature:
        asked = self.loaded.config.engine.cuda_graphs
        lacking = capabilities.lacking(self.claims, capabilities.GRAPH_KINDS, "cuda_graph")
        has_device = device.partition(":")[0] == "cuda"
        if has_device or asked is False:
            return _feature("cuda_graphs", asked, asked is not False, "", lacking)
        reason = f"device {device} has none"
        return Feature(
            name="cuda_graphs", asked=asked, value=False, reason=reason, is_downgrade=asked is True
        )

    def _prefill_graphs(self, graphs: Feature) -> Feature:
        """Whether graphs may serve steps with prefill too. No downgrade: decode steps have them."""
        kinds = capabilities.PREFILL_GRAPH_KINDS
        lacking = capabilities.lacking(self.claims, kinds, "cuda_graph_prefill")
        reason = "" if graphs.value else "cuda_graphs is off"
        return _feature("prefill_graphs", AUTO, graphs.value, reason, lacking)

    def _raise_all(self, features: Sequence[Feature]) -> None:
        if len(self.option_errors) == 1:
            raise self.option_errors[0]
        if self.option_errors:
            lines = [str(error) for error in self.option_errors]
            raise ConfigError("\n  ".join(["the options of several components are wrong", *lines]))
        reasons = list(self.reasons)
        if self.loaded.config.plugins.strict:
            reasons += [
                f"engine.{feature.name}: {feature.reason} (plugins.strict)"
                for feature in features
                if feature.is_downgrade
            ]
        if reasons:
            listed = "\n    ".join(reasons)
            raise CapabilityError(f"the chosen components cannot work together:\n    {listed}")

    # -- the record -----------------------------------------------------------------------

    def _facts(
        self, spec: ModelSpec, device: str, max_model_len: int, block_size: int
    ) -> dict[str, Any]:
        parameters = spec.num_layer_parameters + spec.num_head_parameters * (
            1 if spec.tie_word_embeddings else 2
        )
        return {
            "model": spec.path,
            "architecture": spec.architecture,
            "device": device,
            **{name: count for name, count in self._counts().items() if count > 1},
            "dtype": spec.dtype,
            "rope_type": spec.rope.get("rope_type", "default"),
            "num_windowed_layers": sum(window is not None for window in spec.sliding_windows),
            "max_model_len": max_model_len,
            "block_size": block_size,
            "num_matrix_parameters": parameters,
            "matrix_bytes": parameters * spec.bytes_per_element,
            "kv_bytes_per_token": spec.kv_bytes_per_token,
            "kv_bytes_per_block": spec.kv_bytes_per_token * block_size,
            "eos_token_ids": list(spec.eos_token_ids),
        }

    def _counts(self) -> dict[str, int]:
        """Of what a run of one process has one each."""
        engine = self.loaded.config.engine
        return {
            "tensor_parallel_size": engine.tensor_parallel_size,
            "replicas": engine.replicas,
        }

    def _notes(self, wanted: Sequence[str]) -> tuple[str, ...]:
        unused = [
            f"{kind} ({source}) is not used: the executor builds none"
            for kind in ("attention_backend", "sampler")
            if kind not in wanted and (source := self.loaded.values.source((kind,))) != DEFAULT
        ]
        dropped = [
            f"{dotted(item.path)} = {item.value!r} ({item.source}) was dropped: {item.reason}"
            for item in self.loaded.dropped
        ]
        return (*self.registry.notes, *dropped, *unused)


def _plain_options(options: BaseModel) -> dict[str, Any]:
    """For the record; what is no plain value there is its text."""
    return options.model_dump(mode="json", fallback=str)


def is_host(component: Component) -> bool:
    """Whether a logits processor works on token ids on the host."""
    return component.plugin.capabilities.get("needs_history") == "host"


def _raw_options(section: ComponentSection, model: type[BaseModel] | None) -> dict[str, Any]:
    """The options as written; keys of the core go along where the component declares them."""
    fields = model.model_fields if model else {}
    core = section.model_dump(mode="json", include=set(type(section).model_fields) - {"name"})
    return {**{key: core[key] for key in core if key in fields}, **section.options}


def _feature(
    name: str, asked: Any, wanted: bool, off_reason: str, lacking: Sequence[str]
) -> Feature:
    """On when it is wanted and every component claims it."""
    if not wanted:
        reason = off_reason or "as configured"
        return Feature(name=name, asked=asked, value=False, reason=reason)
    if lacking:
        reason = f"not claimed by {', '.join(lacking)}"
        return Feature(
            name=name, asked=asked, value=False, reason=reason, is_downgrade=asked is True
        )
    return Feature(name=name, asked=asked, value=True, reason="every component claims it")
