"""Connections between two processes: TCP sockets, or UCXX endpoints.

Both kinds send bytes and fill buffers with bytes that the peer has sent. Nothing that a peer sends
is trusted: a peer first says hello, and proves that it knows the shared secret if there is one.
Memory is allocated only for bytes that have arrived.
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
"""The number of bytes of a large message that have to arrive before the process wakes up to copy
them. The system may wake it earlier, if its socket buffer is smaller."""

SMALL_BYTES = 64 << 10
"""Pieces below this size are joined before they are sent."""

_HELLO = struct.Struct("<8sB32s")
MAGIC = b"TDpipe\x00\x01"
_PROOF = struct.Struct("<B32s")

MSG_ENDED = (
    "The peer at {peer} closed the connection in the middle of {what}: {found} of "
    "{expected} bytes had arrived."
)
MSG_STALLED = (
    "The peer at {peer} sent {found} of the {expected} bytes of {what}, and then nothing "
    "for {timeout} seconds. Pass a longer timeout= to wait longer."
)
MSG_NOT_TAKEN = (
    "The peer at {peer} has not received any byte of a message for {timeout} seconds. Pass a "
    "longer timeout= to wait longer."
)
MSG_GREETING = (
    "The peer at {} is not a TensorDictPipe of this version: it has sent {!r} instead of a "
    "hello."
)
MSG_SILENT = "The peer at {} has not said hello within {} seconds."
MSG_KEY_MISSING = "The peer at {} requires a shared secret: pass the peer's authkey=."
MSG_KEY_UNKNOWN = (
    "The peer at {} was given no shared secret, but this process was: pass the same "
    "authkey= to both, or to neither."
)
MSG_KEY_WRONG = (
    "The peer at {} has another shared secret: pass the same authkey= to both."
)
MSG_ENDPOINT = (
    "A TensorDictPipe needs a connected socket, or a ucxx endpoint with send() and recv(), "
    "got {}."
)
MSG_TRANSPORT = "transport must be None, 'tcp' or 'ucxx', got {!r}."
MSG_NO_UCXX = "transport='ucxx' needs the package ucxx, which is not installed."
MSG_CONNECT = "No process accepts connections at {}:{}: {}"
MSG_LISTEN = "Cannot listen at {}:{}: {}"


class PeerError(WireError):
    """An error for a peer that is refused: another program, or a wrong shared secret."""


class Endpoint:
    """One end of a connection.

    Attributes:
        peer: the name of the other end in errors.
    """

    peer: str = "?"

    async def send(self, pieces: Iterable[Any]) -> None:
        """Send pieces of memory, one after another."""
        raise NotImplementedError

    async def receive(self, view: memoryview, what: str, may_end: bool = False) -> bool:
        """Fill ``view`` with bytes that the peer sends.

        Args:
            view: the memory.
            what: the name of the content in errors.
            may_end: whether the peer may close the connection before the first byte. If so,
                the wait for the first byte has no timeout.

        Returns:
            False if the peer has closed the connection before the first byte.

        Raises:
            WireError: in the middle the connection ends, or nothing arrives in time.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close the connection, and wait until it is closed."""
        self.close()


class SocketEndpoint(Endpoint):
    """A connected socket. It works in any event loop, and in several loops in turn.

    Args:
        connection: the socket. The endpoint owns it from now on.
        timeout: the seconds without progress in the middle of a message after which an
            operation fails.
    """

    def __init__(self, connection: socket.socket, timeout: float | None = 60.0) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # Unix sockets lack the option
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._timeout = timeout
        self._at_least = 1
        try:
            name = connection.getpeername()
        except OSError:
            name = "?"
        self.peer: str = (
            ":".join(map(str, name[:2])) if isinstance(name, tuple) else name
        )

    async def send(self, pieces: Iterable[Any]) -> None:
        """Send pieces of memory; join small pieces."""
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
                    # Try once more: fewer bytes than SO_RCVLOWAT may have arrived.
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
        """Set how many bytes have to arrive before the system wakes the process."""
        at_least = AT_LEAST_BYTES if missing >= 2 * AT_LEAST_BYTES else 1
        if at_least != self._at_least:
            self._at_least = at_least
            with contextlib.suppress(OSError):  # a system without the option
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, at_least)

    async def _wait(
        self, add: Any, remove: Any, message: str | None, found: dict[str, Any]
    ) -> None:
        """Wait until the socket is ready, without a timeout if ``message`` is None."""
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
    """A UCXX endpoint. Each message that is sent is received by one call.

    Args:
        endpoint: an object with the coroutines ``send`` and ``recv``.
        timeout: the seconds to wait for a message.
    """

    def __init__(self, endpoint: Any, timeout: float | None = 60.0) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self.peer: str = f"ucxx {getattr(endpoint, 'uid', '')}".strip()

    async def send(self, pieces: Iterable[Any]) -> None:
        """Send all pieces as one message."""
        joined = list(pieces)
        message = joined[0] if len(joined) == 1 else b"".join(joined)
        if len(message):
            await self._endpoint.send(_array(memoryview(message)))

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
        """Abort the endpoint without waiting."""
        abort = getattr(self._endpoint, "abort", None)
        if abort is not None:
            abort()

    async def aclose(self) -> None:
        """Close the endpoint, and wait until it is closed."""
        await self._endpoint.close()


def _array(view: memoryview) -> Any:
    import numpy as np

    return np.frombuffer(view, dtype=np.uint8)


def endpoint_of(endpoint: object, timeout: float | None) -> Endpoint:
    """Return an endpoint over a socket or over a UCXX endpoint.

    Raises:
        TypeError: the object is neither of them.
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
    """Return whether connections use UCXX.

    Raises:
        ImportError: ``transport="ucxx"``, but ``ucxx`` is not installed.
        ValueError: the transport is unknown.
    """
    if transport not in (None, "tcp", "ucxx"):
        raise ValueError(MSG_TRANSPORT.format(transport))
    if transport == "tcp":
        return False
    is_installed = importlib.util.find_spec("ucxx") is not None
    if transport == "ucxx" and not is_installed:
        raise ImportError(MSG_NO_UCXX)
    return is_installed


async def connect(
    host: str,
    port: int,
    timeout: float | None,  # noqa: ASYNC109 - a limit for each wait, not for the call
    transport: str | None,
) -> Endpoint:
    """Connect to the process that listens at an address.

    Raises:
        ConnectionError: no process listens there.
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
    """Accepts connections, and passes each to a function.

    Attributes:
        port: the port. If port 0 was asked for, the port that the system has chosen.
    """

    port: int

    def close(self) -> None:
        """Accept no more connections."""
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
                # The limit of open files is reached: try again, others may be closed.
                LOGGER.warning("Cannot accept a connection: %s", error)
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
        self._requested_port = port
        self._listener: Any = None
        self.port = port

    def start(self, take: Callable[[Endpoint], None]) -> None:
        ucxx = importlib.import_module("ucxx")

        async def accept(endpoint: object) -> None:
            take(MessageEndpoint(endpoint, self._timeout))

        self._listener = ucxx.create_listener(accept, self._requested_port)
        self.port = self._listener.port

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()


def listen(
    host: str | None, port: int, timeout: float | None, transport: str | None
) -> Any:
    """Bind a port. ``start(take)`` of the result then passes each connection to ``take``.

    Raises:
        OSError: the port cannot be bound.
    """
    if uses_ucxx(transport):
        return _UcxxListener(port, timeout)
    return _SocketListener(host, port, timeout)


# Hello ------------------------------------------------------------------------------------


async def greet(
    endpoint: Endpoint, authkey: bytes | str | None, *, listens: bool
) -> None:
    """Exchange hellos with the peer; with a shared secret, each side proves that it knows it.

    The secret itself is not sent: each side sends the HMAC of both sides' random numbers.

    Args:
        endpoint: the connection.
        authkey: the shared secret.
        listens: whether this process has accepted the connection.

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
    own_nonce = secrets.token_bytes(32)
    await endpoint.send([_HELLO.pack(MAGIC, key is not None, own_nonce)])
    content = bytearray(_HELLO.size)
    await endpoint.receive(memoryview(content), "a hello")
    magic, has_key, peer_nonce = _HELLO.unpack(content)
    if magic != MAGIC:
        raise PeerError(MSG_GREETING.format(endpoint.peer, bytes(content[:16])))
    if key is None:
        if has_key:
            raise PeerError(MSG_KEY_MISSING.format(endpoint.peer))
        return
    if not has_key:
        raise PeerError(MSG_KEY_UNKNOWN.format(endpoint.peer))
    nonces = own_nonce + peer_nonce if listens else peer_nonce + own_nonce
    own_role, peer_role = (
        (b"listen", b"connect") if listens else (b"connect", b"listen")
    )
    expected = hmac.digest(key, peer_role + nonces, hashlib.sha256)
    proof = _PROOF.pack(1, hmac.digest(key, own_role + nonces, hashlib.sha256))
    if not listens:
        await endpoint.send([proof])
    content = bytearray(_PROOF.size)
    await endpoint.receive(memoryview(content), "a proof of the shared secret")
    is_accepted, peer_proof = _PROOF.unpack(content)
    if not is_accepted or not hmac.compare_digest(peer_proof, expected):
        if listens:
            await endpoint.send([_PROOF.pack(0, b"")])
        raise PeerError(MSG_KEY_WRONG.format(endpoint.peer))
    if listens:
        await endpoint.send([proof])


def refuse(endpoint: Endpoint, error: BaseException) -> None:
    """Close the connection to a refused peer, and log the reason."""
    LOGGER.warning("A connection was refused: %s", error)
    endpoint.close()
