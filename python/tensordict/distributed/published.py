"""The messages of tensordict 0.15, for a partner that runs it: ``wire="0.15"``.

Each leaf is one message, in the order of keys, with a tag that counts up, or with
``pseudo_rand`` follows from the one before. Structures are not compared, and values that
are no tensors do not travel, but in ``init_remote``, whose description is a pickle: it is
read with nothing but plain data.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from tensordict.distributed.channels import device_of
from tensordict.distributed.groups import MSG_ALL, group_of, root_of
from tensordict.distributed.in_place import MSG_NOT_CONSOLIDATED
from tensordict.distributed.plans import (
    buffer_of,
    copy_into,
    new_buffer_of,
    parts_of,
)
from tensordict.distributed.tags import published_tags
from tensordict.primitives import registry
from tensordict.primitives.checks import is_tensorclass
from tensordict.storage import describing, restricted_pickle
from tensordict.storage.layouts import consolidated

if TYPE_CHECKING:
    from tensordict.distributed.channels import Channel
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = [
    "broadcast_whole",
    "receive",
    "receive_broadcast",
    "receive_whole",
    "send",
    "send_whole",
]

MSG_PICKLE = "The description that rank {rank} has sent is refused: {error}"
MSG_CLASS = (
    "The description names the class {name}, which is not known here: import it."
)
MSG_LENGTH = "Rank {rank} announces a description of {length} bytes."

MAX_DESCRIPTION_BYTES = 1 << 30


def send(
    td: CollectionProtocol,
    channel: Channel,
    tag: int,
    *,
    is_random: bool,
    is_whole: bool,
) -> list[Any]:
    """Begin to send the leaves: what is to be waited for."""
    if is_whole:
        channel.tag = 0
        whole = buffer_of(td) or new_buffer_of(td)
        return [channel.send(whole.found[0])]
    leaves = parts_of(td).leaves
    works = []
    tags = published_tags(tag, len(leaves), is_random=is_random)
    for leaf, each in zip(leaves, tags, strict=True):
        channel.tag = each
        works.append(channel.send(leaf.detach().contiguous()))
    return works


def receive(
    td: CollectionProtocol,
    channel: Channel,
    tag: int,
    *,
    is_random: bool,
    is_whole: bool,
) -> list[Any]:
    """Begin to receive into the leaves: what is to be waited for.

    Raises:
        AttributeError: ``is_whole``, and the collection is not consolidated.
    """
    if is_whole:
        whole = buffer_of(td)
        if whole is None:
            raise AttributeError(MSG_NOT_CONSOLIDATED.format(type(td).__name__))
        channel.tag = 0
        return [channel.receive(whole.found[0])]
    parts = parts_of(td)
    views = {place: (view, key) for place, view, key in parts.views}
    works: list[Any] = []
    leaves = parts.leaves
    tags = published_tags(tag, len(leaves), is_random=is_random)
    for place, leaf in enumerate(leaves):
        channel.tag = tags[place]
        target = leaf.detach()
        staged = torch.empty_like(target, memory_format=torch.contiguous_format)
        if target.is_contiguous() and place not in views:
            works.append(channel.receive(target))
        else:
            work = channel.receive(staged)
            works.append(_Copied(work, target, staged, views.get(place)))
    return works


class _Copied:
    """A message that is copied to a leaf with gaps when it is there."""

    def __init__(
        self, work: Any, target: torch.Tensor, staged: torch.Tensor, view: Any
    ) -> None:
        self._work, self._target, self._staged, self._view = work, target, staged, view

    def wait(self, *timeout: object) -> bool:
        """Wait, and copy."""
        self._work.wait(*timeout)
        if self._view is not None:
            self._view[0].set_(self._view[1], self._staged)
        else:
            copy_into(self._target, self._staged)
        return True

    def is_completed(self) -> bool:
        """Tell whether the message is there."""
        return bool(self._work.is_completed())


# Whole collections ------------------------------------------------------------------------


def send_whole(
    td: CollectionProtocol, channel: Channel, group: Any, device: Any
) -> None:
    """Send a collection to a process that does not know what it consists of."""
    metadata, storage = _message(td)
    distributed.send_object_list(
        [metadata], dst=channel.shown, group=group, device=device
    )
    channel.send(storage).wait()


def receive_whole(channel: Channel, device: object) -> Any:
    """Receive a collection that a process of tensordict 0.15 sends.

    Raises:
        RuntimeError: its description is not plain data.
    """
    length = torch.zeros(1, dtype=torch.long, device=channel.device)
    channel.receive(length).wait()
    _check_length(int(length), channel.shown)
    content = channel.receive_bytes(int(length))
    metadata = _metadata(content, channel.shown)
    storage = channel.empty(int(metadata["_total_bytes"]))
    # A buffer without bytes is a message, too.
    channel.receive(storage).wait()
    return _collection(metadata, storage, device)


def broadcast_whole(td: CollectionProtocol, group: Any) -> None:
    """Send a collection to all processes of a group."""
    group = group_of(group, MSG_ALL.format(name="init_remote"))
    metadata, storage = _message(td)
    metadata["_storage_device"] = str(storage.device)
    own = distributed.get_rank()
    distributed.broadcast_object_list([metadata], src=own, group=group)
    place = device_of(group)
    distributed.broadcast(storage.to(place), src=own, group=group)


def receive_broadcast(src: int, group: Any, device: object) -> Any:
    """Receive a collection that a process of tensordict 0.15 sends to all of a group.

    Raises:
        RuntimeError: its description is not plain data.
    """
    group, _, src = root_of("src", src, group)
    place = device_of(group)
    length = torch.zeros(1, dtype=torch.long, device=place)
    distributed.broadcast(length, src=src, group=group)
    _check_length(int(length), src)
    text = torch.empty(int(length), dtype=torch.uint8, device=place)
    distributed.broadcast(text, src=src, group=group)
    metadata = _metadata(text.cpu().numpy().tobytes(), src)
    num_bytes = int(metadata["_total_bytes"])
    storage = torch.empty(num_bytes, dtype=torch.uint8, device=place)
    distributed.broadcast(storage, src=src, group=group)
    return _collection(metadata, storage, device)


def _message(td: Any) -> tuple[dict[str, Any], torch.Tensor]:
    """Make the description of a collection, as tensordict 0.15 does, and its buffer."""
    # A tensorclass is described as what it is over, which may be a stack.
    one = (td._tensordict if is_tensorclass(td) else td).consolidate()
    state: Any = consolidated.state_of(one)
    metadata = describing.as_pickled(describing.without_modules(state["metadata"]))
    metadata["_total_bytes"] = len(state["storage"])
    if is_tensorclass(td):
        cls = type(td)
        metadata["_tensorclass_type"] = f"{cls.__module__}.{cls.__qualname__}"
    return metadata, state["storage"]


def _check_length(length: int, rank: int) -> None:
    if not 0 < length <= MAX_DESCRIPTION_BYTES:
        raise RuntimeError(MSG_LENGTH.format(rank=rank, length=length))


def _metadata(content: bytes, rank: int) -> dict[str, Any]:
    """Read the description that a process has sent."""
    try:
        metadata: dict[str, Any] = restricted_pickle.loads(content)
    except pickle.UnpicklingError as error:
        text = MSG_PICKLE.format(rank=rank, error=error)
        raise RuntimeError(text) from None
    return metadata


def _collection(metadata: dict[str, Any], storage: torch.Tensor, device: Any) -> Any:
    """Make a collection of what was received."""
    for key in ("_total_bytes", "_storage_device"):
        metadata.pop(key, None)
    name = metadata.pop("_tensorclass_type", None)
    if device is not None:
        storage = storage.to(device)
    if name is not None:
        module, _, qualname = name.rpartition(".")
        try:
            text = f"<class '{module}.{qualname}'>"
            metadata["cls"] = registry.find_class(None, None, text, "")
        except RuntimeError:
            raise RuntimeError(MSG_CLASS.format(name=name)) from None
    return consolidated.rebuild(metadata, storage)
