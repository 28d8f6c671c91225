"""The messages of tensordict 0.15, for a partner that runs it: ``wire="0.15"``.

Each leaf is one message, in the order of the keys. Its tag counts up, or with ``pseudo_rand`` is
computed from the tag before. Structures are not compared, and non-tensor data is not sent. The
exception is ``init_remote``: its description is a pickle, and the receiver unpickles plain data
only.
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
    from tensordict.containers.collection import TensorCollection
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
    "The description names the class {name}, which this process has not imported: import "
    "the module that defines it."
)
MSG_LENGTH = "Rank {rank} announces a description of {length} bytes."

MAX_DESCRIPTION_BYTES = 1 << 30


def send(
    td: CollectionProtocol,
    channel: Channel,
    tag: int,
    *,
    is_random: bool,
    is_consolidated: bool,
) -> list[Any]:
    """Begin to send the leaves; return the works to wait for."""
    if is_consolidated:
        channel.tag = 0
        buffer = buffer_of(td) or new_buffer_of(td)
        return [channel.send(buffer.found[0])]
    leaves = parts_of(td).leaves
    works = []
    tags = published_tags(tag, len(leaves), is_random=is_random)
    for leaf, leaf_tag in zip(leaves, tags, strict=True):
        channel.tag = leaf_tag
        works.append(channel.send(leaf.detach().contiguous()))
    return works


def receive(
    td: CollectionProtocol,
    channel: Channel,
    tag: int,
    *,
    is_random: bool,
    is_consolidated: bool,
) -> list[Any]:
    """Begin to receive into the leaves; return the works to wait for.

    Raises:
        AttributeError: ``is_consolidated`` is true, but the collection is not consolidated.
    """
    if is_consolidated:
        buffer = buffer_of(td)
        if buffer is None:
            raise AttributeError(MSG_NOT_CONSOLIDATED.format(type(td).__name__))
        channel.tag = 0
        return [channel.receive(buffer.found[0])]
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
    """A message that :meth:`wait` copies into a leaf that is a view or not contiguous."""

    def __init__(
        self, work: Any, target: torch.Tensor, staged: torch.Tensor, view: Any
    ) -> None:
        self._work, self._target, self._staged, self._view = work, target, staged, view

    def wait(self, *timeout: object) -> bool:
        """Wait for the message, and copy it into the leaf."""
        self._work.wait(*timeout)
        if self._view is not None:
            self._view[0].set_(self._view[1], self._staged)
        else:
            copy_into(self._target, self._staged)
        return True

    def is_completed(self) -> bool:
        """Return whether the message has arrived."""
        return bool(self._work.is_completed())


# Whole collections ------------------------------------------------------------------------


def send_whole(
    td: CollectionProtocol, channel: Channel, group: Any, device: Any
) -> None:
    """Send a collection to a rank that has no buffer for it."""
    metadata, storage = _message(td)
    distributed.send_object_list(
        [metadata], dst=channel.shown, group=group, device=device
    )
    channel.send(storage).wait()


def receive_whole(channel: Channel, device: object) -> TensorCollection:
    """Receive a collection that a rank with tensordict 0.15 sends.

    Raises:
        RuntimeError: the description holds more than plain data.
    """
    length = torch.zeros(1, dtype=torch.long, device=channel.device)
    channel.receive(length).wait()
    _check_length(int(length), channel.shown)
    content = channel.receive_bytes(int(length))
    metadata = _metadata(content, channel.shown)
    storage = channel.empty(int(metadata["_total_bytes"]))
    # The buffer is a message even if it is empty.
    channel.receive(storage).wait()
    return _collection(metadata, storage, device)


def broadcast_whole(td: CollectionProtocol, group: Any) -> None:
    """Send a collection to all ranks of a group."""
    group = group_of(group, MSG_ALL.format(name="init_remote"))
    metadata, storage = _message(td)
    metadata["_storage_device"] = str(storage.device)
    rank = distributed.get_rank()
    distributed.broadcast_object_list([metadata], src=rank, group=group)
    distributed.broadcast(storage.to(device_of(group)), src=rank, group=group)


def receive_broadcast(src: int, group: Any, device: object) -> TensorCollection:
    """Receive a collection that a rank with tensordict 0.15 sends to all ranks of a group.

    Raises:
        RuntimeError: the description holds more than plain data.
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
    """Return the description of a collection in the format of 0.15, and its buffer."""
    # A tensorclass is described by the collection that it wraps, for example a lazy stack.
    buffered = (td._tensordict if is_tensorclass(td) else td).consolidate()
    state: Any = consolidated.state_of(buffered)
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
    """Unpickle the description that a rank has sent, if it holds plain data only."""
    try:
        metadata: dict[str, Any] = restricted_pickle.loads(content)
    except pickle.UnpicklingError as error:
        text = MSG_PICKLE.format(rank=rank, error=error)
        raise RuntimeError(text) from None
    return metadata


def _collection(
    metadata: dict[str, Any], storage: torch.Tensor, device: Any
) -> TensorCollection:
    """Build a collection from its description and its buffer."""
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
