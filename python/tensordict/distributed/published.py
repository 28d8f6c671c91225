"""The messages of tensordict 0.15, for a partner that runs it: ``wire="0.15"``.

Each leaf is one message, in the order of keys, with a tag that counts up. Structures are
not compared, and values that are no tensors do not travel, but in ``init_remote``, whose
description is a pickle: it is read with nothing but plain data.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from tensordict.distributed.in_place import state_of
from tensordict.distributed.plans import copy_into, parts_of
from tensordict.primitives import registry
from tensordict.primitives.checks import is_tensorclass
from tensordict.storage import describing, restricted_pickle
from tensordict.storage.layouts import consolidated

if TYPE_CHECKING:
    from tensordict.distributed.channels import Channel

__all__ = ["receive", "receive_whole", "send", "send_whole"]

MSG_RANDOM = (
    "pseudo_rand=True has tags of its own in tensordict 0.15, which this version does not "
    "make: with wire='0.15' give both sides an init_tag instead."
)
MSG_PICKLE = "The description that rank {rank} has sent is refused: {error}"
MSG_CLASS = (
    "The description names the class {name}, which is not known here: import it."
)
MSG_LENGTH = "Rank {rank} announces a description of {length} bytes."

MAX_DESCRIPTION_BYTES = 1 << 30


def _check_tags(is_random: bool) -> None:
    if is_random:
        raise NotImplementedError(MSG_RANDOM)


def send(
    td: Any, channel: Channel, tag: int, *, is_random: bool, is_whole: bool
) -> list[Any]:
    """Begin to send the leaves: what is to be waited for."""
    _check_tags(is_random)
    if is_whole:
        if consolidated.state_of(td) is None:
            td = td.consolidate()
        state = state_of(td)
        channel.tag = 0
        return [channel.send(state["storage"])]
    works = []
    for place, leaf in enumerate(parts_of(td).leaves):
        channel.tag = tag + place
        works.append(channel.send(leaf.detach().contiguous()))
    return works


def receive(
    td: Any, channel: Channel, tag: int, *, is_random: bool, is_whole: bool
) -> list[Any]:
    """Begin to receive into the leaves: what is to be waited for.

    Raises:
        AttributeError: ``is_whole``, and the collection is not consolidated.
    """
    _check_tags(is_random)
    if is_whole:
        state = state_of(td)
        channel.tag = 0
        return [channel.receive(state["storage"])]
    parts = parts_of(td)
    views = {place: (view, key) for place, view, key in parts.views}
    works: list[Any] = []
    for place, leaf in enumerate(parts.leaves):
        channel.tag = tag + place
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

    def __init__(self, work: Any, target: Any, staged: Any, view: Any) -> None:
        self._work, self._target, self._staged, self._view = work, target, staged, view

    def wait(self, *timeout: Any) -> bool:
        """Wait, and copy."""
        self._work.wait(*timeout)
        if self._view is not None:
            self._view[0].set_(self._view[1], self._staged)
        else:
            copy_into(self._target, self._staged)
        return True

    def is_completed(self) -> bool:
        """Whether the message is there."""
        return bool(self._work.is_completed())


# Whole collections ------------------------------------------------------------------------


def send_whole(td: Any, channel: Channel, group: Any, device: Any) -> None:
    """Send a collection to a process that does not know what it consists of."""
    one = td.consolidate()
    state = state_of(one)
    metadata = describing.as_pickled(describing.without_modules(state["metadata"]))
    metadata["_total_bytes"] = len(state["storage"])
    if is_tensorclass(td):
        metadata["cls"] = "TensorDict"
        cls = type(td)
        metadata["_tensorclass_type"] = f"{cls.__module__}.{cls.__qualname__}"
    distributed.send_object_list(
        [metadata], dst=channel.shown, group=group, device=device
    )
    channel.send(state["storage"]).wait()


def receive_whole(channel: Channel, device: Any) -> Any:
    """Receive a collection that a process of tensordict 0.15 sends.

    Raises:
        RuntimeError: its description is not plain data.
    """
    length = torch.zeros(1, dtype=torch.long, device=channel.device)
    channel.receive(length).wait()
    if not 0 < int(length) <= MAX_DESCRIPTION_BYTES:
        text = MSG_LENGTH.format(rank=channel.shown, length=int(length))
        raise RuntimeError(text)
    content = channel.receive_bytes(int(length))
    try:
        metadata = restricted_pickle.loads(content)
    except pickle.UnpicklingError as error:
        text = MSG_PICKLE.format(rank=channel.shown, error=error)
        raise RuntimeError(text) from None
    storage = channel.empty(int(metadata.pop("_total_bytes")))
    name = metadata.pop("_tensorclass_type", None)
    # A buffer without bytes is a message, too.
    channel.receive(storage).wait()
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
