"""Sending and receiving collections, and reducing them over processes.

The work is done in :mod:`tensordict.distributed`, which is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

__all__ = ["DistributedOps"]

Wire = Literal["0.15"]

MSG_WIRE = "wire must be None or '0.15', got {!r}."


class DistributedOps(CollectionProtocol):
    """Sending and receiving collections, and reducing them over processes."""

    # From one to another, in place -----------------------------------------------------

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
        """Send the leaves to a process that calls :meth:`recv` or :meth:`irecv`.

        The receiver has a collection of the same keys, shapes and dtypes: where they
        differ, both sides raise an error that names the first key. Small leaves go
        together in one message, large ones as they are. Values that are no tensors go
        along, where they are plain data, and replace those under the same keys.

        Args:
            dst: the global rank of the receiver, or a :class:`TensorDictPipe`.
            group: the process group.
            group_dst: the rank of the receiver in ``group``, in the place of ``dst``. The
                group may be one that ``torch.distributed`` does not know.
            init_tag: the tag of the transfer. Two at the same time have different ones,
                or are received in the order in which they were sent.
            pseudo_rand: whether the tag is one of another range. With ``wire="0.15"`` each
                leaf has a tag that follows from the one before, as there.
            consolidated: whether the buffer of a consolidated collection is sent, to a
                receiver that has one, too.
            wire: ``"0.15"`` for a receiver that runs tensordict 0.15: one message for
                each leaf, with tags that count up from ``init_tag``.

        Raises:
            ValueError: not exactly one of ``dst`` and ``group_dst`` is given, the
                latter without ``group``; the rank is not in the group or that of this
                process; the group was destroyed, or this process is not in it; or the
                structures of the sides differ.
            TypeError: a value can only be pickled, or a leaf is neither dense nor
                jagged. The receiver raises, too.
            RuntimeError: the receiver is gone, or did not call within the timeout.
        """
        if _is_pipe(dst):
            dst.send(self)
            return
        from tensordict.distributed import calls

        options = calls.Options(init_tag, pseudo_rand, consolidated, _known(wire))
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
        """Receive the leaves that :meth:`send` or :meth:`isend` sends, into those of this.

        Args:
            src: the global rank of the sender, or a :class:`TensorDictPipe`.
            group: as the sender gave it.
            group_src: the rank of the sender in ``group``, in the place of ``src``.
            init_tag: as the sender gave it.
            pseudo_rand: as the sender gave it.
            consolidated: as the sender gave it.
            wire: ``"0.15"`` for a sender that runs tensordict 0.15.

        Returns:
            The tag behind which the next transfer can begin: ``init_tag`` and one for each
            leaf, less one. None with ``consolidated``; from a pipe, what came.

        Raises:
            AttributeError: ``consolidated``, and this tensordict is not.
            ValueError: as in :meth:`send`.
            RuntimeError: the sender could not send, is gone, or did not call within the
                timeout.
        """
        if _is_pipe(src):
            return src.recv(self)
        from tensordict.distributed import calls

        options = calls.Options(init_tag, pseudo_rand, consolidated, _known(wire))
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
        """Send the leaves, in the background if asked to. See :meth:`send`.

        Args:
            dst: as in :meth:`send`.
            group: as in :meth:`send`.
            group_dst: as in :meth:`send`.
            init_tag: as in :meth:`send`.
            pseudo_rand: as in :meth:`send`.
            return_early: whether to return at once. Nothing is to be written to the
                leaves before the transfer is over.
            consolidated: as in :meth:`send`.
            wire: as in :meth:`send`.

        Returns:
            With ``return_early`` a list of what is to be waited for, ``work.wait()``.
            Otherwise as :meth:`recv`.

        Raises:
            ValueError: as in :meth:`send`; with ``return_early`` when it is waited for.
            RuntimeError: as in :meth:`send`.
        """
        from tensordict.distributed import calls

        options = calls.Options(init_tag, pseudo_rand, consolidated, _known(wire))
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
        """Receive into the leaves, in the background if asked to. See :meth:`recv`.

        Args:
            src: as in :meth:`recv`.
            group: as in :meth:`recv`.
            group_src: as in :meth:`recv`.
            return_premature: whether to return at once. The leaves are not to be read
                before the transfer is over.
            init_tag: as in :meth:`recv`.
            pseudo_rand: as in :meth:`recv`.
            consolidated: as in :meth:`recv`.
            wire: as in :meth:`recv`.

        Returns:
            With ``return_premature`` a list of what is to be waited for,
            ``work.wait()``. Otherwise None.

        Raises:
            AttributeError: as in :meth:`recv`.
            ValueError: as in :meth:`recv`.
            RuntimeError: as in :meth:`recv`.
        """
        from tensordict.distributed import calls

        options = calls.Options(init_tag, pseudo_rand, consolidated, _known(wire))
        found = calls.receive(
            self, src, group, group_src, options, later=return_premature
        )
        return found if return_premature else None

    # Whole collections -------------------------------------------------------------------

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
        """Send this tensordict to a process that calls :meth:`from_remote_init`.

        The receiver need not know anything of it. Values that are no tensors go along
        without pickles: numbers, text, bytes, dicts, lists, tuples, sets, arrays.

        Args:
            dst: the global rank of the receiver. Not needed with ``use_broadcast``.
            group: the process group.
            device: with ``use_broadcast``, where the result of this process is.
            use_broadcast: whether all processes of the group receive it.
            wire: ``"0.15"`` for a receiver that runs tensordict 0.15, to which all values
                are pickled.

        Raises:
            ValueError: there is no receiver, or the rank or the group is none, as in
                :meth:`send`.
            TypeError: a value can only be pickled. The receiver raises, too.
            RuntimeError: the receiver is gone, or did not call within the timeout.
        """
        from tensordict.distributed import calls

        calls.init_remote(self, dst, group, device, use_broadcast, _known(wire))

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
        """Receive the tensordict that another process sends by :meth:`init_remote`.

        Args:
            src: the global rank of the sender.
            group: the process group.
            device: where the leaves of the result are. Default: where they are received.
            use_broadcast: whether the sender gave ``use_broadcast``.
            wire: ``"0.15"`` for a sender that runs tensordict 0.15.

        Returns:
            A consolidated collection of the class that was sent, into which
            ``recv(consolidated=True)`` receives the next ones.

        Raises:
            ValueError: the rank or the group is none, as in :meth:`send`.
            RuntimeError: the sender could not send it, is gone, or did not call within
                the timeout; or its class is not known in this process.
        """
        from tensordict.distributed import calls

        return calls.from_remote_init(
            cls, src, group, device, use_broadcast, _known(wire)
        )

    def broadcast(
        self,
        src: int,
        *,
        group: ProcessGroup | None = None,
        device: torch.device | str | None = None,
        _tensorclass_type: str | None = None,
    ) -> Self:
        """Send the tensordict of one process to all of a group.

        All of them call it. What the others call it on does not matter.

        Args:
            src: the global rank of the process whose collection it is.
            group: the process group.
            device: where the leaves of the result are.

        Returns:
            In each process a consolidated collection. In that of rank ``src`` it is this
            one, if it is consolidated.

        Raises:
            ValueError: in all processes, ``src`` is not in the group.
            TypeError: in ``src``, a value can only be pickled.
            RuntimeError: in the others, ``src`` could not send it; a process is gone.
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
        """Receive this process's share of a list that one process holds.

        All processes of the group call it. What they call it on does not matter, and the
        shares may differ in everything.

        Args:
            src: the global rank of the process that holds the list.
            tensordicts: there, one collection per process, in the order of the ranks.
            group: the process group.
            device: where the leaves of the result are.

        Returns:
            A consolidated collection.

        Raises:
            ValueError: in all processes, ``src`` is not in the group; in ``src``, the
                list is missing, or has not one collection for each process.
            RuntimeError: in the others, ``src`` could not send; a process is gone.
        """
        from tensordict.distributed import whole

        return whole.scatter(src, tensordicts, group, device)

    def all_gather(self, *, group: ProcessGroup | None = None) -> list[Any]:
        """Give each process of a group the tensordicts of all of them.

        All call it, each with its own collection, which may differ in everything.

        Args:
            group: the process group.

        Returns:
            A consolidated collection for each process, in the order of the ranks.

        Raises:
            TypeError: a value can only be pickled.
            RuntimeError: another process could not send its own, or is gone.
        """
        from tensordict.distributed import whole

        return whole.all_gather(self, group)

    def gather_and_stack(
        self, dst: int, group: ProcessGroup | None = None
    ) -> Self | None:
        """Write the tensordicts of all other processes to the rows of one collection.

        All processes of the group call it. In that of rank ``dst`` the first dim has a
        row for each of the others, in the order of their ranks.

        Args:
            dst: the global rank of the process that has the rows.
            group: the process group.

        Returns:
            In ``dst`` this tensordict, in the others None.

        Raises:
            ValueError: in all processes, ``dst`` is not in the group.
            RuntimeError: there are not world size - 1 rows, or they do not fit, which is
                an error in all processes; one is gone.
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
    ) -> Any:
        """Reduce the leaves over all processes of a group, into those of rank ``dst``.

        All call it with collections of the same keys, shapes and dtypes: where they
        differ, all raise an error that names the first key, and nothing is reduced.

        Args:
            dst: the global rank of the process that has the result. What the others have
                afterwards is not defined.
            op: a ``torch.distributed.ReduceOp``. Default: the sum.
            async_op: whether the reductions run at the same time. They do anyway.
            return_premature: with ``async_op``, return what is to be waited for.
            group: the process group.
            bucket_bytes: small leaves of a dtype are reduced together, at most so many
                bytes. Default: leaves below 256 KiB, 32 MiB together.

        Returns:
            With ``async_op`` and ``return_premature`` a list of what is to be waited for,
            ``work.wait()``. Otherwise None.

        Raises:
            ValueError: the structures differ, or ``dst`` is not in the group.
            RuntimeError: a process is gone, or the backend does not know the operation
                for a dtype.
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
    ) -> Any:
        """Reduce the leaves over all processes of a group, in place in all of them.

        See :meth:`reduce`.

        Args:
            op: a ``torch.distributed.ReduceOp``. Default: the sum.
            group: the process group.
            async_op: return what is to be waited for. The call itself waits until all
                processes have compared their structures.
            bucket_bytes: as in :meth:`reduce`.

        Returns:
            With ``async_op`` a list of what is to be waited for, ``work.wait()``.
            Otherwise None.

        Raises:
            ValueError: the structures differ.
            RuntimeError: as in :meth:`reduce`.
        """
        from tensordict.distributed import reducing

        return reducing.all_reduce(
            self, op, group, async_op=async_op, bucket_bytes=bucket_bytes
        )


def _is_pipe(peer: object) -> bool:
    """Return whether a partner is a connection rather than a rank."""
    return peer is not None and hasattr(peer, "send") and hasattr(peer, "recv")


def _known(wire: str | None) -> bool:
    """Return whether messages are those of tensordict 0.15.

    Raises:
        ValueError: there is no such wire.
    """
    if wire not in (None, "0.15"):
        raise ValueError(MSG_WIRE.format(wire))
    return wire is not None
