"""Connections as the server's process accepts them."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from nanofw.config.schema import ServerLimits
from nanofw.server.protocol import protocol_of


async def _app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no request is sent")


def test_events_do_not_wait_for_the_acknowledgement_of_those_before() -> None:
    """Small events are sent at once; the system may wait for the acknowledgement of the head."""

    async def main() -> int:
        config = uvicorn.Config(_app, log_config=None)
        config.load()
        made: list[Any] = []

        def protocol() -> Any:
            kind = protocol_of(ServerLimits())
            made.append(kind(config=config, server_state=ServerState(), app_state={}))
            return made[0]

        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = await asyncio.get_running_loop().create_server(protocol, sock=listener)
            _, writer = await asyncio.open_connection(*listener.getsockname())
            while not made or made[0].transport is None:
                await asyncio.sleep(0)
            connection = made[0].transport.get_extra_info("socket")
            found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()
            made[0].transport.abort()
            server.close()
            return found

    assert asyncio.run(asyncio.wait_for(main(), 30))
