"""The process of a server: it listens at once, loads, serves, and ends when it is asked to."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

import uvicorn

from nanofw.assembly import select
from nanofw.config.load import LoadedConfig
from nanofw.config.schema import ServerSection
from nanofw.errors import ConfigError
from nanofw.llm.async_llm import AsyncLLM
from nanofw.server.app import make_app
from nanofw.server.protocol import protocol_of
from nanofw.server.reading import model_names
from nanofw.server.request_log import log_to_stderr
from nanofw.server.service import Service
from nanofw.server.traces import open_traces

FAREWELL_S = 5.0
"""For the last events of streams after `drain_s`."""
BACKLOG = 2048
"""Connections that may wait to be accepted."""
SWITCH_INTERVAL_S = 0.0005
"""With Python's 5 ms the engine's thread may wait so long for the event loop after each step, in
which a GPU has nothing to do, and an event that is sent for the plan of the next step."""
NEW_OBJECTS = 20_000
"""New objects between two looks for garbage. With Python's 700 these looks take a fifth of the time
that short requests take."""
MAX_FILES = 65_536
"""Open files, connections too, that the process asks the system for."""


class Server(uvicorn.Server):
    """Uvicorn's server, which lets open requests end before it does."""

    service: Service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        draining = asyncio.create_task(self.service.drain())
        await super().shutdown(sockets)
        await draining

    def stop(self) -> None:
        """End as after a signal."""
        self.should_exit = True


def serve(loaded: LoadedConfig, say: Callable[[str], None]) -> None:
    """Serve until a signal comes; what was open then has `server.limits.drain_s` to end.

    Args:
        say: tells the user who started it what happens.

    Raises:
        NanofwError: the configuration cannot be used, or the engine cannot be made or failed.
    """
    selection = select(loaded)  # what is wrong is said before anything listens
    section = loaded.config.server
    server: Server

    def make_llm() -> AsyncLLM:
        watching = [service.overview.observer] if loaded.config.engine.replicas == 1 else []
        llm = AsyncLLM(
            loaded,
            max_requests=section.limits.max_requests,
            observers=watching,
            selection=selection,
        )
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        _collect_seldom()
        return llm

    traces = open_traces(section.traces, model_names(loaded)[0])
    service = Service(loaded, make_llm, stop=lambda: server.stop(), say=say, traces=traces)
    if section.log_requests:
        log_to_stderr()
    _allow_many_files()
    with _listening(section) as listener, _quiet_signals():
        address = _url(listener)
        if not section.clients and not _is_loopback(listener):
            say("warning: there are no server.clients: everyone who reaches it may use it")
        say(f"listening at {address}, loading {', '.join(service.model_names)}")
        config = uvicorn.Config(
            make_app(service),
            http=protocol_of(section.limits),
            ws="none",
            loop="auto",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=max(1, round(section.limits.keep_alive_s)),
            timeout_graceful_shutdown=round(section.limits.drain_s + FAREWELL_S),
        )
        server = Server(config)
        server.service = service
        server.run([listener])
    if service.failure is not None:
        raise service.failure
    say("ended")


@contextmanager
def _listening(section: ServerSection) -> Generator[socket.socket]:
    host, port = section.host, section.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        key = "server.host" if isinstance(error, socket.gaierror) else "server.port"
        reason = f"cannot listen at {host}:{port}: {error.strerror or error}"
        raise ConfigError(reason, key=key) from None
    with listener:
        yield listener


def _collect_seldom() -> None:
    """What was loaded stays to the end, so that looking at it for garbage is in vain."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])


@contextmanager
def _quiet_signals() -> Generator[None]:
    """Uvicorn hands on the signals that ended it; here an orderly end is the end."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    for each in before:
        signal.signal(each, _ignored)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _ignored(number: int, frame: object) -> None:
    pass


def _url(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_loopback(listener: socket.socket) -> bool:
    host: str = listener.getsockname()[0]
    return host.startswith("127.") or host == "::1"


def _allow_many_files() -> None:
    """Raise the soft bound on open files: each connection is one."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
