"""The entry points of ``send``, ``recv`` and their relatives: each chooses the message format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tensordict.distributed import in_place, published, whole
from tensordict.distributed.channels import PSEUDO_RANDOM, Channel
from tensordict.distributed.tags import published_tags

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["Options", "from_remote_init", "init_remote", "receive", "send"]


class Options(NamedTuple):
    """The arguments of a transfer."""

    tag: int
    is_random: bool
    is_consolidated: bool
    is_published: bool


def _channel(
    name: str, rank: int | None, group: object, group_rank: int | None, options: Options
) -> Channel:
    tag = options.tag
    if options.is_random and not options.is_published:
        tag += PSEUDO_RANDOM
    return Channel(name, rank, group, group_rank, tag)


def _answer(count: int, options: Options) -> int | None:
    """Return the tag of the last leaf, as if each leaf were a message."""
    if options.is_consolidated:
        return None
    if options.is_random and options.is_published and count:
        return published_tags(options.tag, count, is_random=True)[-1]
    return options.tag + count - 1


def send(
    td: CollectionProtocol,
    dst: int | None,
    group: object,
    group_dst: int | None,
    options: Options,
    *,
    later: bool,
) -> Any:
    """Send the leaves; return the last tag, or with ``later`` the transfers to wait for."""
    channel = _channel("dst", dst, group, group_dst, options)
    calls = published.send, in_place.send
    return _transfer(td, channel, options, later, "send", *calls)


def receive(
    td: CollectionProtocol,
    src: int | None,
    group: object,
    group_src: int | None,
    options: Options,
    *,
    later: bool,
) -> Any:
    """Receive the leaves; return the last tag, or with ``later`` the transfers to wait for."""
    channel = _channel("src", src, group, group_src, options)
    calls = published.receive, in_place.receive
    return _transfer(td, channel, options, later, "receive", *calls)


def _transfer(
    td: CollectionProtocol,
    channel: Channel,
    options: Options,
    later: bool,
    name: str,
    as_published: Callable[..., Any],
    as_ours: Callable[..., Any],
) -> Any:
    """Send or receive the leaves, in the format of tensordict 0.15 or of this package."""
    if not options.is_published:
        transfer = as_ours(
            td, channel, is_consolidated=options.is_consolidated, later=later
        )
        return [transfer] if later else _answer(transfer, options)
    tag, is_random, is_consolidated, _ = options
    works = as_published(
        td, channel, tag, is_random=is_random, is_consolidated=is_consolidated
    )
    if later:
        return works
    with channel.naming(name):
        for work in works:
            work.wait()
    return _answer(len(works), options)


def init_remote(
    td: CollectionProtocol,
    dst: int | None,
    group: Any,
    device: Any,
    use_broadcast: bool,
    is_published: bool,
) -> None:
    """Send a collection to a rank that has no buffer for it."""
    if not is_published:
        whole.send(td, dst, group, device, use_broadcast=use_broadcast)
        return
    if use_broadcast:
        published.broadcast_whole(td, group)
        return
    if dst is None:
        raise ValueError(whole.MSG_DST)
    channel = Channel("dst", dst, group)
    with channel.naming("send"):
        published.send_whole(td, channel, group, device)


def from_remote_init(
    cls: type,
    src: int,
    group: Any,
    device: Any,
    use_broadcast: bool,
    is_published: bool,
) -> Any:
    """Receive a collection without a buffer for it."""
    if not is_published:
        return whole.receive(cls, src, group, device, use_broadcast=use_broadcast)
    if use_broadcast:
        return published.receive_broadcast(src, group, device)
    channel = Channel("src", src, group)
    with channel.naming("receive"):
        return published.receive_whole(channel, device)
