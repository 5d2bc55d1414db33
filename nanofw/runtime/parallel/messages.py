"""What the engine's process and its workers tell each other: plain data, encoded as msgpack.

Arrays are sent as their bytes. Nothing is pickled, and no message names a method.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from nanofw.contracts.executor import ExecutorFacts
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.plan import HostMasks, StepPlan, StepResult
from nanofw.contracts.requests import SamplingParams
from nanofw.errors import ExecutorError
from nanofw.narrowing import JsonObject
from nanofw.plugins import Entry


class RankLost(ExecutorError):
    """A collective failed because another rank is gone; the cause is there."""


class Message(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Base of all messages: an array that starts with the name of its type."""


# -- from the engine's process to a worker ------------------------------------------------


class ComponentData(msgspec.Struct, frozen=True):
    """A chosen plugin by name, and its options. Each process loads it itself."""

    name: str
    target: str
    api: str
    options_model: str | None
    options: JsonObject | None
    entry: Entry | None


class Start(Message, frozen=True):
    """The first message: everything that a rank is built from.

    Attributes:
        host: address of this rank for the others.
        shares_cores: all ranks share the cores of one host.
    """

    rank: int
    size: int
    device: str
    host: str
    shares_cores: bool
    spec: ModelSpec
    block_size: int
    num_blocks: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    memory_utilization: float
    overlap: bool
    cuda_graphs: bool
    prefill_graphs: bool
    options: JsonObject
    components: dict[str, ComponentData]
    logits_processors: list[ComponentData]


class Join(Message, frozen=True):
    """Where rank 0 waits for the others; `address` is that of `Listening`."""

    address: str
    host: str


class Plan(Message, frozen=True):
    """A plan, without what follows from the plan before; see `PlanEncoder`.

    Attributes:
        follows: each start is where the plan before ended.
    """

    plan: StepPlan
    follows: bool


class Masks(Message, frozen=True):
    """What the rows of the last plan that wait for the host may sample."""

    masks: HostMasks


class Check(Message, frozen=True):
    """Can sampler and logits processors do this?"""

    sampling: SamplingParams
    arguments: JsonObject


class GetFacts(Message, frozen=True):
    """What does the executor tell of itself?"""


class Stop(Message, frozen=True):
    """Leave."""


Command: TypeAlias = Start | Join | Plan | Masks | Check | GetFacts | Stop


# -- from a worker to the engine's process ------------------------------------------------


class Listening(Message, frozen=True):
    """Rank 0 waits for the others at this port of its host, or in this file."""

    address: str


class Ready(Message, frozen=True):
    """Weights are loaded, the pool is there, graphs are captured.

    Attributes:
        num_blocks: of the pool, the same on every rank.
        weight_bytes: parameters of this rank.
        host_bytes_before, peak_host_bytes: largest resident set of the process before it loaded
            anything, and now; pages of the mapped checkpoint count.
        facts: what its executor tells of its start.
    """

    num_blocks: int
    max_in_flight: int
    weight_bytes: int
    host_bytes_before: int
    peak_host_bytes: int
    facts: ExecutorFacts = ExecutorFacts()


class Done(Message, frozen=True):
    """A step is done.

    Attributes:
        digest: of the tokens: it must be the same on every rank.
        result: of rank 0 alone.
    """

    step: int
    digest: int
    result: StepResult | None = None


class Checked(Message, frozen=True):
    """Why not; None: it can."""

    reason: str | None


class Facts(Message, frozen=True):
    """What a rank's executor tells of itself."""

    facts: ExecutorFacts


class Failed(Message, frozen=True):
    """The last message of a rank that raised.

    Attributes:
        error: name of the exception's type if it is one of nanofw's, else empty.
        message: a sentence for the user.
        is_echo: it only noticed that another rank was gone.
    """

    error: str
    message: str
    traceback: str
    is_echo: bool


Reply: TypeAlias = Listening | Ready | Done | Checked | Facts | Failed


def _plain(value: Any) -> Any:
    """Turn a value that msgspec does not know into one that it knows."""
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "items"):
        return dict(value.items())
    raise TypeError(
        f"values of type {type(value).__name__} cannot be sent to the ranks of a tensor parallel "
        "run: only numbers, texts, bytes, lists and mappings of them can"
    )


def _packed(value: object) -> object:
    """The same for what only messages of our own hold: arrays and paths."""
    if isinstance(value, np.ndarray):
        if value.dtype == np.int32 and value.ndim == 1:  # nearly all of them
            return value.tobytes()
        return value.dtype.str, value.shape, value.tobytes()
    return str(value) if isinstance(value, Path) else _plain(value)


def _unpacked(kind: type, value: Any) -> Any:
    """The other side of `_packed`. Arrays are writable: they belong to the receiver."""
    if isinstance(value, bytes):
        return np.frombuffer(value, np.int32).copy()
    if kind is Path:
        return Path(value)
    dtype, shape, content = value
    return np.frombuffer(content, dtype).reshape(shape).copy()


_encoder = msgspec.msgpack.Encoder(enc_hook=_packed)
_check_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command, dec_hook=_unpacked)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply, dec_hook=_unpacked)


def encode(message: Message) -> bytes:
    """Encode a message.

    Raises:
        TypeError, OverflowError: arguments of a request that cannot be sent. Every request is
            checked before its first plan, so a `Check` refuses what would not arrive as it was.
    """
    encoder = _check_encoder if isinstance(message, Check) else _encoder
    return encoder.encode(message)


def encode_plan(fields: Mapping[str, object], *, follows: bool) -> bytes:
    """Encode these fields of a `Plan`; the others are those of an empty plan."""
    return _encoder.encode((Plan.__name__, fields, follows))


def decode_command(content: bytes) -> Command:
    return _commands.decode(content)


def decode_reply(content: bytes) -> Reply:
    return _replies.decode(content)
