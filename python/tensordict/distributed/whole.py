"""Transfers of collections to ranks that have no buffer for them.

A message is a head, a description and the buffer of a consolidated collection
(:mod:`tensordict.distributed.wire`). The receiver allocates the buffer, and large leaves are
received straight into their places in it. A rank that cannot send says so in the head, and the
other ranks raise.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from tensordict.distributed import wire
from tensordict.distributed.channels import Channel, device_of
from tensordict.distributed.groups import MSG_ALL, group_of, ranks_of, root_of
from tensordict.primitives import classes

if TYPE_CHECKING:
    from tensordict.containers.collection import TensorCollection
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["all_gather", "broadcast", "gather_and_stack", "receive", "scatter", "send"]

COLLECTION, DONE = 16, 18
"""Kinds of heads: a collection follows, or nothing follows. ``wire.FAILED`` is a third kind."""

TAG = 1 << 28
"""The tag of these messages. It differs from the tags of ``send``, which may run meanwhile."""

MSG_CUTS = "the lengths of its messages do not fit its buffer"
MSG_MEMBERS = (
    "scatter needs one tensordict for each of the {size} ranks of the group on rank "
    "src={src}, got {found}."
)
MSG_ROWS = (
    "gather_and_stack writes one row for each other rank of the group, whose size is "
    "{world}: pass a tensordict with world size - 1 rows, which is {count}, got {found}."
)
MSG_DST = "init_remote needs the rank of the receiver: pass dst, or use_broadcast=True."


# One to one -------------------------------------------------------------------------------


def _begin(channel: Channel, td: CollectionProtocol) -> list[tuple[Any, torch.Tensor]]:
    """Begin to send a collection; return the works with the tensors that they read."""
    try:
        message = wire.describe(td)
    except Exception as error:
        _begin_refusal(channel, error)
        raise
    runs = list(wire.runs(message.parts, message.num_bytes))
    cuts = struct.pack(f"<{len(runs) + 1}Q", len(runs), *(run.stop for run in runs))
    description = cuts + message.description
    head = wire.Head(COLLECTION, len(description), message.num_bytes)
    pieces = [channel.tensor_of(head.to_bytes()), channel.tensor_of(description)]
    for run in runs:
        only = run.parts[0][1] if len(run.parts) == 1 else None
        if (
            only is not None
            and only.numel() * only.element_size() == run.stop - run.start
        ):
            plain = only.detach().resolve_conj().resolve_neg().contiguous()
            flat = plain.as_subclass(torch.Tensor).reshape(-1).view(torch.uint8)
        else:
            flat = torch.empty(run.stop - run.start, dtype=torch.uint8)
            wire.fill(flat, run.start, run.parts)
        pieces.append(flat.to(channel.device))
    return [(channel.send(piece), piece) for piece in pieces]


def _begin_refusal(channel: Channel, error: Exception) -> None:
    """Send an error to a receiver, instead of a collection."""
    text = wire.text_of(error)
    with channel.naming("send"):
        channel.send_bytes(wire.Head(wire.FAILED, len(text), 0).to_bytes()).wait()
        channel.send_bytes(text).wait()


def send(
    td: CollectionProtocol,
    dst: int | None,
    group: object = None,
    device: torch.device | None = None,
    *,
    use_broadcast: bool = False,
) -> None:
    """Send a collection to a rank that calls :func:`receive`."""
    if use_broadcast:
        group = group_of(group, MSG_ALL.format(name="init_remote"))
        broadcast(td, distributed.get_rank(), group, device)
        return
    if dst is None:
        raise ValueError(MSG_DST)
    channel = Channel("dst", dst, group, tag=TAG)
    with channel.naming("send"):
        for work, _ in _begin(channel, td):
            work.wait()


def receive(
    cls: type,
    src: int,
    group: object = None,
    device: torch.device | None = None,
    *,
    use_broadcast: bool = False,
) -> Any:
    """Receive the collection that another rank sends."""
    if use_broadcast:
        return broadcast(classes.TensorDict(), src, group, device, requested=cls)
    channel = Channel("src", src, group, tag=TAG)
    with channel.naming("receive"):
        return _take(channel, device, cls)


def _take(
    channel: Channel, device: object, requested: type | None = None
) -> TensorCollection:
    head = _head(channel)
    content = channel.receive_bytes(head.description_bytes)
    (count,) = struct.unpack_from("<Q", content)
    if 8 * (count + 1) > len(content):
        raise wire.WireError(wire.MSG_DAMAGED.format(MSG_CUTS))
    stops = struct.unpack_from(f"<{count}Q", content, 8)
    begins = (0, *stops)[:count]
    is_sound = all(start < stop for start, stop in zip(begins, stops, strict=True))
    if not is_sound or (stops[-1] if stops else 0) != head.num_bytes:
        raise wire.WireError(wire.MSG_DAMAGED.format(MSG_CUTS))
    parsed = wire.parse(content[8 * (count + 1) :], head.num_bytes)
    buffer = channel.empty(head.num_bytes)
    waiting = [
        channel.receive(buffer[start:stop])
        for start, stop in zip(begins, stops, strict=True)
    ]
    for work in waiting:
        work.wait()
    return parsed.collection(_placed(buffer, device), None, requested)


def _head(channel: Channel) -> wire.Head:
    """Receive the head that a partner sends.

    Raises:
        WireError: the partner could not send a collection.
    """
    head = wire.Head.of(channel.receive_bytes(wire.HEAD_BYTES))
    if head.kind == wire.FAILED:
        text = channel.receive_bytes(head.description_bytes).decode(errors="replace")
        raise wire.WireError(wire.MSG_FAILED.format(rank=channel.shown, text=text))
    return head


def _placed(buffer: torch.Tensor, device: Any) -> torch.Tensor:
    return buffer if device is None else buffer.to(device)


# One to all -------------------------------------------------------------------------------


def broadcast(
    td: Any,
    src: int,
    group: Any = None,
    device: Any = None,
    *,
    requested: type | None = None,
) -> Any:
    """Send the collection of rank ``src`` to all ranks of a group."""
    group, root, src = root_of("src", src, group)
    place = device_of(group)
    is_source = group.rank() == root
    head_bytes = torch.empty(wire.HEAD_BYTES, dtype=torch.uint8, device=place)
    content, buffer, error = b"", torch.empty(0, dtype=torch.uint8), None
    if is_source:
        try:
            td = td.consolidate(device=device)
            message = wire.describe(td)
            content, buffer = message.description, wire.pack(message)
            head = wire.Head(COLLECTION, len(content), message.num_bytes)
        except Exception as raised:  # noqa: BLE001 (all ranks raise it)
            error = raised
            content = wire.text_of(error)
            head = wire.Head(wire.FAILED, len(content), 0)
        head_bytes.copy_(_tensor_of(head.to_bytes()))
    distributed.broadcast(head_bytes, src=src, group=group)
    head = wire.Head.of(head_bytes.cpu().numpy().tobytes())
    text = torch.empty(head.description_bytes, dtype=torch.uint8, device=place)
    if is_source:
        text.copy_(_tensor_of(content))
    distributed.broadcast(text, src=src, group=group)
    if error is not None:
        raise error
    content = text.cpu().numpy().tobytes()
    if head.kind == wire.FAILED:
        reason = content.decode(errors="replace")
        raise wire.WireError(wire.MSG_FAILED.format(rank=src, text=reason))
    if is_source:
        if head.num_bytes:
            distributed.broadcast(buffer.to(place), src=src, group=group)
        return td
    parsed = wire.parse(content, head.num_bytes)
    buffer = torch.empty(head.num_bytes, dtype=torch.uint8, device=place)
    if head.num_bytes:
        distributed.broadcast(buffer, src=src, group=group)
    return parsed.collection(_placed(buffer, device), None, requested)


def _tensor_of(content: bytes) -> torch.Tensor:
    if not content:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def scatter(
    src: int, tds: list[Any] | None, group: Any = None, device: Any = None
) -> Any:
    """Send each rank of a group its collection from the list of rank ``src``."""
    group, root, src = root_of("src", src, group)
    if group.rank() != root:
        return receive(classes.TensorDict, src, group, device)
    ranks = ranks_of(group)
    channels = {
        rank: Channel("dst", rank, group, tag=TAG) for rank in ranks if rank != src
    }
    if tds is None or len(tds) != len(ranks):
        found = "none" if tds is None else len(tds)
        error = ValueError(MSG_MEMBERS.format(size=len(ranks), src=src, found=found))
        for channel in channels.values():
            _begin_refusal(channel, error)
        raise error
    td_of_rank = dict(zip(ranks, tds, strict=True))
    failed: Exception | None = None
    for rank, channel in channels.items():
        with channel.naming("scatter"):
            try:
                waiting = _begin(channel, td_of_rank[rank])
            except (TypeError, NotImplementedError, RuntimeError) as error:
                # The other ranks receive their collections.
                failed = error
                continue
            for work, _ in waiting:
                work.wait()
    if failed is not None:
        raise failed
    return td_of_rank[src].consolidate()


# All to all -------------------------------------------------------------------------------


def all_gather(td: CollectionProtocol, group: Any = None) -> list[Any]:
    """Return the collections of all ranks, on each rank."""
    group = group_of(group, MSG_ALL.format(name="all_gather"))
    place = device_of(group)
    world = group.size()
    error = None
    buffer = torch.empty(0, dtype=torch.uint8)
    try:
        message = wire.describe(td)
        content, buffer = message.description, wire.pack(message).to(place)
        own_head = wire.Head(COLLECTION, len(content), message.num_bytes)
    except Exception as raised:  # noqa: BLE001 (all ranks raise it)
        error, content = raised, wire.text_of(raised)
        own_head = wire.Head(wire.FAILED, len(content), 0)
    heads = [
        wire.Head.of(tensor.cpu().numpy().tobytes())
        for tensor in _gathered(_tensor_of(own_head.to_bytes()).to(place), world, group)
    ]
    longest = max(head.description_bytes for head in heads)
    padded = torch.zeros(longest, dtype=torch.uint8, device=place)
    padded[: len(content)] = _tensor_of(content).to(place)
    contents = [
        tensor.cpu().numpy().tobytes()[: head.description_bytes]
        for head, tensor in zip(heads, _gathered(padded, world, group), strict=True)
    ]
    if error is not None:
        raise error
    for rank, (head, text) in enumerate(zip(heads, contents, strict=True)):
        if head.kind == wire.FAILED:
            reason = text.decode(errors="replace")
            raise wire.WireError(wire.MSG_FAILED.format(rank=rank, text=reason))
    buffers = _gathered_buffers(buffer, [head.num_bytes for head in heads], group)
    return [
        wire.parse(description, head.num_bytes).collection(rank_buffer)
        for description, head, rank_buffer in zip(contents, heads, buffers, strict=True)
    ]


def _gathered(mine: torch.Tensor, world: int, group: Any) -> list[torch.Tensor]:
    gathered = [torch.empty_like(mine) for _ in range(world)]
    distributed.all_gather(gathered, mine, group=group)
    return gathered


def _gathered_buffers(
    mine: torch.Tensor, lengths: list[int], group: Any
) -> list[torch.Tensor]:
    if not any(lengths):
        return [torch.empty(0, dtype=torch.uint8) for _ in lengths]
    if len({*lengths}) == 1:
        return _gathered(mine, len(lengths), group)
    # Broadcast one buffer after the other: `all_gather` would pad all to the longest.
    gathered = []
    own_rank = group.rank()
    ranks = ranks_of(group)
    for rank, length in enumerate(lengths):
        buffer = torch.empty(length, dtype=torch.uint8, device=mine.device)
        if rank == own_rank:
            buffer.copy_(mine)
        if length:
            distributed.broadcast(buffer, src=ranks[rank], group=group)
        gathered.append(buffer)
    return gathered


def gather_and_stack(td: CollectionProtocol, dst: int, group: Any = None) -> Any:
    """Write the collections of all other ranks into the rows of the collection of rank ``dst``."""
    group, root, dst = root_of("dst", dst, group)
    if group.rank() != root:
        channel = Channel("dst", dst, group, tag=TAG)
        with channel.naming("gather_and_stack"):
            for work, _ in _begin(channel, td):
                work.wait()
            _head(channel)
        return None
    others = [rank for rank in ranks_of(group) if rank != dst]
    channels = [Channel("src", rank, group, tag=TAG) for rank in others]
    received: list[Any] = []
    waiting = []
    failed = _problem_of_rows(td, len(others))
    for channel in channels:
        try:
            with channel.naming("gather_and_stack"):
                received.append(_take(channel, None))
            waiting.append(channel)
        except wire.WireError as error:
            failed = error
    if failed is None and received:
        try:
            # Stacked lazily, because the received collections may differ in their shapes.
            td.update(classes.LazyStackedTensorDict.lazy_stack(received), inplace=True)
        except Exception as error:  # noqa: BLE001 (all ranks raise it)
            failed = error
    if failed is not None:
        for channel in waiting:
            _begin_refusal(channel, failed)
        raise failed
    done = wire.Head(DONE, 0, 0).to_bytes()
    for channel in waiting:
        channel.send_bytes(done).wait()
    return td


def _problem_of_rows(td: Any, count: int) -> Exception | None:
    """Return an error if a collection does not have one row for each other rank."""
    size = td.batch_size
    found = f"{size[0]} rows (batch size {[*size]})" if len(size) else ""
    if len(size) and size[0] == count:
        return None
    for key, leaf in () if found else td.items(True, True):
        if isinstance(leaf, torch.Tensor) and leaf.shape[:1] != (count,):
            found = f"no batch size, and the entry {key!r} of shape {[*leaf.shape]}"
            break
    if not found:
        return None
    text = MSG_ROWS.format(world=count + 1, count=count, found=found)
    return RuntimeError(text)
