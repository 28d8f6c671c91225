"""Servers that accept several clients, with a pipe for each client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from tensordict.distributed.endpoints import (
    LOGGER,
    Endpoint,
    PeerError,
    greet,
    listen,
    refuse,
)
from tensordict.distributed.pipes import TIMEOUT_S, TensorDictPipe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

__all__ = ["TensorDictServer"]


class TensorDictServer:
    """Accepts connections of several clients, and creates a :class:`TensorDictPipe` for each.

    :meth:`serve` runs a coroutine function for each client; ``async for pipe in server`` yields
    the pipes. Clients without the shared secret and other programs are refused, and logged by the
    logger ``tensordict``. A slow or refused client does not delay the others.

    Args:
        port: the port, or 0 for a free port: :attr:`port` returns it.
        consolidated: see :class:`TensorDictPipe`.
        authkey: the shared secret.
        host: the address to listen at, such as ``"127.0.0.1"``. The default is all addresses.
        max_bytes: see :class:`TensorDictPipe`.
        timeout: see :class:`TensorDictPipe`.
        transport: ``"tcp"`` or ``"ucxx"``. The default is UCXX if ``ucxx`` is installed.
    """

    def __init__(
        self,
        port: int,
        *,
        consolidated: bool = True,
        authkey: bytes | str | None = None,
        host: str | None = None,
        max_bytes: int | None = None,
        timeout: float | None = TIMEOUT_S,
        transport: str | None = None,
    ) -> None:
        self._address = host, port, timeout, transport
        self._authkey = authkey
        self._options = {
            "consolidated": consolidated,
            "max_bytes": max_bytes,
            "timeout": timeout,
        }
        self._listener: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pipes: asyncio.Queue[TensorDictPipe | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @property
    def port(self) -> int:
        """The port. Reading this attribute binds the port."""
        return int(self._listening().port)

    def _listening(self) -> Any:
        if self._listener is None:
            self._listener = listen(*self._address)
        return self._listener

    def _start(self) -> None:
        if self._loop is None and not self._is_closed:
            self._listening().start(self._take)
            self._loop = asyncio.get_running_loop()

    def _take(self, endpoint: Endpoint) -> None:
        self._keep(asyncio.ensure_future(self._greeted(endpoint)))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        # An event loop keeps only weak references to tasks.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greeted(self, endpoint: Endpoint) -> None:
        try:
            await greet(endpoint, self._authkey, listens=True)
        except PeerError as error:
            refuse(endpoint, error)
            return
        except BaseException:
            endpoint.close()
            raise
        if self._is_closed:
            endpoint.close()
            return
        self._pipes.put_nowait(TensorDictPipe(endpoint, **self._options))  # type: ignore[arg-type]

    async def __aiter__(self) -> AsyncIterator[TensorDictPipe]:
        """Yield a pipe for each client until the server is closed."""
        self._start()
        while not self._is_closed:
            pipe = await self._pipes.get()
            if pipe is None:
                return
            yield pipe

    async def serve(
        self, on_connect: Callable[[TensorDictPipe], Awaitable[None]]
    ) -> None:
        """Run a coroutine function with the pipe of each client, until the server is closed.

        Each call is a separate task. If a call raises, the error is logged and the pipe closed.

        Args:
            on_connect: the coroutine function. Its argument is the pipe.
        """
        async for pipe in self:
            self._keep(asyncio.ensure_future(_served(on_connect, pipe)))

    def close(self) -> None:
        """Accept no more clients, and let :meth:`serve` return. Pipes in use stay open."""
        if self._is_closed:
            return
        self._is_closed = True
        loop = self._loop
        if loop is None:
            self._stop()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        while not self._pipes.empty():
            pipe = self._pipes.get_nowait()
            if pipe is not None:
                pipe.close()
        self._pipes.put_nowait(None)

    async def aclose(self) -> None:
        """Accept no more clients, as :meth:`close` does."""
        self._is_closed = True
        self._stop()

    async def __aenter__(self) -> Self:
        """Return the server; the end of the block closes it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the server."""
        await self.aclose()


async def _served(
    on_connect: Callable[[TensorDictPipe], Awaitable[None]], pipe: TensorDictPipe
) -> None:
    try:
        await on_connect(pipe)
    except Exception:  # noqa: BLE001 - an error of one client must not stop the others
        LOGGER.exception("A client of a TensorDictServer was dropped")
        pipe.close()
