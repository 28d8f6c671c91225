"""Sending and receiving of tensordicts through a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    import torch

    from tensordict.distributed.pipes import TensorDictPipe

__all__ = ["PipeOps"]


class PipeOps(CollectionProtocol):
    """Sending and receiving of tensordicts through a pipe."""

    async def asend(self, dst: TensorDictPipe) -> None:
        """Send this tensordict through a pipe: ``await dst.asend(self)``.

        Args:
            dst: the pipe, a :class:`tensordict._ucxx.TensorDictPipe`.

        Raises:
            RuntimeError: the pipe is closed.
            TypeError: an entry contains an object that can only be pickled.
            OSError: the connection is lost.
        """
        await dst.asend(self)

    async def arecv(
        self, src: TensorDictPipe, *, device: torch.device | str | None = None
    ) -> Any:
        """Receive a tensordict from a pipe: ``await src.arecv(self, device=device)``.

        If this tensordict is consolidated and has the sender's structure, its memory is
        overwritten. Use the returned tensordict in any case.

        Args:
            src: the pipe, a :class:`tensordict._ucxx.TensorDictPipe`.
            device: the device of the leaves of a new tensordict.

        Returns:
            This tensordict, the tensordict that the pipe received before, or a new one.

        Raises:
            RuntimeError: the pipe is closed, or received something that is no message.
            EOFError: the peer has closed the pipe.

        Examples:
            >>> import asyncio, socket
            >>> from tensordict._ucxx import TensorDictPipe
            >>> async def main():
            ...     one, other = map(TensorDictPipe, socket.socketpair())
            ...     async with one, other:
            ...         await TensorDict(a=torch.ones(3)).asend(one)
            ...         return await TensorDict().arecv(other)
            >>> asyncio.run(main())["a"]
            tensor([1., 1., 1.])
        """
        return await src.arecv(self, device=device)
