"""Pipes: collections one after another between two processes.

A message is the head, the description where the structure is a new one, and the leaves, as
:mod:`tensordict.distributed.wire` has them. Large leaves are sent from the memory they are
in, and received into the memory they stay in.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
from typing import TYPE_CHECKING, Any, Self

import torch

from tensordict.distributed import wire
from tensordict.distributed.endpoints import Endpoint, connect, endpoint_of, greet
from tensordict.distributed.pipe_messages import (
    device_of,
    place_of,
    receive_bytes,
    receive_into,
    send_message,
)
from tensordict.distributed.wire import Head, WireError
from tensordict.primitives.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = [
    "TensorDictPipe",
    "WireError",
    "recv_tensordict",
    "send_tensordict",
]

NEW, SAME = 1, 2
"""Kinds of heads: with a description, and with the structure of the message before."""

TIMEOUT_S = 60.0

MSG_CLOSED = "The pipe to {} is closed."
MSG_RUNNING = (
    "{0}() waits until it is done, and an event loop runs in this thread: `await "
    "pipe.a{0}(...)` instead."
)
MSG_KIND = (
    "The peer at {} has sent a message of kind {}, which this version does not know."
)
MSG_OTHER = (
    "The peer at {} has sent leaves of another structure than it described: both ends are "
    "out of step."
)
MSG_LENGTHS = "The peer at {} announces {} bytes of leaves, and describes {}: its message is damaged."
MSG_END = "The peer at {} has closed the pipe."


def available_bytes() -> int:
    """Tell the memory of this machine, which no message can be larger than."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 1 << 40


def _run(coroutine: Any, name: str) -> Any:
    """Run a coroutine to its end, in a new event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    coroutine.close()
    raise RuntimeError(MSG_RUNNING.format(name))


class TensorDictPipe(Closing):
    """A connection between two processes for collections of any kind.

    :meth:`connect` on one side and :meth:`listen` on the other make one, or
    :class:`TensorDictServer` for several clients. It goes over UCXX where ``ucxx`` is
    installed, and over TCP otherwise.

    What a peer sends is not believed: no pickle is read, nothing is imported, no memory is
    made for what it merely announces. What makes no sense is a :class:`WireError`, after
    which the pipe is closed. With ``authkey=`` both sides prove that they know a shared
    secret; what they send then is neither encrypted nor signed.

    Args:
        endpoint: a connected socket, or an endpoint of ucxx.
        consolidated: whether a collection of the same structure as the one before is
            received into the memory of that one, which is returned again: ``clone()`` it
            to keep it. Otherwise each is a new one.
        listener: what is closed with the pipe.
        max_bytes: the largest buffer of leaves that is taken. Default: the memory of the
            machine.
        timeout: for how many seconds nothing may come in the middle of a message, or go.
            None: for ever. Between messages there is no limit.

    Examples:
        >>> import asyncio, socket
        >>> async def main():
        ...     one, other = map(TensorDictPipe, socket.socketpair())
        ...     async with one, other:
        ...         await one.asend(TensorDict(a=torch.ones(3), text="hello"))
        ...         return await other.arecv()
        >>> td = asyncio.run(main())
        >>> td["a"].sum(), td["text"]
        (tensor(3.), 'hello')
    """

    def __init__(
        self,
        endpoint: object,
        *,
        consolidated: bool = True,
        listener: Any | None = None,
        max_bytes: int | None = None,
        timeout: float | None = TIMEOUT_S,
    ) -> None:
        self._endpoint: Endpoint | None = None
        self._endpoint = endpoint_of(endpoint, timeout)
        self._peer = self._endpoint.peer
        self._consolidated = consolidated
        self._listener = listener
        self._max_bytes = available_bytes() if max_bytes is None else max_bytes
        self._sent = b""
        self._parsed: tuple[bytes, bytes, wire.Parsed] | None = None
        self._received: Any = None
        self._sending = asyncio.Lock()
        self._receiving = asyncio.Lock()

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        consolidated: bool = True,
        authkey: bytes | str | None = None,
        max_bytes: int | None = None,
        timeout: float | None = TIMEOUT_S,  # noqa: ASYNC109 - of each wait
        transport: str | None = None,
    ) -> Self:
        """Connect to who listens at an address.

        Args:
            host: its name.
            port: its port.
            consolidated: see the class.
            authkey: the shared secret.
            max_bytes: see the class.
            timeout: see the class.
            transport: ``"tcp"`` or ``"ucxx"``. Default: UCXX where it is installed.

        Raises:
            ConnectionError: nobody listens there.
            WireError: who listens is no pipe, or has another secret.
        """
        endpoint = await connect(host, port, timeout, transport)
        try:
            await greet(endpoint, authkey, listens=False)
        except BaseException:
            endpoint.close()
            raise
        return cls(
            endpoint, consolidated=consolidated, max_bytes=max_bytes, timeout=timeout
        )

    @classmethod
    async def listen(
        cls,
        port: int,
        *,
        consolidated: bool = True,
        authkey: bytes | str | None = None,
        host: str | None = None,
        max_bytes: int | None = None,
        timeout: float | None = TIMEOUT_S,  # noqa: ASYNC109 - of each wait
        transport: str | None = None,
    ) -> Self:
        """Wait for the first client at a port.

        Those without the shared secret, and other programs, are refused and logged.

        Args:
            port: the port.
            consolidated: see the class.
            authkey: the shared secret.
            host: the address to listen at, such as ``"127.0.0.1"``. Default: all.
            max_bytes: see the class.
            timeout: see the class.
            transport: ``"tcp"`` or ``"ucxx"``. Default: UCXX where it is installed.

        Raises:
            OSError: the port cannot be had.
        """
        from tensordict.distributed.pipe_servers import TensorDictServer

        server = TensorDictServer(
            port,
            consolidated=consolidated,
            authkey=authkey,
            host=host,
            max_bytes=max_bytes,
            timeout=timeout,
            transport=transport,
        )
        async with server:
            pipe = await anext(aiter(server))
        found: Any = pipe
        found.__class__ = cls
        return found

    # Sending ---------------------------------------------------------------------------

    async def asend(self, td: CollectionProtocol) -> None:
        """Send a collection.

        Its description is sent where it is another one than before.

        Args:
            td: the collection, of any kind.

        Raises:
            RuntimeError: the pipe is closed.
            TypeError: an entry holds a value that can only be pickled.
            OSError: the connection is lost.
        """
        message = wire.describe(td)
        digest = hashlib.blake2b(message.description, digest_size=16).digest()
        async with self._sending:
            endpoint = self._open()
            is_same = self._consolidated and digest == self._sent
            description = b"" if is_same else message.description
            head = Head(
                SAME if is_same else NEW,
                len(description),
                message.num_bytes,
                digest,
                device_of(message).encode()[:24],
            )
            # Half a message is none: where this one ends early, so does the pipe.
            with self._closing_on_errors():
                await send_message(endpoint, head, description, message)
            self._sent = digest

    def send(self, td: CollectionProtocol) -> None:
        """Send a collection, and wait until it is sent. See :meth:`asend`.

        Raises:
            RuntimeError: an event loop runs in this thread.
        """
        _run(self.asend(td), "send")

    # Receiving -------------------------------------------------------------------------

    async def arecv(
        self, td: Any | None = None, *, device: torch.device | str | int | None = None
    ) -> Any:
        """Receive a collection.

        Args:
            td: a consolidated collection whose memory the leaves are received into, if
                it is of the structure that is received. Default: the one that was received
                before.
            device: where the leaves are to be. Default: where they were, as far as that
                device is here.

        Returns:
            ``td``, the one that was received before, or a new one.

        Raises:
            RuntimeError: the pipe is closed.
            EOFError: the peer has closed it.
            WireError: what has come is no message, ended in the middle, or is larger
                than allowed. The pipe is closed then.
        """
        async with self._receiving:
            endpoint = self._open()
            head = bytearray(wire.HEAD_BYTES)
            with self._closing_on_errors(but=asyncio.CancelledError):
                if not await endpoint.receive(memoryview(head), "a head", may_end=True):
                    self.close()
                    raise EOFError(MSG_END.format(self._peer))
            with self._closing_on_errors():
                return await self._receive(endpoint, bytes(head), td, device)

    async def _receive(
        self, endpoint: Endpoint, content: bytes, td: Any, device: Any
    ) -> Any:
        head = Head.of(content, self._max_bytes)
        if head.kind == NEW:
            description = await receive_bytes(endpoint, head.description_bytes)
            parsed = wire.parse(description, self._max_bytes)
            digest = hashlib.blake2b(description, digest_size=16).digest()
            self._parsed, self._received = (digest, description, parsed), None
        elif head.kind != SAME:
            raise WireError(MSG_KIND.format(self._peer, head.kind))
        if self._parsed is None or self._parsed[0] != head.digest:
            raise WireError(MSG_OTHER.format(self._peer))
        _, description, parsed = self._parsed
        if parsed.num_bytes != head.num_bytes:
            message = MSG_LENGTHS.format(self._peer, head.num_bytes, parsed.num_bytes)
            raise WireError(message)
        found = self._memory_of(td, description)
        if found is None and self._consolidated and self._received is not None:
            td = self._received
            found = self._memory_of(td, description, is_known=True)
        if found is not None:
            await receive_into(endpoint, found)
            return td
        # Memory is taken from the machine only where something is written to it.
        buffer = torch.empty(head.num_bytes, dtype=torch.uint8)
        await receive_into(endpoint, buffer)
        place = place_of(device, head.extra)
        if place is not None:
            buffer = buffer.to(place)
        made = parsed.collection(buffer, place)
        if self._consolidated:
            self._received = made
        return made

    def _memory_of(
        self, td: CollectionProtocol, description: bytes, is_known: bool = False
    ) -> torch.Tensor | None:
        """Find the buffer of a consolidated collection of the structure that is received."""
        held = getattr(td, "_consolidated", None)
        if not held:
            return None
        storage: torch.Tensor = held["storage"]
        if not is_known and wire.describe(td).description != description:
            return None
        return storage

    def recv(
        self, td: Any | None = None, *, device: torch.device | str | int | None = None
    ) -> Any:
        """Receive a collection, and wait until it is there. See :meth:`arecv`.

        Raises:
            RuntimeError: an event loop runs in this thread.
        """
        return _run(self.arecv(td, device=device), "recv")

    def __aiter__(self) -> Self:
        """Receive until the peer closes the pipe, or this side does."""
        return self

    async def __anext__(self) -> Any:
        """Receive the next one.

        Raises:
            WireError: see :meth:`arecv`.
        """
        if self.closed:
            raise StopAsyncIteration
        try:
            return await self.arecv()
        except EOFError:
            raise StopAsyncIteration from None

    # Closing ---------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Return whether the pipe is closed."""
        return self._endpoint is None

    def _open(self) -> Endpoint:
        if self._endpoint is None:
            raise RuntimeError(MSG_CLOSED.format(self._peer))
        return self._endpoint

    @contextlib.contextmanager
    def _closing_on_errors(self, but: type[BaseException] = EOFError) -> Any:
        try:
            yield
        except but:
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the pipe. Closing it again changes nothing."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    async def aclose(self) -> None:
        """Close the pipe, and wait until it is."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            await endpoint.aclose()
        self.close()

    async def __aenter__(self) -> Self:
        """Close the pipe at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.aclose()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close the pipe that nobody uses any more; the end of the process does it, too."""
        if self.__dict__.get("_endpoint") is not None and not _is_finalizing():
            self.close()


# One message without a pipe ----------------------------------------------------------------


async def send_tensordict(
    endpoint: object,
    td: CollectionProtocol,
    *,
    consolidated: bool = True,  # noqa: ARG001 - of release 0.15
) -> None:
    """Send a collection once: to :func:`recv_tensordict` at the other end.

    Args:
        endpoint: a connected socket, or an endpoint of ucxx. It stays open.
        td: the collection.
        consolidated: has no effect: large leaves are sent as they are.

    Raises:
        TypeError: an entry holds a value that can only be pickled.
    """
    message = wire.describe(td)
    digest = hashlib.blake2b(message.description, digest_size=16).digest()
    lengths = len(message.description), message.num_bytes
    head = Head(NEW, *lengths, digest, device_of(message).encode()[:24])
    await send_message(
        endpoint_of(endpoint, TIMEOUT_S), head, message.description, message
    )


async def recv_tensordict(
    endpoint: object,
    td: Any | None = None,
    *,
    device: torch.device | str | int | None = None,
    consolidated: bool = True,
    max_bytes: int | None = None,
) -> Any:
    """Receive a collection that :func:`send_tensordict` sends.

    Args:
        endpoint: a connected socket, or an endpoint of ucxx. It stays open.
        td: a consolidated collection whose memory the leaves are received into, if it is
            of the structure that is received.
        device: where the leaves are to be. Default: where they were.
        consolidated: if false, ``td`` is not used.
        max_bytes: the largest buffer of leaves that is taken. Default: the memory of the
            machine.

    Returns:
        ``td`` or a new collection.

    Raises:
        EOFError: the peer has closed the connection.
        WireError: what has come is no message, ended in the middle, or is larger than
            allowed.
    """
    found = endpoint_of(endpoint, TIMEOUT_S)
    pipe = TensorDictPipe(found, consolidated=False, max_bytes=max_bytes)
    try:
        return await pipe.arecv(td if consolidated else None, device=device)
    finally:
        # The connection is that of the caller.
        pipe._endpoint = None
