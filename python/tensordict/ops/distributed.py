"""Sending and receiving of tensordicts, and their reduction over ranks.

:mod:`tensordict.distributed` does the work. It is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from tensordict.distributed.reducing import Reduction

__all__ = ["DistributedOps"]

Wire = Literal["0.15"]

MSG_WIRE = "wire must be None or '0.15', got {!r}."


class DistributedOps(CollectionProtocol):
    """Sending and receiving of tensordicts, and their reduction over ranks."""

    # Between two ranks, in place
    # --------------------------------------------------------

    def send(
        self,
        dst: Any = None,
        *,
        group: ProcessGroup | None = None,
        group_dst: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
        wire: Wire | None = None,
    ) -> None:
        """Send the leaves to a rank that calls :meth:`recv` or :meth:`irecv`.

        The receiver's tensordict must have the same keys, shapes and dtypes. If they
        differ, both sides raise an error that names the first different key. Small
        leaves are sent together in one message, large leaves one by one. Non-tensor
        data is sent too if it is plain data, and replaces the receiver's.

        Args:
            dst: the global rank of the receiver, or a :class:`TensorDictPipe`.
            group: the process group.
            group_dst: the rank of the receiver in ``group``; pass it instead of
                ``dst``. The group may be unknown to ``torch.distributed``.
            init_tag: the tag of the transfer. Transfers at the same time need different
                tags, or must be received in the order in which they were sent.
            pseudo_rand: shift the tag to another range. With ``wire="0.15"``, derive
                the tag of each leaf from the tag before, as tensordict 0.15 does.
            consolidated: send the buffer of a consolidated tensordict. The receiver
                must be consolidated, too.
            wire: ``"0.15"`` for a receiver that runs tensordict 0.15: one message for
                each leaf, with tags that count up from ``init_tag``.

        Raises:
            ValueError: not exactly one of ``dst`` and ``group_dst`` was passed, or
                ``group_dst`` without ``group``; the rank is not in the group, or is
                this process; the group was destroyed, or lacks this process; or the
                structures of the two sides differ.
            TypeError: a value can only be pickled, or a leaf is neither dense nor
                jagged. The receiver raises an error, too.
            RuntimeError: the receiver is gone, or did not call within the timeout.
        """
        if _is_pipe(dst):
            dst.send(self)
            return
        from tensordict.distributed import calls

        options = calls.Options(init_tag, pseudo_rand, consolidated, _is_old_wire(wire))
        calls.send(self, dst, group, group_dst, options, later=False)

    def recv(
        self,
        src: Any = None,
        *,
        group: ProcessGroup | None = None,
        group_src: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
        wire: Wire | None = None,
    ) -> int:
        """Receive the leaves that :meth:`send` or :meth:`isend` sends, in place.

        Args:
            src: the global rank of the sender, or a :class:`TensorDictPipe`.
            group: the sender's ``group``.
            group_src: the rank of the sender in ``group``; pass it instead of ``src``.
            init_tag: the sender's ``init_tag``.
            pseudo_rand: the sender's ``pseudo_rand``.
            consolidated: the sender's ``consolidated``.
            wire: ``"0.15"`` for a sender that runs tensordict 0.15.

        Returns:
            ``init_tag`` plus the number of leaves, less one: start the next transfer at
            a higher tag. None with ``consolidated``. For a pipe, the received tensordict.

        Raises:
            AttributeError: ``consolidated`` is set, and this tensordict is not
                consolidated.
            ValueError: as in :meth:`send`.
            RuntimeError: the sender could not send, is gone, or did not call within the
                timeout.
        """
        if _is_pipe(src):
            return src.recv(self)
        from tensordict.distributed import calls

        options = calls.Options(init_tag, pseudo_rand, consolidated, _is_old_wire(wire))
        return calls.receive(self, src, group, group_src, options, later=False)

    def isend(
        self,
        dst: int | None = None,
        *,
        group: ProcessGroup | None = None,
        group_dst: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        return_early: bool = False,
        consolidated: bool = False,
        wire: Wire | None = None,
    ) -> Any:
        """Send the leaves, optionally in the background. See :meth:`send`.

        Args:
            dst: as in :meth:`send`.
            group: as in :meth:`send`.
            group_dst: as in :meth:`send`.
            init_tag: as in :meth:`send`.
            pseudo_rand: as in :meth:`send`.
            return_early: return at once. Do not write to the leaves before the transfer
                is complete.
            consolidated: as in :meth:`send`.
            wire: as in :meth:`send`.

        Returns:
            With ``return_early``, a list of works; call ``wait()`` on each. Otherwise
            as :meth:`recv`.

        Raises:
            ValueError: as in :meth:`send`; with ``return_early``, ``wait()`` raises it.
            RuntimeError: as in :meth:`send`.
        """
        from tensordict.distributed import calls

        options = calls.Options(init_tag, pseudo_rand, consolidated, _is_old_wire(wire))
        return calls.send(self, dst, group, group_dst, options, later=return_early)

    def irecv(
        self,
        src: int | None = None,
        *,
        group: ProcessGroup | None = None,
        group_src: int | None = None,
        return_premature: bool = False,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
        wire: Wire | None = None,
    ) -> Any:
        """Receive into the leaves, optionally in the background. See :meth:`recv`.

        Args:
            src: as in :meth:`recv`.
            group: as in :meth:`recv`.
            group_src: as in :meth:`recv`.
            return_premature: return at once. Do not read the leaves before the transfer
                is complete.
            init_tag: as in :meth:`recv`.
            pseudo_rand: as in :meth:`recv`.
            consolidated: as in :meth:`recv`.
            wire: as in :meth:`recv`.

        Returns:
            With ``return_premature``, a list of works; call ``wait()`` on each.
            Otherwise None.

        Raises:
            AttributeError: as in :meth:`recv`.
            ValueError: as in :meth:`recv`.
            RuntimeError: as in :meth:`recv`.
        """
        from tensordict.distributed import calls

        options = calls.Options(init_tag, pseudo_rand, consolidated, _is_old_wire(wire))
        found = calls.receive(
            self, src, group, group_src, options, later=return_premature
        )
        return found if return_premature else None

    # Tensordicts with their structure -------------------------------------------------

    def init_remote(
        self,
        dst: int | None = None,
        group: ProcessGroup | None = None,
        device: torch.device | None = None,
        use_broadcast: bool = False,
        _tensorclass_type: str | None = None,
        *,
        wire: Wire | None = None,
    ) -> None:
        """Send this tensordict to a rank that calls :meth:`from_remote_init`.

        The receiver needs no tensordict of its own. Non-tensor data is sent without
        pickles: numbers, strings, bytes, dicts, lists, tuples, sets and arrays.

        Args:
            dst: the global rank of the receiver. Not needed with ``use_broadcast``.
            group: the process group.
            device: with ``use_broadcast``, the device of this process's result.
            use_broadcast: send to all ranks of the group.
            wire: ``"0.15"`` for a receiver that runs tensordict 0.15; then all
                non-tensor data is pickled.

        Raises:
            ValueError: no receiver was passed, or the rank or the group is wrong, as in
                :meth:`send`.
            TypeError: a value can only be pickled. The receiver raises an error, too.
            RuntimeError: the receiver is gone, or did not call within the timeout.
        """
        from tensordict.distributed import calls

        calls.init_remote(self, dst, group, device, use_broadcast, _is_old_wire(wire))

    @classmethod
    def from_remote_init(
        cls,
        src: int,
        group: ProcessGroup | None = None,
        device: torch.device | None = None,
        use_broadcast: bool = False,
        *,
        wire: Wire | None = None,
    ) -> Self:
        """Receive a tensordict that another rank sends by :meth:`init_remote`.

        Args:
            src: the global rank of the sender.
            group: the process group.
            device: the device of the result's leaves. Default: where they are received.
            use_broadcast: the sender's ``use_broadcast``.
            wire: ``"0.15"`` for a sender that runs tensordict 0.15.

        Returns:
            A consolidated tensordict of the sender's class. Call its
            ``recv(consolidated=True)`` to receive the next ones.

        Raises:
            ValueError: the rank or the group is wrong, as in :meth:`send`.
            RuntimeError: the sender could not send, is gone, or did not call within the
                timeout; or this process does not know the class.
        """
        from tensordict.distributed import calls

        return calls.from_remote_init(
            cls, src, group, device, use_broadcast, _is_old_wire(wire)
        )

    def broadcast(
        self,
        src: int,
        *,
        group: ProcessGroup | None = None,
        device: torch.device | str | None = None,
        _tensorclass_type: str | None = None,
    ) -> Self:
        """Send the tensordict of one rank to all ranks of a group.

        All ranks call this method. Only the tensordict of rank ``src`` is used.

        Args:
            src: the global rank of the sender.
            group: the process group.
            device: the device of the result's leaves.

        Returns:
            A consolidated tensordict in each process. On rank ``src`` this tensordict
            itself, if it is consolidated.

        Raises:
            ValueError: ``src`` is not in the group; all ranks raise it.
            TypeError: on ``src``, a value can only be pickled.
            RuntimeError: on the other ranks, ``src`` could not send; or a process is
                gone.
        """
        from tensordict.distributed import whole

        return whole.broadcast(self, src, group, device, requested=type(self))

    def scatter(
        self,
        src: int,
        tensordicts: list[Any] | None = None,
        *,
        group: ProcessGroup | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Send each rank of a group one tensordict from a list, and return this rank's.

        All ranks call this method; the tensordicts that they call it on are not used.
        The tensordicts in the list may differ in structure.

        Args:
            src: the global rank that passes the list.
            tensordicts: on ``src``, one tensordict for each rank, in the order of the
                ranks.
            group: the process group.
            device: the device of the result's leaves.

        Returns:
            A consolidated tensordict.

        Raises:
            ValueError: ``src`` is not in the group; all ranks raise it. Or on ``src``,
                the list is missing or of another length.
            RuntimeError: on the other ranks, ``src`` could not send; or a process is
                gone.
        """
        from tensordict.distributed import whole

        return whole.scatter(src, tensordicts, group, device)

    def all_gather(self, *, group: ProcessGroup | None = None) -> list[Any]:
        """Send the tensordict of each rank to all ranks of a group.

        All ranks call this method, each on its own tensordict. The tensordicts may
        differ in structure.

        Args:
            group: the process group.

        Returns:
            One consolidated tensordict for each rank, in the order of the ranks.

        Raises:
            TypeError: a value can only be pickled.
            RuntimeError: another rank could not send its tensordict, or is gone.
        """
        from tensordict.distributed import whole

        return whole.all_gather(self, group)

    def gather_and_stack(
        self, dst: int, group: ProcessGroup | None = None
    ) -> Self | None:
        """Receive the tensordicts of all other ranks as the rows of this one.

        All ranks of the group call this method. On rank ``dst``, the first batch
        dimension has one row for each other rank, in the order of the ranks.

        Args:
            dst: the global rank that receives the rows.
            group: the process group.

        Returns:
            On ``dst`` this tensordict, on the other ranks None.

        Raises:
            ValueError: ``dst`` is not in the group; all ranks raise it.
            RuntimeError: the number of rows is not the world size - 1, or a row does
                not fit; all ranks raise it. Or a process is gone.
        """
        from tensordict.distributed import whole

        return whole.gather_and_stack(self, dst, group)

    # Reducing ----------------------------------------------------------------------------

    def reduce(
        self,
        dst: int,
        op: object = None,
        async_op: bool = False,
        return_premature: bool = False,
        group: ProcessGroup | None = None,
        *,
        bucket_bytes: int | None = None,
    ) -> list[Reduction] | None:
        """Reduce the leaves over all ranks of a group, into the leaves of rank ``dst``.

        All ranks call this method, with the same keys, shapes and dtypes. If they
        differ, all ranks raise an error that names the first different key, and nothing
        is reduced.

        Args:
            dst: the global rank that gets the result. The leaves of the other ranks are
                undefined afterwards.
            op: a ``torch.distributed.ReduceOp``. Default: the sum.
            async_op: run the reductions at the same time. They always do.
            return_premature: with ``async_op``, return the works without waiting.
            group: the process group.
            bucket_bytes: the most bytes of small leaves of one dtype that are reduced
                together. Default: 32 MiB, of leaves below 256 KiB.

        Returns:
            With ``async_op`` and ``return_premature``, a list of works; call ``wait()``
            on each. Otherwise None.

        Raises:
            ValueError: the structures differ, or ``dst`` is not in the group.
            RuntimeError: a process is gone, or the backend does not support the
                operation for a dtype.
        """
        from tensordict.distributed import reducing

        later = async_op and return_premature
        return reducing.reduce(
            self, dst, op, group, later=later, bucket_bytes=bucket_bytes
        )

    def all_reduce(
        self,
        op: object = None,
        *,
        group: ProcessGroup | None = None,
        async_op: bool = False,
        bucket_bytes: int | None = None,
    ) -> list[Reduction] | None:
        """Reduce the leaves over all ranks of a group, in place on all of them.

        See :meth:`reduce`.

        Args:
            op: a ``torch.distributed.ReduceOp``. Default: the sum.
            group: the process group.
            async_op: return works instead of waiting for the reductions. The call still
                waits until all ranks have compared their structures.
            bucket_bytes: as in :meth:`reduce`.

        Returns:
            With ``async_op``, a list of works; call ``wait()`` on each. Otherwise None.

        Raises:
            ValueError: the structures differ.
            RuntimeError: as in :meth:`reduce`.
        """
        from tensordict.distributed import reducing

        return reducing.all_reduce(
            self, op, group, async_op=async_op, bucket_bytes=bucket_bytes
        )


def _is_pipe(peer: object) -> bool:
    """Return whether a peer is a connection, not a rank."""
    return peer is not None and hasattr(peer, "send") and hasattr(peer, "recv")


def _is_old_wire(wire: str | None) -> bool:
    """Return whether messages use the wire format of tensordict 0.15.

    Raises:
        ValueError: ``wire`` is another string.
    """
    if wire not in (None, "0.15"):
        raise ValueError(MSG_WIRE.format(wire))
    return wire is not None
