"""Descriptors of files, sent to another process through the pipe that messages go through.

``multiprocessing.reduction.send_handle`` waits, from Python 3.14 on, for a byte that the receiver
sends back. Who waits for a byte cannot be sent a message through the same pipe, and a
receiver that first has to be told that something is there would never look.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def _socket_of(connection: Connection) -> socket.socket:
    """Return a socket over a duplex pipe, with a descriptor of its own."""
    return socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)


def send_descriptor(connection: Connection, descriptor: int) -> None:
    """Send a descriptor, and wait for nobody: it may be closed at once."""
    with _socket_of(connection) as stream:
        socket.send_fds(stream, [b"\0"], [descriptor])


def receive_descriptor(connection: Connection) -> int:
    """Receive a descriptor that :func:`send_descriptor` sent.

    Raises:
        EOFError: the other side has closed the pipe.
        RuntimeError: this process may open no further file.
    """
    with _socket_of(connection) as stream:
        message, descriptors, _, _ = socket.recv_fds(stream, 1, 1)
    if not message:
        raise EOFError
    if not descriptors:
        raise RuntimeError(
            "A descriptor was sent to this process, which cannot have a further one: "
            "its limit of open files (`ulimit -n`) is reached."
        )
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]
