"""Connections between two processes: sockets of TCP, or endpoints of UCXX.

Both send bytes and fill buffers with what the peer has sent. A peer is believed nothing:
whoever connects says hello first, and proves that it knows the shared secret where there is
one. Nothing that a peer has not sent takes memory here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import importlib
import importlib.util
import logging
import secrets
import socket
import struct
from typing import TYPE_CHECKING, Any

from tensordict.distributed.wire import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "Endpoint",
    "Listener",
    "MessageEndpoint",
    "PeerError",
    "SocketEndpoint",
    "connect",
    "endpoint_of",
    "greet",
    "listen",
    "refuse",
]

LOGGER = logging.getLogger("tensordict")

HANDSHAKE_TIMEOUT_S = 10.0
"""The time that a peer may take to say hello."""

AT_LEAST_BYTES = 4 << 20
"""The part of a large message that is waited for before it is copied, as far as the system has
room for it: waking up costs time."""

SMALL_BYTES = 64 << 10
"""Pieces below this size are joined before they are sent."""

_HELLO = struct.Struct("<8sB32s")
MAGIC = b"TDpipe\x00\x01"
_PROOF = struct.Struct("<B32s")

MSG_ENDED = (
    "The peer at {peer} closed the connection in the middle of {what}: {found} of "
    "{expected} bytes had come."
)
MSG_STALLED = (
    "The peer at {peer} sent {found} of the {expected} bytes of {what}, and then nothing "
    "for {timeout} seconds. A longer time can be given as timeout=."
)
MSG_NOT_TAKEN = (
    "The peer at {peer} has not taken any byte of a message for {timeout} seconds. A longer "
    "time can be given as timeout=."
)
MSG_GREETING = "The peer at {} is no pipe of this version: it has sent {!r} in the place of a hello."
MSG_SILENT = "The peer at {} has not said hello within {} seconds."
MSG_KEY_MISSING = (
    "The peer at {} asks for a shared secret: give the authkey= that it was given."
)
MSG_KEY_UNKNOWN = (
    "The peer at {} was given no shared secret, and this side was: give both the same "
    "authkey=, or none."
)
MSG_KEY_WRONG = "The peer at {} has another shared secret (authkey=)."
MSG_ENDPOINT = (
    "A pipe is made of a connected socket, or of an endpoint of ucxx with send() and "
    "recv(), got {}."
)
MSG_TRANSPORT = "transport must be None, 'tcp' or 'ucxx', got {!r}."
MSG_NO_UCXX = "transport='ucxx' needs the package ucxx, which is not installed."
MSG_CONNECT = "Nobody takes connections at {}:{}: {}"
MSG_LISTEN = "Cannot listen at {}:{}: {}"


class PeerError(WireError):
    """A peer that is refused: another program, or one without the shared secret."""


class Endpoint:
    """One end of a connection.

    Attributes:
        peer: how errors name the other end.
    """

    peer: str = "?"

    async def send(self, pieces: Iterable[Any]) -> None:
        """Send pieces of memory, one after another."""
        raise NotImplementedError

    async def receive(self, view: memoryview, what: str, may_end: bool = False) -> bool:
        """Fill ``view`` with what the peer sends.

        Args:
            view: the memory.
            what: what it is, for errors.
            may_end: whether the peer may have closed the connection before the first
                byte; then it may also take as long as it likes for that one.

        Returns:
            False where the peer has closed the connection instead.

        Raises:
            WireError: the connection ends, or nothing comes, in the middle.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close the connection, and wait until it is."""
        self.close()


class SocketEndpoint(Endpoint):
    """A connected socket. It works in any event loop, and in several in turn.

    Args:
        connection: the socket, which belongs to the endpoint from now on.
        timeout: for how many seconds nothing may move in the middle of a message.
    """

    def __init__(self, connection: socket.socket, timeout: float | None = 60.0) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # one that is not of TCP
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._timeout = timeout
        self._at_least = 1
        try:
            found = connection.getpeername()
        except OSError:
            found = "?"
        self.peer: str = (
            ":".join(map(str, found[:2])) if isinstance(found, tuple) else found
        )

    async def send(self, pieces: Iterable[Any]) -> None:
        """Send pieces of memory; small ones are joined."""
        waiting: list[Any] = []
        size = 0
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size >= SMALL_BYTES:
                await self._send_all(waiting)
                waiting, size = [], 0
        if size:
            await self._send_all(waiting)

    async def _send_all(self, pieces: list[Any]) -> None:
        *small, last = pieces
        if small and len(last) < SMALL_BYTES:
            small, last = [], b"".join(pieces)
        loop = asyncio.get_running_loop()
        if small:
            await self._send_one(loop, memoryview(b"".join(small)))
        await self._send_one(loop, memoryview(last))

    async def _send_one(self, loop: Any, view: memoryview) -> None:
        sent = 0
        while sent < len(view):
            try:
                sent += self._socket.send(view[sent:])
            except (BlockingIOError, InterruptedError):
                await self._wait(loop.add_writer, loop.remove_writer, MSG_NOT_TAKEN, {})

    async def receive(self, view: memoryview, what: str, may_end: bool = False) -> bool:
        """See :meth:`Endpoint.receive`."""
        loop = asyncio.get_running_loop()
        received = 0
        stalled: WireError | None = None
        while received < len(view):
            try:
                count = self._socket.recv_into(view[received:])
            except (BlockingIOError, InterruptedError):
                if stalled is not None:
                    raise stalled from None
                waits = may_end and not received
                self._wake_at(len(view) - received)
                found = {"found": received, "expected": len(view), "what": what}
                pair = loop.add_reader, loop.remove_reader
                try:
                    await self._wait(*pair, None if waits else MSG_STALLED, found)
                except WireError as error:
                    # Something may have come, but less than is waited for.
                    stalled = error
                continue
            stalled = None
            if not count:
                if may_end and not received:
                    return False
                raise WireError(
                    MSG_ENDED.format(
                        peer=self.peer, what=what, found=received, expected=len(view)
                    )
                )
            received += count
        return True

    def _wake_at(self, missing: int) -> None:
        """Be woken for a large piece of what is missing, and not for every packet."""
        at_least = AT_LEAST_BYTES if missing >= 2 * AT_LEAST_BYTES else 1
        if at_least != self._at_least:
            self._at_least = at_least
            with contextlib.suppress(OSError):  # where there is no such option
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, at_least)

    async def _wait(
        self, add: Any, remove: Any, message: str | None, found: dict[str, Any]
    ) -> None:
        """Wait until the socket can go on; for ever without a message for errors."""
        ready = asyncio.get_running_loop().create_future()
        number = self._socket.fileno()
        if number < 0:
            raise WireError(MSG_CLOSED_HERE.format(self.peer))
        add(number, _set_ready, ready)
        try:
            async with asyncio.timeout(None if message is None else self._timeout):
                await ready
        except TimeoutError:
            text = str(message)
            raise WireError(
                text.format(peer=self.peer, timeout=self._timeout, **found)
            ) from None
        finally:
            remove(number)

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


MSG_CLOSED_HERE = "The connection to {} is closed."


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class MessageEndpoint(Endpoint):
    """An endpoint of UCXX, which sends whole messages: what is sent is received as one.

    Args:
        endpoint: it, with coroutines ``send`` and ``recv``.
        timeout: for how many seconds a message may be waited for.
    """

    def __init__(self, endpoint: Any, timeout: float | None = 60.0) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self.peer: str = f"ucxx {getattr(endpoint, 'uid', '')}".strip()

    async def send(self, pieces: Iterable[Any]) -> None:
        """Send all pieces as one message."""
        found = list(pieces)
        whole = found[0] if len(found) == 1 else b"".join(found)
        if len(whole):
            await self._endpoint.send(_array(memoryview(whole)))

    async def receive(self, view: memoryview, what: str, may_end: bool = False) -> bool:
        """See :meth:`Endpoint.receive`."""
        if not len(view):
            return True
        try:
            async with asyncio.timeout(None if may_end else self._timeout):
                await self._endpoint.recv(_array(view))
        except TimeoutError:
            message = MSG_STALLED.format(
                peer=self.peer,
                found=0,
                expected=len(view),
                what=what,
                timeout=self._timeout,
            )
            raise WireError(message) from None
        except Exception as error:
            if may_end:
                return False
            text = MSG_ENDED.format(
                peer=self.peer, what=what, found=0, expected=len(view)
            )
            raise WireError(text) from error
        return True

    def close(self) -> None:
        """Abort the endpoint, which is not waited for."""
        abort = getattr(self._endpoint, "abort", None)
        if abort is not None:
            abort()

    async def aclose(self) -> None:
        """Close the endpoint."""
        await self._endpoint.close()


def _array(view: memoryview) -> Any:
    import numpy as np

    return np.frombuffer(view, dtype=np.uint8)


def endpoint_of(endpoint: object, timeout: float | None) -> Endpoint:
    """Make an endpoint of a socket, or of an endpoint of UCXX.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(endpoint, Endpoint):
        return endpoint
    if isinstance(endpoint, socket.socket):
        return SocketEndpoint(endpoint, timeout)
    if hasattr(endpoint, "send") and hasattr(endpoint, "recv"):
        return MessageEndpoint(endpoint, timeout)
    raise TypeError(MSG_ENDPOINT.format(type(endpoint)))


# Connecting -------------------------------------------------------------------------------


def uses_ucxx(transport: str | None) -> bool:
    """Tell whether connections are those of UCXX.

    Raises:
        ImportError: they are to be, and ``ucxx`` is not installed.
        ValueError: there is no such transport.
    """
    if transport not in (None, "tcp", "ucxx"):
        raise ValueError(MSG_TRANSPORT.format(transport))
    if transport == "tcp":
        return False
    found = importlib.util.find_spec("ucxx") is not None
    if transport == "ucxx" and not found:
        raise ImportError(MSG_NO_UCXX)
    return found


async def connect(
    host: str,
    port: int,
    timeout: float | None,  # noqa: ASYNC109 - of each wait, not of the call
    transport: str | None,
) -> Endpoint:
    """Connect to who listens at an address.

    Raises:
        ConnectionError: nobody does.
    """
    if uses_ucxx(transport):
        ucxx = importlib.import_module("ucxx")
        return MessageEndpoint(await ucxx.create_endpoint(host, port), timeout)
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, address)
        except OSError as error:
            failure = error
            connection.close()
            continue
        except BaseException:
            connection.close()
            raise
        return SocketEndpoint(connection, timeout)
    message = MSG_CONNECT.format(host, port, failure)
    raise ConnectionRefusedError(message) from failure


class Listener:
    """Takes connections, and gives each to a function.

    Attributes:
        port: the port, chosen by the system where 0 was asked for.
    """

    port: int

    def close(self) -> None:
        """Take no more connections."""
        raise NotImplementedError


class _SocketListener(Listener):
    def __init__(self, host: str | None, port: int, timeout: float | None) -> None:
        self._timeout = timeout
        self._task: asyncio.Task[None] | None = None
        try:
            self._socket = socket.create_server((host or "", port), backlog=128)
        except (OSError, OverflowError) as error:
            raise OSError(MSG_LISTEN.format(host or "*", port, error)) from error
        self._socket.setblocking(False)
        self.port = self._socket.getsockname()[1]

    def start(self, take: Callable[[Endpoint], None]) -> None:
        self._task = asyncio.ensure_future(self._accept(take))

    async def _accept(self, take: Callable[[Endpoint], None]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except ConnectionError:
                continue
            except OSError as error:
                if self._socket.fileno() < 0:
                    return
                # Too many open files: those that are open go on, and may be closed.
                LOGGER.warning("A connection could not be taken: %s", error)
                await asyncio.sleep(0.1)
                continue
            take(SocketEndpoint(connection, self._timeout))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._socket.close()


class _UcxxListener(Listener):
    def __init__(self, port: int, timeout: float | None) -> None:
        self._timeout = timeout
        self._asked = port
        self._listener: Any = None
        self.port = port

    def start(self, take: Callable[[Endpoint], None]) -> None:
        ucxx = importlib.import_module("ucxx")

        async def taken(endpoint: object) -> None:
            take(MessageEndpoint(endpoint, self._timeout))

        self._listener = ucxx.create_listener(taken, self._asked)
        self.port = self._listener.port

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()


def listen(
    host: str | None, port: int, timeout: float | None, transport: str | None
) -> Any:
    """Listen at a port; ``start(take)`` then gives each connection to a function.

    Raises:
        OSError: the port cannot be had.
    """
    if uses_ucxx(transport):
        return _UcxxListener(port, timeout)
    return _SocketListener(host, port, timeout)


# Hello ------------------------------------------------------------------------------------


async def greet(
    endpoint: Endpoint, authkey: bytes | str | None, *, listens: bool
) -> None:
    """Say hello, and with a shared secret prove to each other that it is known.

    The secret itself is not sent: each side sends the HMAC of both sides' random numbers.

    Args:
        endpoint: the connection.
        authkey: the shared secret.
        listens: whether this is the side that took the connection.

    Raises:
        PeerError: the peer is another program, or has another secret.
    """
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            await _greet(endpoint, authkey, listens)
    except TimeoutError:
        message = MSG_SILENT.format(endpoint.peer, HANDSHAKE_TIMEOUT_S)
        raise PeerError(message) from None
    except PeerError:
        raise
    except (OSError, WireError) as error:
        raise PeerError(str(error)) from error


async def _greet(
    endpoint: Endpoint, authkey: bytes | str | None, listens: bool
) -> None:
    key = authkey.encode() if isinstance(authkey, str) else authkey
    own = secrets.token_bytes(32)
    await endpoint.send([_HELLO.pack(MAGIC, key is not None, own)])
    content = bytearray(_HELLO.size)
    await endpoint.receive(memoryview(content), "a hello")
    magic, has_key, other = _HELLO.unpack(content)
    if magic != MAGIC:
        raise PeerError(MSG_GREETING.format(endpoint.peer, bytes(content[:16])))
    if key is None:
        if has_key:
            raise PeerError(MSG_KEY_MISSING.format(endpoint.peer))
        return
    if not has_key:
        raise PeerError(MSG_KEY_UNKNOWN.format(endpoint.peer))
    both = own + other if listens else other + own
    mine, theirs = (b"listen", b"connect") if listens else (b"connect", b"listen")
    expected = hmac.digest(key, theirs + both, hashlib.sha256)
    proof = _PROOF.pack(1, hmac.digest(key, mine + both, hashlib.sha256))
    if not listens:
        await endpoint.send([proof])
    content = bytearray(_PROOF.size)
    await endpoint.receive(memoryview(content), "a proof of the shared secret")
    is_known, found = _PROOF.unpack(content)
    if not is_known or not hmac.compare_digest(found, expected):
        if listens:
            await endpoint.send([_PROOF.pack(0, b"")])
        raise PeerError(MSG_KEY_WRONG.format(endpoint.peer))
    if listens:
        await endpoint.send([proof])


def refuse(endpoint: Endpoint, error: BaseException) -> None:
    """Close the connection to a peer that was refused, and note it."""
    LOGGER.warning("A connection was refused: %s", error)
    endpoint.close()
