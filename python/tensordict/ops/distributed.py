"""Sending and receiving collections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import distributed

from tensordict import _rust
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["DistributedOps"]


class DistributedOps(CollectionProtocol):
    """Sending and receiving collections."""

    def scatter(
        self,
        src: int,
        tensordicts: list[Any] | None = None,
        *,
        group: ProcessGroup | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Receive this process's share of a list that one process holds.

        A collective call: all processes of the group make it, each on a collection of
        the structure, shapes and dtypes of its share.

        Args:
            src: the rank of the process that holds the list.
            tensordicts: there, one collection per process, in the order of the ranks.
            group: the process group.
            device: where the leaves are received; what the backend needs.

        Returns:
            A new collection of the structure of this one, which stays as it is.

        Raises:
            ValueError: this process is ``src`` and the list is missing, or has not one
                collection for each process.
        """
        shares: list[list[torch.Tensor]] | None = None
        if distributed.get_rank() == src:
            size = distributed.get_world_size(group)
            if tensordicts is None or len(tensordicts) != size:
                found = "none" if tensordicts is None else len(tensordicts)
                msg = (
                    f"scatter needs one tensordict for each of the {size} processes in "
                    f"the process of rank src={src}, got {found}."
                )
                raise ValueError(msg)
            shares = [_rust.leaves(share) for share in tensordicts]
        received = []
        for position, leaf in enumerate(_rust.leaves(self)):
            target = torch.empty_like(
                leaf, device=device, memory_format=torch.contiguous_format
            )
            parts = None
            if shares is not None:
                parts = [
                    share[position].detach().to(target.device).contiguous()
                    for share in shares
                ]
            distributed.scatter(target, parts, src=src, group=group)
            received.append(target)
        return _rust.rebuild(self, received)

    def init_remote(
        self,
        dst: int | None = None,
        group: ProcessGroup | None = None,
        device: torch.device | None = None,
        use_broadcast: bool = False,
        _tensorclass_type: str | None = None,
    ) -> None:
        """Send this collection to a process that calls :meth:`from_remote_init`.

        First goes what it is made of (types, keys, shapes, dtypes, names), then its
        leaves, one by one, in the order of their keys.

        Args:
            dst: the rank of the receiver. Not needed with ``use_broadcast``.
            group: the process group.
            device: where the description is serialised; what the backend needs.
            use_broadcast: whether all processes of the group receive it.

        Raises:
            ValueError: there is no receiver.
        """
        message = [_describe(self)]
        leaves = [leaf.detach().contiguous() for leaf in _rust.leaves(self)]
        if use_broadcast:
            source = distributed.get_rank()
            distributed.broadcast_object_list(
                message, src=source, group=group, device=device
            )
            for leaf in leaves:
                distributed.broadcast(leaf, src=source, group=group)
            return
        if dst is None:
            msg = "init_remote needs the rank of the receiver, dst, or use_broadcast=True."
            raise ValueError(msg)
        distributed.send_object_list(message, dst=dst, group=group, device=device)
        for leaf in leaves:
            distributed.send(leaf, dst=dst, group=group)

    @classmethod
    def from_remote_init(
        cls,
        src: int,
        group: ProcessGroup | None = None,
        device: torch.device | None = None,
        use_broadcast: bool = False,
    ) -> Self:
        """Receive the collection that another process sends by :meth:`init_remote`.

        Args:
            src: the rank of the sender.
            group: the process group.
            device: where the leaves are received. Default: as they were sent.
            use_broadcast: whether the sender gave ``use_broadcast``.

        Returns:
            A collection of the sender's type, keys, batch size and names.
        """
        message: list[Any] = [None]
        if use_broadcast:
            distributed.broadcast_object_list(
                message, src=src, group=group, device=device
            )
        else:
            distributed.recv_object_list(message, src=src, group=group, device=device)
        result: Self = _allocate(message[0], device)
        for leaf in _rust.leaves(result):
            if use_broadcast:
                distributed.broadcast(leaf, src=src, group=group)
            else:
                distributed.recv(leaf, src=src, group=group)
        return result


def _describe(td: Any) -> dict[str, Any]:
    """Describe the entries of a collection without their values."""
    entries: list[tuple[str, Any]] = []
    for key, value in list(td.items()):
        if isinstance(value, CollectionProtocol):
            entries.append((key, _describe(value)))
        else:
            entries.append((key, (value.shape, value.dtype, value.device)))
    return {
        "type": td._dense_type(),
        "batch_size": td.batch_size,
        "device": td.device,
        "names": td._td_dim_names,
        "entries": entries,
    }


def _allocate(description: dict[str, Any], device: torch.device | None) -> Any:
    """A container as described, its leaves not initialised."""
    entries: dict[str, Any] = {}
    for key, item in description["entries"]:
        if isinstance(item, dict):
            entries[key] = _allocate(item, device)
        else:
            shape, dtype, place = item
            entries[key] = torch.empty(shape, dtype=dtype, device=device or place)
    return _rust.new(
        description["type"],
        entries,
        description["batch_size"],
        device or description["device"],
        description["names"],
    )
