"""From a configuration to a session: the engine, and the text side of its model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

from nanofw.assembly import Selection, build, select
from nanofw.assembly.reasons import shortened
from nanofw.config.load import LoadedConfig
from nanofw.config.schema import LoggingSection
from nanofw.contracts.clock import PacedClock
from nanofw.contracts.model_spec import ModelSpec
from nanofw.contracts.observer import StepObserver
from nanofw.engine.base import BaseEngine
from nanofw.errors import ConfigError
from nanofw.llm.default_sampling import settle_sampling
from nanofw.llm.session import Session
from nanofw.text.byte_level import ByteTokenizer
from nanofw.text.chat import ChatTemplate, load_chat_template
from nanofw.text.tokenizer import Tokenizer, load_tokenizer


class ShortPoolWarning(UserWarning):
    """The pool of KV blocks has no room for a request of the model's length."""


def open_session(
    loaded: LoadedConfig,
    *,
    selection: Selection | None = None,
    token_times: bool = False,
    real_time: bool = False,
    observers: Sequence[StepObserver] = (),
) -> Session:
    """Make the engine and read the tokenizer of its model.

    Args:
        selection: the components, when they were chosen before.
        real_time: requests come when callers send them: a simulated machine answers when the
            modelled one would, and not at once.
        observers: who watches the steps.

    Raises:
        NanofwError: the configuration cannot be used, or the model cannot be loaded.
    """
    if loaded.config.logging != LoggingSection():
        _set_log_levels(loaded.config.logging)
    selection = selection or select(loaded)
    engine = open_engine(selection, real_time=real_time, observers=observers)
    try:
        tokenizer, chat = text_of(engine.spec, simulated=selection.virtual_time)
    except BaseException:
        engine.close()
        raise
    session = Session(engine, tokenizer, chat, token_times=token_times)
    session.default_sampling = settle_sampling(engine, loaded)
    return session


def _set_log_levels(section: LoggingSection) -> None:
    """Set the levels of nanofw's loggers; where messages go is the application's choice."""
    logging.getLogger("nanofw").setLevel(section.level.upper())
    for module, level in section.modules.items():
        logging.getLogger(module).setLevel(level.upper())


def open_engine(
    selection: Selection, *, real_time: bool = False, observers: Sequence[StepObserver] = ()
) -> BaseEngine:
    """The engine of a selection, or several behind a router: `engine.replicas`.

    Warns with `ShortPoolWarning` where the pool is smaller than a request of the model's length.
    """
    if selection.loaded.config.engine.replicas == 1:
        clock = PacedClock() if real_time and selection.virtual_time else None
        engine: BaseEngine = build(selection, clock=clock, observers=observers)
    else:
        if observers:
            raise ConfigError("must be 1 where steps are watched", key="engine.replicas")
        from nanofw.replicas.opening import open_replicas

        engine = open_replicas(selection, real_time=real_time)
    if engine.max_model_len < selection.max_model_len:
        sentence = shortened(selection.max_model_len, engine.max_model_len)
        warnings.warn(sentence, ShortPoolWarning, stacklevel=2)
    return engine


def text_of(spec: ModelSpec, *, simulated: bool = False) -> tuple[Tokenizer | None, ChatTemplate]:
    """Tokenizer and chat templates of a model.

    Without a `tokenizer.json` a simulated run takes bytes for tokens, and a real one is for
    token ids only.
    """
    folder = Path(spec.path)
    chat = load_chat_template(folder)
    if (folder / "tokenizer.json").is_file():
        return load_tokenizer(folder), chat
    return ByteTokenizer(spec.vocab_size) if simulated else None, chat
