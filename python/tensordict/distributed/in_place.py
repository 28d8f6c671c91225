"""``send`` and ``recv``: leaves sent into the leaves of a collection of the same structure.

A transfer begins with a head from each side that holds the digest of its structure. If the digests
differ, both sides exchange their structures and raise. After its head, the sender sends its small
leaves and its non-tensor data, in the same message if they fit. Each large leaf is a message::

    sender    head, small leaves, values >>>   large leaf >>>   large leaf >>>
    receiver  head >>>

A side that cannot take part, because a value or a leaf cannot be sent, sends a head that says so
and the text of its error. Then both sides raise.
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
"""The length of the longest first message."""

LEAVES, CONSOLIDATED = 1, 2
"""Kinds of transfers: leaf by leaf, or the buffer of a consolidated collection."""

MSG_DIFFERENT = "The tensordicts of the sender and the receiver differ: {}."
MSG_KINDS = (
    "Only one of the sender and the receiver has consolidated=True: pass it to both, or to "
    "neither."
)
MSG_NOT_CONSOLIDATED = (
    "'{}' object has no attribute '_consolidated': with consolidated=True the receiver must "
    "be consolidated. Call td.consolidate(), or from_remote_init()."
)


class _Content(NamedTuple):
    """The content of a transfer: its kind, and the parts of the collection."""

    kind: int
    parts: Parts


def _content_of(td: CollectionProtocol, is_consolidated: bool) -> _Content:
    """Return the content to receive into.

    Raises:
        AttributeError: ``is_consolidated`` is true, but the collection is not consolidated.
        TypeError: a leaf is neither dense nor jagged.
    """
    if not is_consolidated:
        return _Content(LEAVES, parts_of(td))
    parts = buffer_of(td)
    if parts is None:
        raise AttributeError(MSG_NOT_CONSOLIDATED.format(type(td).__name__))
    return _Content(CONSOLIDATED, parts)


def _content_to_send(td: CollectionProtocol, is_consolidated: bool) -> _Content:
    if not is_consolidated:
        return _Content(LEAVES, parts_of(td))
    return _Content(CONSOLIDATED, buffer_of(td) or new_buffer_of(td))


def send(
    td: CollectionProtocol, channel: Channel, *, is_consolidated: bool, later: bool
) -> Any:
    """Send the leaves; return their number, or with ``later`` the transfer."""
    try:
        content = _content_to_send(td, is_consolidated)
        values = describe_values(content.parts.values)
    except Exception as error:  # noqa: BLE001 (both processes raise it)
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
    td: CollectionProtocol, channel: Channel, *, is_consolidated: bool, later: bool
) -> Any:
    """Receive into the leaves; return their number, or with ``later`` the transfer.

    Raises:
        AttributeError: ``is_consolidated`` is true, but the collection is not consolidated.
    """
    try:
        content = _content_of(td, is_consolidated)
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
    """Send an error instead of a transfer, so that the partner raises as well."""
    text = wire.text_of(error)
    head = wire.Head(wire.FAILED, len(text), 0).to_bytes()
    first = channel.send_bytes(head, answer=not is_sender)
    reason = channel.send_bytes(text, answer=not is_sender)
    length = FIRST_BYTES if channel.is_gloo and not is_sender else wire.HEAD_BYTES
    answer = channel.empty(length)
    channel.receive(answer, answer=is_sender).wait()
    partner_head = wire.Head.of(answer[: wire.HEAD_BYTES].cpu().numpy().tobytes())
    if partner_head.kind == wire.FAILED:
        channel.receive_bytes(partner_head.description_bytes, answer=is_sender)
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
    partner_head = wire.Head.of(answer.cpu().numpy().tobytes())
    _compare(channel, content, partner_head, is_sender=True)
    staged = []
    if not is_inline and behind:
        staged.append(flat[wire.HEAD_BYTES :].to(channel.device))
    staged += [_as_message(parts.leaf(place), channel) for place in plan.large]
    for work in [channel.send(leaf) for leaf in staged]:
        work.wait()


def _receive(channel: Channel, content: _Content) -> None:
    kind, parts = content
    plan = parts.plan
    head = wire.Head(kind, 0, plan.flat_bytes, plan.digest, _length(plan)).to_bytes()
    answered = channel.send_bytes(head, answer=True) if channel.is_gloo else None
    # With gloo, the message may be shorter than the tensor that receives it.
    first = channel.empty(FIRST_BYTES if channel.is_gloo else wire.HEAD_BYTES)
    channel.receive(first).wait()
    head_bytes = first[: wire.HEAD_BYTES].cpu().numpy().tobytes()
    if answered is None:
        answered = channel.send_bytes(head, answer=True)
    answered.wait()
    partner_head = wire.Head.of(head_bytes)
    _compare(channel, content, partner_head, is_sender=False)
    behind = partner_head.description_bytes + plan.flat_bytes
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
    waiting += [channel.receive(leaf) for leaf in staged]
    for work in waiting:
        work.wait()
    unpack_leaves(parts, flat[: plan.flat_bytes])
    for target, source in zip(targets, staged, strict=True):
        if target is not source:
            copy_into(target, source)
    for place, td, key in parts.views:
        td.set_(key, parts.leaf(place))
    if partner_head.description_bytes:
        take_values(parts.values, flat[plan.flat_bytes :].cpu().numpy().tobytes())


def _as_message(leaf: torch.Tensor, channel: Channel) -> torch.Tensor:
    plain = leaf.detach().resolve_conj().resolve_neg()
    return plain.to(channel.device).contiguous()


def _length(plan: Any) -> bytes:
    return len(plan.text).to_bytes(8, "little")


def _compare(
    channel: Channel, content: _Content, partner_head: wire.Head, *, is_sender: bool
) -> None:
    """Raise on both sides if the structures differ, or if one side cannot take part.

    Raises:
        ValueError: the structures differ.
        WireError: the partner cannot take part.
    """
    plan = content.parts.plan
    if partner_head.kind == wire.FAILED:
        length = partner_head.description_bytes
        reason = channel.receive_bytes(length, answer=is_sender)
        partner_error = reason.decode(errors="replace")
        message = wire.MSG_FAILED.format(rank=channel.shown, text=partner_error)
        raise wire.WireError(message)
    if partner_head.kind != content.kind:
        raise ValueError(MSG_KINDS)
    if partner_head.digest == plan.digest:
        return
    length = int.from_bytes(partner_head.extra[:8], "little")
    if length > wire.MAX_DESCRIPTION_BYTES:
        raise wire.WireError(
            MSG_DIFFERENT.format("the partner's structure is too long to compare")
        )
    sent = channel.send_bytes(plan.text, answer=not is_sender)
    text = channel.receive_bytes(length, answer=is_sender)
    sent.wait()
    found = difference(plan.text, text, f"rank {channel.shown}")
    raise ValueError(MSG_DIFFERENT.format(found))
