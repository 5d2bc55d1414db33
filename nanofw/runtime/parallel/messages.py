"""What the engine's process and its workers tell each other: plain data, encoded as msgpack.

Arrays travel as their bytes. Nothing is pickled, and no message names a method.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.requests import SamplingParams


class Message(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Base of all messages: an array that starts with the name of its type."""


class Array(msgspec.Struct, array_like=True, frozen=True):
    """Any numpy array."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @staticmethod
    def of(array: NDArray[Any]) -> Array:
        return Array(array.dtype.str, array.shape, array.tobytes())

    def array(self) -> NDArray[Any]:
        """A writable copy."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape).copy()


# -- from the engine's process to a worker ------------------------------------------------


class EntryData(msgspec.Struct, frozen=True):
    """Where a plugin comes from (`nanofw.plugins.Entry`)."""

    kind: str
    name: str
    module: str
    provider: str
    version: str
    path: str | None


class ComponentData(msgspec.Struct, frozen=True):
    """A chosen plugin by name, and its options. Each process loads it itself."""

    name: str
    target: str
    api: str
    options_model: str | None
    options: dict[str, Any] | None
    entry: EntryData | None


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
    options: dict[str, Any]
    components: dict[str, ComponentData]
    logits_processors: list[ComponentData]


class Join(Message, frozen=True):
    """Where rank 0 waits for the others."""

    port: int
    host: str


class NewRowData(msgspec.Struct, array_like=True, frozen=True):
    """`NewRow`: all tokens of the request, whatever phase it is in."""

    row: int
    request_id: str
    token_ids: bytes
    num_prompt_tokens: int
    block_ids: bytes
    sampling: SamplingParams
    seed: int
    sample_index: int
    arguments: dict[str, Any]


class Plan(Message, frozen=True):
    """`StepPlan`, as a change against the plan before.

    Attributes:
        same_rows: `rows`, `num_tokens` and `samples` are those of the plan before, and left out.
        follows: each start is where the plan before ended, and `starts` is left out.
    """

    step: int
    num_decodes: int
    same_rows: bool = False
    follows: bool = False
    rows: bytes = b""
    num_tokens: bytes = b""
    samples: bytes = b""
    starts: bytes = b""
    block_rows: bytes = b""
    block_positions: bytes = b""
    block_ids: bytes = b""
    new: list[NewRowData] = []
    removed: bytes = b""
    copies: bytes = b""
    host_rows: bytes = b""
    lookahead: int = 0


class Masks(Message, frozen=True):
    """`HostMasks`."""

    step: int
    bits: Array


class Check(Message, frozen=True):
    """Can sampler and logits processors do this?"""

    sampling: SamplingParams
    arguments: dict[str, Any]


class Inquire(Message, frozen=True):
    """What has happened so far?"""


class Stop(Message, frozen=True):
    """Leave."""


Command: TypeAlias = Start | Join | Plan | Masks | Check | Inquire | Stop


# -- from a worker to the engine's process ------------------------------------------------


class Listening(Message, frozen=True):
    """Rank 0 waits for the others at this port of its host."""

    port: int


class Ready(Message, frozen=True):
    """Weights are loaded, the pool is there, graphs are captured.

    Attributes:
        num_blocks: of the pool, the same on every rank.
        weight_bytes: parameters of this rank.
        host_bytes_before, peak_host_bytes: largest resident set of the process before it loaded
            anything, and now; pages of the mapped checkpoint count.
        start_seconds: what the construction of its executor spent its time on.
    """

    num_blocks: int
    max_in_flight: int
    weight_bytes: int
    host_bytes_before: int
    peak_host_bytes: int
    start_seconds: dict[str, float] = {}


class LogprobsData(msgspec.Struct, array_like=True, frozen=True):
    """`TokenLogprobs`."""

    token_logprobs: Array
    ranks: Array
    top_ids: Array
    top_logprobs: Array


class Done(Message, frozen=True):
    """A step is done.

    Attributes:
        digest: of the tokens: it must be the same on every rank.
        result: of rank 0 alone.
    """

    step: int
    digest: int
    result: ResultData | None = None


class ResultData(msgspec.Struct, array_like=True, frozen=True):
    """`StepResult` without its number."""

    token_ids: bytes
    failed: bytes | None
    logprobs: dict[int, LogprobsData]
    prompt_logprobs: dict[int, LogprobsData]
    seconds: float | None


class Checked(Message, frozen=True):
    """Why not; None: it can."""

    reason: str | None


class Facts(Message, frozen=True):
    """Counts of a rank: steps replayed from graphs, and others by reason."""

    graph_steps: dict[str, int]


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
    """What msgspec does not know, as something that it does."""
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "items"):
        return dict(value.items())
    raise TypeError(
        f"values of type {type(value).__name__} cannot be sent to the ranks of a tensor parallel "
        "run: only numbers, texts, bytes, lists and mappings of them can"
    )


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(message: Message) -> bytes:
    """Raises TypeError or OverflowError for arguments of a request that cannot travel."""
    return _encoder.encode(message)


def decode_command(content: bytes) -> Command:
    return _commands.decode(content)


def decode_reply(content: bytes) -> Reply:
    return _replies.decode(content)
