"""Servers of pipes: one for each client that is let in."""

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
    """Takes connections of several clients, and gives a :class:`TensorDictPipe` for each.

    Get them with :meth:`serve`, or with ``async for pipe in server``. Clients without the
    shared secret, and other programs, are refused and logged (logger ``tensordict``); none
    of them holds up the others.

    Args:
        port: the port. 0 for one that is free: :attr:`port` says which.
        consolidated: see :class:`TensorDictPipe`.
        authkey: the shared secret.
        host: the address to listen at, such as ``"127.0.0.1"``. Default: all.
        max_bytes: see :class:`TensorDictPipe`.
        timeout: see :class:`TensorDictPipe`.
        transport: ``"tcp"`` or ``"ucxx"``. Default: UCXX where it is installed.
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
        """The port. Asking for it starts to listen."""
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
        # The loop alone does not keep a task.
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
        """Give a pipe for each client until the server is closed."""
        self._start()
        while not self._is_closed:
            pipe = await self._pipes.get()
            if pipe is None:
                return
            yield pipe

    async def serve(
        self, on_connect: Callable[[TensorDictPipe], Awaitable[None]]
    ) -> None:
        """Run a coroutine function on the pipe of each client, until the server is closed.

        Each call is a task of its own. One that raises is logged.

        Args:
            on_connect: takes the pipe.
        """
        async for pipe in self:
            self._keep(asyncio.ensure_future(_served(on_connect, pipe)))

    def close(self) -> None:
        """Take no more clients; :meth:`serve` returns. Pipes stay open."""
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
        """Take no more clients, as :meth:`close`."""
        self._is_closed = True
        self._stop()

    async def __aenter__(self) -> Self:
        """Close the server at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.aclose()


async def _served(
    on_connect: Callable[[TensorDictPipe], Awaitable[None]], pipe: TensorDictPipe
) -> None:
    try:
        await on_connect(pipe)
    except Exception:  # noqa: BLE001 - what a handler raises is its own; others go on
        LOGGER.exception("A client of a TensorDictServer was dropped")
        pipe.close()
