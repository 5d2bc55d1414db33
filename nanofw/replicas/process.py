"""The process of a replica on this host. Imported by nothing but that process."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
from typing import Any

from nanofw.replicas.messages import ReplicaReady
from nanofw.replicas.replica import Replica
from nanofw.runtime.parallel.channel import Channel
from nanofw.runtime.parallel.watch import report_crashes, watch


def main(channel_fd: int, stacks_fd: int) -> None:
    """Serve the process before the replicas until it says `StopReplica` or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = socket.socket(fileno=channel_fd)
    threading.Thread(target=watch, args=(channel_fd,), daemon=True).start()
    report_crashes(stacks_fd)
    channel = Channel(end)
    try:
        replica = Replica(_receive(channel))
        threading.Thread(target=_send_outputs, args=(replica, channel), daemon=True).start()
        number = 0
        while True:
            commands = _receive(channel)
            replica.deliver(number, commands)
            number += len(commands)
    except EOFError:
        os._exit(1)


def _send_outputs(replica: Replica, channel: Channel) -> None:
    """Send what the replica says; after its last words the process ends."""
    try:
        ready = replica.ready()
        channel.send(pickle.dumps(ready))
        while isinstance(ready, ReplicaReady) and (outputs := replica.outputs()) is not None:
            channel.send(pickle.dumps(outputs))
    except OSError:
        os._exit(1)
    sys.stderr.flush()
    os._exit(0)


def _receive(channel: Channel) -> Any:
    """A message of the process that started this one; only it holds the other end."""
    return pickle.loads(channel.receive())
