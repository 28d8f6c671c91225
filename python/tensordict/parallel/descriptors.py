"""File descriptors, sent to another process through a pipe that also carries messages.

From Python 3.14 on, ``multiprocessing.reduction.send_handle`` waits for a byte that the receiver
sends back through the same pipe. The byte would mix with messages. A receiver that waits for a
message before it looks for a descriptor would never send it. The functions here do not wait.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def _socket_of(connection: Connection) -> socket.socket:
    """Return a socket over a duplex pipe, with its own descriptor."""
    return socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)


def send_descriptor(connection: Connection, descriptor: int) -> None:
    """Send a descriptor without waiting for the receiver. It may be closed at once."""
    with _socket_of(connection) as stream:
        socket.send_fds(stream, [b"\0"], [descriptor])


def receive_descriptor(connection: Connection) -> int:
    """Receive a descriptor that :func:`send_descriptor` sent.

    Raises:
        EOFError: the sender has closed the pipe.
        RuntimeError: this process has reached its limit of open files.
    """
    with _socket_of(connection) as stream:
        message, descriptors, _, _ = socket.recv_fds(stream, 1, 1)
    if not message:
        raise EOFError
    if not descriptors:
        raise RuntimeError(
            "This process was sent a file descriptor, but has reached its limit of open "
            "files. Raise the limit (`ulimit -n`), or close files."
        )
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]
