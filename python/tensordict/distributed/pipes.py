"""Pipes: a stream of collections between two processes.

A message is a head, a description if the structure is new, and the leaves, in the format of
:mod:`tensordict.distributed.wire`. Large leaves are sent from their memory without a copy, and
received into the memory of the result.
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
"""Kinds of heads: a description follows, or the structure is the one of the message before."""

TIMEOUT_S = 60.0

MSG_CLOSED = "The pipe to {} is closed."
MSG_RUNNING = (
    "{0}() blocks, and an event loop runs in this thread: call `await pipe.a{0}(...)` "
    "instead."
)
MSG_KIND = (
    "The peer at {} has sent a message of kind {}, which this version does not know."
)
MSG_OTHER = (
    "The peer at {} has sent leaves of another structure than it described: a message was "
    "lost, or is from another pipe. Connect again."
)
MSG_LENGTHS = "The peer at {} announces {} bytes of leaves but describes {}: its message is damaged."
MSG_END = "The peer at {} has closed the pipe."


def available_bytes() -> int:
    """Return the size of this machine's memory: no message can be larger."""
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
    """A connection between two processes that sends collections of any class.

    Create it with :meth:`connect` in one process and :meth:`listen` in the other, or with
    :class:`TensorDictServer` for several clients. The pipe uses UCXX if ``ucxx`` is installed,
    and TCP otherwise.

    Received bytes are not trusted: nothing is unpickled or imported, and memory is allocated only
    for bytes that arrive. An invalid message raises :class:`WireError` and closes the pipe. With
    ``authkey=`` both processes prove that they know a shared secret. Messages are neither encrypted
    nor signed.

    Args:
        endpoint: a connected socket, or a ucxx endpoint.
        consolidated: whether to receive a collection with the structure of the one before
            into the same memory. :meth:`arecv` then returns the same collection again:
            ``clone()`` it to keep it. If false, each collection is new.
        listener: an object with ``close()`` that is closed with the pipe.
        max_bytes: the largest buffer of leaves to accept. The default is the size of the
            machine's memory.
        timeout: the seconds without progress in the middle of a message after which an
            operation fails. ``None`` waits forever. Between messages there is no limit.

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
        """Connect to the process that listens at an address.

        Args:
            host: the host name or address.
            port: the port.
            consolidated: see the class.
            authkey: the shared secret.
            max_bytes: see the class.
            timeout: see the class.
            transport: ``"tcp"`` or ``"ucxx"``. The default is UCXX if ``ucxx`` is installed.

        Raises:
            ConnectionError: no process listens there.
            WireError: the peer is not a pipe, or has another secret.
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

        Clients without the shared secret and other programs are refused and logged.

        Args:
            port: the port.
            consolidated: see the class.
            authkey: the shared secret.
            host: the address to listen at, such as ``"127.0.0.1"``. The default is all
                addresses.
            max_bytes: see the class.
            timeout: see the class.
            transport: ``"tcp"`` or ``"ucxx"``. The default is UCXX if ``ucxx`` is installed.

        Raises:
            OSError: the port cannot be bound.
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
            pipe: Any = await anext(aiter(server))
        pipe.__class__ = cls
        return pipe

    # Sending ---------------------------------------------------------------------------

    async def asend(self, td: CollectionProtocol) -> None:
        """Send a collection.

        Its description is sent only if the structure differs from the message before.

        Args:
            td: a collection of any class.

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
            # The peer cannot read on after a partial message, so an error closes the pipe.
            with self._closing_on_errors():
                await send_message(endpoint, head, description, message)
            self._sent = digest

    def send(self, td: CollectionProtocol) -> None:
        """Send a collection, and wait until it is sent. See :meth:`asend`.

        Raises:
            RuntimeError: an event loop runs in this thread, or the pipe is closed.
        """
        _run(self.asend(td), "send")

    # Receiving -------------------------------------------------------------------------

    async def arecv(
        self, td: Any | None = None, *, device: torch.device | str | int | None = None
    ) -> Any:
        """Receive a collection.

        Args:
            td: a consolidated collection. If its structure is the received one, the leaves
                are received into its memory. The default is the collection received
                before, unless the pipe has ``consolidated=False``.
            device: the device of a new collection. The default is the sender's CUDA device
                if this process has it, and the CPU otherwise.

        Returns:
            ``td``, the collection received before, or a new collection.

        Raises:
            RuntimeError: the pipe is closed.
            EOFError: the peer has closed the pipe.
            WireError: the received bytes are not a message, end in the middle, or are more
                than ``max_bytes``. The pipe is closed then.
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
        memory = self._memory_of(td, description)
        if memory is None and self._consolidated and self._received is not None:
            td = self._received
            memory = self._memory_of(td, description, is_same=True)
        if memory is not None:
            await receive_into(endpoint, memory)
            return td
        # The system provides a page of `torch.empty` only when bytes are written to it.
        buffer = torch.empty(head.num_bytes, dtype=torch.uint8)
        await receive_into(endpoint, buffer)
        place = place_of(device, head.extra)
        if place is not None:
            buffer = buffer.to(place)
        received = parsed.collection(buffer, place)
        if self._consolidated:
            self._received = received
        return received

    def _memory_of(
        self, td: CollectionProtocol, description: bytes, is_same: bool = False
    ) -> torch.Tensor | None:
        """Return the buffer of a consolidated collection if its structure is the received.

        ``is_same`` says that the structure is known to be the same.
        """
        state = getattr(td, "_consolidated", None)
        if not state:
            return None
        storage: torch.Tensor = state["storage"]
        if not is_same and wire.describe(td).description != description:
            return None
        return storage

    def recv(
        self, td: Any | None = None, *, device: torch.device | str | int | None = None
    ) -> Any:
        """Receive a collection, and wait until it has arrived. See :meth:`arecv`.

        Raises:
            RuntimeError: an event loop runs in this thread, or the pipe is closed.
        """
        return _run(self.arecv(td, device=device), "recv")

    def __aiter__(self) -> Self:
        """Iterate over received collections until the peer or this process closes the pipe."""
        return self

    async def __anext__(self) -> Any:
        """Receive the next collection.

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
        """Close the pipe, and wait until it is closed."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            await endpoint.aclose()
        self.close()

    async def __aenter__(self) -> Self:
        """Return the pipe; the end of the block closes it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the pipe."""
        await self.aclose()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close a pipe that is no longer referenced, unless the interpreter is ending."""
        if self.__dict__.get("_endpoint") is not None and not _is_finalizing():
            self.close()


# One message without a pipe ----------------------------------------------------------------


async def send_tensordict(
    endpoint: object,
    td: CollectionProtocol,
    *,
    consolidated: bool = True,  # noqa: ARG001 - a parameter of tensordict 0.15
) -> None:
    """Send one collection to a peer that calls :func:`recv_tensordict`.

    Args:
        endpoint: a connected socket, or a ucxx endpoint. It stays open.
        td: the collection.
        consolidated: has no effect. Large leaves are sent without a copy.

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
    """Receive one collection that a peer sends with :func:`send_tensordict`.

    Args:
        endpoint: a connected socket, or a ucxx endpoint. It stays open.
        td: a consolidated collection. If its structure is the received one, the leaves
            are received into its memory.
        device: the device of a new collection. The default is the sender's CUDA device
            if this process has it, and the CPU otherwise.
        consolidated: if false, ``td`` is not used.
        max_bytes: the largest buffer of leaves to accept. The default is the size of
            the machine's memory.

    Returns:
        ``td`` or a new collection.

    Raises:
        EOFError: the peer has closed the connection.
        WireError: the received bytes are not a message, end in the middle, or are more
            than ``max_bytes``.
    """
    connection = endpoint_of(endpoint, TIMEOUT_S)
    pipe = TensorDictPipe(connection, consolidated=False, max_bytes=max_bytes)
    try:
        return await pipe.arecv(td if consolidated else None, device=device)
    finally:
        # The connection belongs to the caller and stays open.
        pipe._endpoint = None
