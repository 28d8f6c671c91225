"""``send`` and ``recv``: leaves from one collection into those of another one like it.

A transfer begins with the head of each side, which has the digest of its structure. Where
they differ, both sides tell each other what they have and raise. Behind the head of the
sender come its values that are no tensors and the small leaves, in the same message where
they fit; large leaves follow as they are::

    sender    head, values, small leaves >>>   large leaf >>>   large leaf >>>
    receiver  head >>>

A side that cannot take part, since a value or a leaf of it does not travel, sends a head
that says so and the text of its error, and both sides raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict.distributed import wire
from tensordict.distributed.channels import Channel, in_order
from tensordict.distributed.plans import (
    Parts,
    buffer_of,
    copy_into,
    difference,
    new_buffer_of,
    pack_leaves,
    parts_of,
    unpack_leaves,
)
from tensordict.distributed.values import describe_values, take_values

if TYPE_CHECKING:
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["MSG_NOT_CONSOLIDATED", "receive", "send"]

FIRST_BYTES = 64 << 10
"""The longest first message."""

LEAVES, WHOLE = 1, 2
"""Kinds of transfers: leaf by leaf, and the buffer of a consolidated collection."""

MSG_DIFFERENT = "The collections of the two sides differ: {}."
MSG_KINDS = (
    "The collections of the two sides differ: one side has consolidated=True, and the "
    "other has not."
)
MSG_NOT_CONSOLIDATED = (
    "'{}' object has no attribute '_consolidated': with consolidated=True the receiver has "
    "to be consolidated, by td.consolidate() or from_remote_init()."
)


class _Content(NamedTuple):
    """A collection as it is sent or received: its kind and its parts."""

    kind: int
    parts: Parts


def _content_of(td: CollectionProtocol, is_whole: bool) -> _Content:
    """Find what is received into.

    Raises:
        AttributeError: ``is_whole``, and the collection is not consolidated.
        TypeError: a leaf is neither dense nor jagged.
    """
    if not is_whole:
        return _Content(LEAVES, parts_of(td))
    parts = buffer_of(td)
    if parts is None:
        raise AttributeError(MSG_NOT_CONSOLIDATED.format(type(td).__name__))
    return _Content(WHOLE, parts)


def _content_to_send(td: CollectionProtocol, is_whole: bool) -> _Content:
    if not is_whole:
        return _Content(LEAVES, parts_of(td))
    return _Content(WHOLE, buffer_of(td) or new_buffer_of(td))


def send(
    td: CollectionProtocol, channel: Channel, *, is_whole: bool, later: bool
) -> Any:
    """Send the leaves of a collection: how many, or with ``later`` the transfer."""
    try:
        content = _content_to_send(td, is_whole)
        values = describe_values(content.parts.values)
    except Exception as error:  # noqa: BLE001 (raised in both processes)
        failed = error

        def work() -> int:
            with channel.naming("send"):
                _refuse(channel, failed, is_sender=True)
            raise failed
    else:

        def work() -> int:
            with channel.naming("send"):
                _send(channel, content, values)
            return len(content.parts.found)

    return in_order(channel.key("send"), work, later=later)


def receive(
    td: CollectionProtocol, channel: Channel, *, is_whole: bool, later: bool
) -> Any:
    """Receive into the leaves of a collection: how many, or with ``later`` the transfer.

    Raises:
        AttributeError: ``is_whole``, and it is not consolidated.
    """
    try:
        content = _content_of(td, is_whole)
    except TypeError as error:
        failed = error

        def work() -> int:
            with channel.naming("receive"):
                _refuse(channel, failed, is_sender=False)
            raise failed
    else:

        def work() -> int:
            with channel.naming("receive"):
                _receive(channel, content)
            return len(content.parts.found)

    return in_order(channel.key("receive"), work, later=later)


def _refuse(channel: Channel, error: Exception, *, is_sender: bool) -> None:
    """Tell the other side why there is no transfer, in the place of one."""
    text = wire.text_of(error)
    head = wire.Head(wire.FAILED, len(text), 0).to_bytes()
    first = channel.send_bytes(head, answer=not is_sender)
    reason = channel.send_bytes(text, answer=not is_sender)
    length = FIRST_BYTES if channel.is_gloo and not is_sender else wire.HEAD_BYTES
    answer = channel.empty(length)
    channel.receive(answer, answer=is_sender).wait()
    other = wire.Head.of(answer[: wire.HEAD_BYTES].cpu().numpy().tobytes())
    if other.kind == wire.FAILED:
        channel.receive_bytes(other.description_bytes, answer=is_sender)
    first.wait()
    reason.wait()


# The two sides --------------------------------------------------------------------------


def _send(channel: Channel, content: _Content, blob: bytes) -> None:
    kind, parts = content
    plan = parts.plan
    head = wire.Head(kind, len(blob), plan.flat_bytes, plan.digest, _length(plan))
    behind = len(blob) + plan.flat_bytes
    is_inline = channel.is_gloo and wire.HEAD_BYTES + behind <= FIRST_BYTES
    flat = torch.empty(wire.HEAD_BYTES + behind, dtype=torch.uint8)
    flat[: wire.HEAD_BYTES] = torch.frombuffer(
        bytearray(head.to_bytes()), dtype=torch.uint8
    )
    if blob:
        start = wire.HEAD_BYTES + plan.flat_bytes
        flat[start:] = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
    pack_leaves(parts, flat[wire.HEAD_BYTES : wire.HEAD_BYTES + plan.flat_bytes])
    first = (flat if is_inline else flat[: wire.HEAD_BYTES]).to(channel.device)
    answer = channel.empty(wire.HEAD_BYTES)
    waiting = [channel.send(first), channel.receive(answer, answer=True)]
    for work in waiting:
        work.wait()
    other = wire.Head.of(answer.cpu().numpy().tobytes())
    _compare(channel, content, other, is_sender=True)
    staged = []
    if not is_inline and behind:
        staged.append(flat[wire.HEAD_BYTES :].to(channel.device))
    staged += [_as_message(parts.leaf(place), channel) for place in plan.large]
    for work in [channel.send(each) for each in staged]:
        work.wait()


def _receive(channel: Channel, content: _Content) -> None:
    kind, parts = content
    plan = parts.plan
    head = wire.Head(kind, 0, plan.flat_bytes, plan.digest, _length(plan)).to_bytes()
    answered = channel.send_bytes(head, answer=True) if channel.is_gloo else None
    # A message may be shorter than what waits for it.
    first = channel.empty(FIRST_BYTES if channel.is_gloo else wire.HEAD_BYTES)
    channel.receive(first).wait()
    begin = first[: wire.HEAD_BYTES].cpu().numpy().tobytes()
    if answered is None:
        answered = channel.send_bytes(head, answer=True)
    answered.wait()
    other = wire.Head.of(begin)
    _compare(channel, content, other, is_sender=False)
    behind = other.description_bytes + plan.flat_bytes
    if channel.is_gloo and wire.HEAD_BYTES + behind <= FIRST_BYTES:
        flat = first[wire.HEAD_BYTES : wire.HEAD_BYTES + behind]
        waiting = []
    else:
        flat = channel.empty(behind)
        waiting = [channel.receive(flat)] if behind else []
    targets = [parts.leaf(place).detach() for place in plan.large]
    staged = [
        target
        if target.device == channel.device and target.is_contiguous()
        else torch.empty(target.shape, dtype=target.dtype, device=channel.device)
        for target in targets
    ]
    waiting += [channel.receive(each) for each in staged]
    for work in waiting:
        work.wait()
    unpack_leaves(parts, flat[: plan.flat_bytes])
    for target, source in zip(targets, staged, strict=True):
        if target is not source:
            copy_into(target, source)
    for place, td, key in parts.views:
        td.set_(key, parts.leaf(place))
    if other.description_bytes:
        take_values(parts.values, flat[plan.flat_bytes :].cpu().numpy().tobytes())


def _as_message(leaf: torch.Tensor, channel: Channel) -> torch.Tensor:
    plain = leaf.detach().resolve_conj().resolve_neg()
    return plain.to(channel.device).contiguous()


def _length(plan: Any) -> bytes:
    return len(plan.text).to_bytes(8, "little")


def _compare(
    channel: Channel, content: _Content, other: wire.Head, *, is_sender: bool
) -> None:
    """Raise on both sides where the structures differ, or one side cannot take part.

    Raises:
        ValueError: they differ.
        WireError: the other side cannot.
    """
    plan = content.parts.plan
    if other.kind == wire.FAILED:
        length = other.description_bytes
        reason = channel.receive_bytes(length, answer=is_sender)
        said = reason.decode(errors="replace")
        raise wire.WireError(wire.MSG_FAILED.format(rank=channel.shown, text=said))
    if other.kind != content.kind:
        raise ValueError(MSG_KINDS)
    if other.digest == plan.digest:
        return
    length = int.from_bytes(other.extra[:8], "little")
    if length > wire.MAX_DESCRIPTION_BYTES:
        raise wire.WireError(
            MSG_DIFFERENT.format("a structure that is too long to tell")
        )
    sent = channel.send_bytes(plan.text, answer=not is_sender)
    text = channel.receive_bytes(length, answer=is_sender)
    sent.wait()
    found = difference(plan.text, text, f"rank {channel.shown}")
    raise ValueError(MSG_DIFFERENT.format(found))
