"""The configuration's shape. It states intent; what is found out later has types of its own.

Everything is frozen, and unknown keys are errors. The options of a component sit beside its
`name`; they stay raw here and are validated by the model that the component's manifest names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, TypeAlias, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

from nanofw.contracts.kinds import KINDS, Kind
from nanofw.contracts.requests import SamplingParams
from nanofw.engine.request_checks import MAX_LOGPROBS
from nanofw.narrowing import JsonObject

Auto: TypeAlias = Literal["auto"]
Size: TypeAlias = Annotated[int, Field(ge=1, le=1 << 40)]
"""A length of arrays; beyond this bound numpy cannot even say that they do not fit in memory."""
Count: TypeAlias = Annotated[int, Field(ge=1, le=1 << 12)]
"""Of ranks, engines and the like."""
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=86400)]
"""A time that something may take, at most a day."""
Switch: TypeAlias = bool | Auto
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
S = TypeVar("S", bound="Section")


def _named(text: str) -> str:
    if not text.strip():
        raise ValueError("should name something")
    return text


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|(?!auto|cpu)[a-z]+(:(0|[1-9][0-9]{0,3}))?", text):
        raise ValueError("should be auto, cpu, cuda, cuda:1, ...; only accelerators have a number")
    return text


Name: TypeAlias = Annotated[str, AfterValidator(_named)]


class Section(BaseModel):
    """Base of all sections. Numbers are finite."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        defer_build=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )


class ComponentSection(Section):
    """A component's `name` and, beside it, its options."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    name: Name
    """Name of the plugin; write `distribution:name` if several distributions have a plugin of this
    name."""

    @property
    def options(self) -> Mapping[str, object]:
        """The keys beside `name`, as they were written."""
        return MappingProxyType(self.model_extra or {})


def with_sections(*at: str) -> Callable[[type[S]], type[S]]:
    """Add a section to a class for each kind in the table whose section it does not declare.

    Args:
        at: where the class stands in the configuration.
    """

    def add(declared: type[S]) -> type[S]:
        fields: JsonObject = {
            kind.section[-1]: _undeclared(kind)
            for kind in KINDS.values()
            if kind.section[:-1] == at and kind.section[-1] not in declared.model_fields
        }
        if not fields:
            return declared
        return create_model(
            declared.__name__, __base__=declared, __module__=declared.__module__, **fields
        )

    return add


def _undeclared(kind: Kind) -> tuple[object, object]:
    """Type and default of a kind's section."""
    if kind.is_list:
        return tuple[ComponentSection, ...], ()
    if kind.default is None:
        return ComponentSection | None, None
    return ComponentSection, ComponentSection(name=kind.default)


def _default(kind: str) -> str:
    """The name of a component in a run that names none."""
    name = KINDS[kind].default
    assert name is not None, kind
    return name


class ModelSection(Section):
    """Which model runs. Beside a `name` stand the options of that implementation."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    path: Name | None = None
    """Folder of a checkpoint, hub id, or `embedded:demo`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Element type of weights and KV. auto: float32 on a CPU, and the checkpoint's type on all
    other devices."""
    name: Name | None = None
    """The implementation; null: by the architecture that the checkpoint states."""
    weights: Literal["files", "random"] = "files"
    """random: no weights are read; the parameters get random numbers. Use it to measure speed.
    Every output says that the weights are random."""

    @property
    def options(self) -> Mapping[str, object]:
        """The keys beside those above, as they were written."""
        return MappingProxyType(self.model_extra or {})


class EngineSection(Section):
    """Bounds and modes of the engine."""

    device: Annotated[str, AfterValidator(_device)] = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    max_model_len: Size | None = None
    """The largest number of tokens of a request, prompt and output together; null: what the model
    supports."""
    max_num_seqs: Size = 256
    """The largest number of requests that run at once."""
    max_num_batched_tokens: Size = 8192
    """The largest number of tokens in a step."""
    batching: Literal["mixed", "prefill_first"] = "mixed"
    """prefill_first: a step has only prefill or only decode. mixed: a step may have both."""
    chunk_tokens: Size | None = None
    """Longest prefill chunk of one request; null: the step's budget."""
    max_partial_prefills: Size = 1
    """Requests that may be left in the middle of their prefill."""
    memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the device's memory that weights, activations and KV may take."""
    tensor_parallel_size: Count = 1
    """Devices over which each layer is split."""
    replicas: Count = 1
    """Engines of the same model, each in a process of its own, behind a router."""
    replica_restarts: Annotated[int, Field(ge=0, le=1 << 12)] = 5
    """How often a replica that is a local process is restarted. After a minute of service, the
    count begins again at 0."""
    cuda_graphs: Switch = "auto"
    """Replay recorded graphs instead of launching kernels one by one."""
    overlap: Switch = "auto"
    """Plan a step while the one before runs; auto: on, unless a CPU computes the model."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    """If a request has no seed, its seed is derived from this number and from the request's
    submission index."""


class AllocatorSection(ComponentSection):
    """Where KV lives. All keys but `name` and the component's options belong to the engine."""

    block_size: Size | Auto = "auto"
    """Tokens in a block; auto: the first that all components accept."""
    num_blocks: Size | Auto = "auto"
    """Blocks in the pool; auto: as many as fit."""
    check_every: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    """To find faults: check all blocks each time after this number of steps. This is slow. 0:
    never."""


@with_sections("executor")
class ExecutorSection(ComponentSection):
    """Who carries out the plans."""

    cost_model: ComponentSection | None = None
    """How long a simulated step takes, for executors that ask for one."""


@with_sections("input")
class InputSection(Section):
    """Where requests come from: at most one of `prompts`, `file` and `workload`. The choice of a
    higher layer is used."""

    prompts: tuple[str | Mapping[str, object], ...] | None = None
    """A list of prompts. Each is a text, or an object with the keys that a line of a JSONL file
    has."""
    file: Path | None = None
    """JSONL or text, one request per line; `-` is standard input."""
    format: Literal["auto", "text", "jsonl"] = "auto"
    """Format of the file; auto: decided by its suffix, or, if the suffix is unknown, by its first
    line."""
    workload: ComponentSection | None = None
    """Generated traffic."""


class OutputSection(Section):
    """What is written."""

    file: Path | None = None
    """Results as JSONL, in the order of the input; `-`: on standard output; null: texts to read on
    the screen."""
    token_times: bool = False
    """Write the time of every token into each result."""
    steps: Path | None = None
    """File with a line of JSON for each step: tokens, rows, blocks, seconds, preemptions; null: not
    written."""
    decisions: Path | None = None
    """File for a decision log, for `nanofw why` and `nanofw replay`; null: not written."""
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """Log probabilities of this number of alternatives per token; null: not computed."""


class LoggingSection(Section):
    """What is written to standard error."""

    level: LogLevel = "warning"
    """Level of all modules of nanofw."""
    modules: Annotated[Mapping[str, LogLevel], Field(max_length=1000)] = {}
    """A level for single modules or packages: `nanofw.plugins: debug`."""


class PluginsSection(Section):
    """Which plugins a run may choose from."""

    only: tuple[Name, ...] | None = None
    """Which installed plugins may be chosen, besides the built-in ones: a list of distributions, or
    of plugins as KIND.NAME; null: all of them."""
    disable: tuple[Name, ...] = ()
    """Distributions or KIND.NAMEs that may not be chosen."""
    load: tuple[Path, ...] = ()
    """Local files or folders with plugins."""
    require: Mapping[Name, str] = {}
    """Distribution -> version specifier that must hold."""
    override: Mapping[Name, Name] = {}
    """KIND.NAME -> the distribution to use if several offer the name."""
    strict: bool = False
    """If you ask for a feature that a component does not support: true: an error; false: the
    feature is switched off with a warning."""


class ClientSection(Section):
    """Clients that may use the server, each with its own key. The configuration never contains the
    key itself."""

    name: Name
    """Name of the client for policies and metrics."""
    key_env: Name | None = None
    """Environment variable that holds the key."""
    key_file: Path | None = None
    """File that holds the key; blanks around it do not count."""
    names_clients: bool = False
    """For a gateway that other clients use: its requests may name the client that they belong
    to."""
    max_requests: Size | None = None
    """Prompts of this client that may wait or run at once; null:
    `server.limits.max_client_requests`."""
    requests_per_minute: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Prompts that the client may send in a minute; null: any number."""
    tokens_per_minute: Annotated[float, Field(gt=0, le=1e12)] | None = None
    """How many tokens the client's prompts and answers may have in a minute, counted when a request
    ends; null: any number."""


class ServerLimits(Section):
    """Limits of the server. If a request exceeds a limit, it is refused at once and does not
    wait."""

    max_requests: Size = 1024
    """Prompts that wait or run at once; further ones get status 429."""
    max_client_requests: Size | None = None
    """The same for each client; null: `max_requests`."""
    queue_timeout_s: Seconds | None = 120.0
    """How long a request may wait for its first step before it gets status 429."""
    max_body_bytes: Size = 8 << 20
    """Largest body of a request, in bytes."""
    max_prompts: Size = 256
    """The largest number of prompts in one request."""
    max_messages: Size = 2048
    """Most messages of a chat."""
    max_tools: Size = 128
    """Most tools of a chat."""
    max_stop_strings: Size = 16
    """Most stop strings of a request."""
    max_schema_bytes: Size = 64 << 10
    """The largest size in bytes of a request's JSON schema, and also of all its tools together."""
    read_timeout_s: Seconds = 30.0
    """Longest time to receive the head of a request, and then its body."""
    write_timeout_s: Seconds = 30.0
    """How long a client may leave data unread before its connection is closed."""
    keep_alive_s: Seconds = 75.0
    """How long a connection may be idle between two requests."""
    drain_s: Annotated[float, Field(ge=0, le=86400)] = 30.0
    """How long open requests may go on after the server was asked to end."""


class TracesSection(Section):
    """OpenTelemetry traces of requests."""

    endpoint: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    """Address at which a collector takes OTLP over HTTP, with the path
    (http://127.0.0.1:4318/v1/traces); null: the environment variables of OpenTelemetry are used."""
    service_name: Name = "nanofw"
    """Name of this server in the traces."""


class ServerSection(Section):
    """`nanofw serve`."""

    host: Name = "127.0.0.1"
    """Address to listen on; with `0.0.0.0` other machines can connect."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on. 0: any free port. When the server is ready, it prints a line with the
    port."""
    model_names: tuple[Name, ...] = ()
    """Names under which clients ask for the model. If the list is empty, the name is `model.path`,
    or, if that is a folder, the name of the folder."""
    clients: tuple[ClientSection, ...] = ()
    """Who may use the server. An empty list: everyone who reaches it."""
    cors_origins: tuple[Name, ...] = ()
    """Origins of web pages whose scripts may use it."""
    tool_format: Name = "auto"
    """Format of tool calls: `hermes`, a format from a package, or `none`; auto: the format that the
    chat template uses."""
    reasoning: Name = "auto"
    """Format of reasoning: `think`, a format from a package, or `none`; auto: the format that the
    chat template uses."""
    traces: TracesSection | None = None
    """OpenTelemetry spans of every request; null: no spans are made."""
    log_requests: bool = True
    """A line of JSON on standard error for each request that ended."""
    failure_exit_s: Annotated[float, Field(ge=0, le=86400)] | None = 5.0
    """After the engine has failed, the server still answers for this number of seconds. Then it
    ends with exit code 3, so that a supervisor can restart it. null: it does not end."""
    limits: ServerLimits = ServerLimits()


# Sections of kinds that stand here have a type of their own; others come from the table of kinds.
@with_sections()
class Config(Section):
    """One run."""

    extra_known_keys: ClassVar[tuple[str, ...]] = ("base",)
    """Keys of a file that are gone once it is loaded."""

    model: ModelSection = ModelSection()
    engine: EngineSection = EngineSection()
    scheduler: ComponentSection = ComponentSection(name=_default("scheduler"))
    kv_allocator: AllocatorSection = AllocatorSection(name=_default("kv_allocator"))
    attention_backend: ComponentSection = ComponentSection(name=_default("attention_backend"))
    sampler: ComponentSection = ComponentSection(name=_default("sampler"))
    logits_processors: tuple[ComponentSection, ...] = ()
    """Applied in this order."""
    executor: ExecutorSection = ExecutorSection(name=_default("executor"))
    router: ComponentSection = ComponentSection(name=_default("router"))
    sampling: SamplingParams = SamplingParams(temperature=0.7, top_p=0.95, max_tokens=128)
    """Defaults of requests."""
    input: InputSection = InputSection()
    output: OutputSection = OutputSection()
    server: ServerSection = ServerSection()
    logging: LoggingSection = LoggingSection()
    plugins: PluginsSection = PluginsSection()


def section_class(section: tuple[str, ...]) -> type[Section]:
    """The class of a section; of a list, that of its items."""
    found: object = Config
    for key in section:
        found = found.model_fields[key].annotation
        while not isinstance(found, type) or not issubclass(found, Section):
            found = get_args(found)[0]  # optional, or a list
    return found


def _core_keys(section: tuple[str, ...]) -> frozenset[str]:
    """The keys of a section that are not options of its component."""
    below = {kind.section[-1] for kind in KINDS.values() if kind.section[:-1] == section}
    return frozenset(section_class(section).model_fields) - below


COMPONENT_SECTIONS: Mapping[tuple[str, ...], frozenset[str]] = MappingProxyType(
    {kind.section: _core_keys(kind.section) for kind in KINDS.values() if not kind.is_list}
)
"""Where components are named, and the keys there that are not the component's options."""

INPUT_CHOICES = ("prompts", "file", "workload")
