"""Check the process group and the rank that a caller gave, before anything is sent.

A backend that is told to talk to a rank that its group does not have waits for ever or
ends the process, so every call asks here first. A wrong root of a collective call is found
by each process for itself.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from torch import distributed
from torch.distributed import distributed_c10d as c10d

__all__ = ["Partner", "group_of", "partner_of", "ranks_of", "root_of"]

MAX_SHOWN = 8
"""So many ranks of a group are listed in a message."""

MSG_BOTH = "Exactly one of `{name}` and `group_{name}` must be provided."
MSG_GROUP = "`group_{name}` requires `group` to be passed."
MSG_NONE = (
    "Default process group has not been initialized, please make sure to call "
    "init_process_group. {asked}."
)
MSG_ASKED = "{name}={rank} was asked for, in a group of size 0"
MSG_ALL = "Nobody can take part in {name} without one"
MSG_TYPE = (
    "group must be a process group, such as torch.distributed.new_group() returns, got "
    "{group!r}."
)
MSG_OUTSIDE = (
    "This process, rank {rank} of {size}, is not in the group that was given. Only the "
    "members of a group call with it."
)
MSG_DESTROYED = (
    "The process group that was given was destroyed: this process had rank {rank} of "
    "{size} in it. Make a new one with torch.distributed.new_group()."
)
MSG_UNKNOWN = (
    "torch.distributed does not know the group that was given, in which this process has "
    "rank {rank} of {size}, so it has no global ranks. Give the rank in the group: "
    "group_{name}."
)
MSG_INDEX = "{name} must be the rank of a process, an int, got {rank!r}."
MSG_RANK = (
    "{name}={rank} is not in the group: its size is {size}, and its ranks are {ranks}."
)
MSG_SELF = (
    "Cannot {verb} itself: the rank {rank} is that of this process, in a group of size "
    "{size}."
)


class Partner(NamedTuple):
    """A process of a group: the other side of a transfer, or the root of a call."""

    group: Any
    rank: int
    """Its rank in the group."""
    shown: int
    """Its rank as the caller gave it."""


def group_of(group: Any, asked: str) -> Any:
    """Give the group of a call; without one, that of all processes.

    Args:
        group: what the caller gave.
        asked: what the caller wants of it, for a message.

    Raises:
        TypeError: it is no process group.
        ValueError: there is none, it was destroyed, or this process is not in it.
    """
    if group is None:
        if not distributed.is_initialized():
            raise ValueError(MSG_NONE.format(asked=asked))
        return c10d._get_default_group()
    if c10d._rank_not_in_group(group):
        if not distributed.is_initialized():
            raise ValueError(MSG_NONE.format(asked=asked))
        own, size = distributed.get_rank(), distributed.get_world_size()
        raise ValueError(MSG_OUTSIDE.format(rank=own, size=size))
    if not all(hasattr(group, name) for name in ("rank", "size", "send")):
        raise TypeError(MSG_TYPE.format(group=group))
    if _is_destroyed(group):
        message = MSG_DESTROYED.format(rank=group.rank(), size=group.size())
        raise ValueError(message)
    return group


def _is_destroyed(group: Any) -> bool:
    """Return whether torch made the group and has forgotten it."""
    if group in c10d._world.pg_group_ranks or type(group) is not c10d.ProcessGroup:
        return False
    try:
        return bool(group.group_name)
    except RuntimeError:
        # One that a caller made: torch gives a name to those that it makes.
        return False


def ranks_of(group: Any) -> list[int]:
    """List the global ranks of a group, in the order of their ranks in it."""
    return list(_places(group, "dst"))


def _places(group: Any, name: str) -> dict[int, int]:
    """Give the rank in a group of each global rank of its members.

    Raises:
        ValueError: torch does not know the group.
    """
    known: dict[int, int] | None = c10d._world.pg_group_ranks.get(group)
    if known is None:
        text = MSG_UNKNOWN.format(rank=group.rank(), size=group.size(), name=name)
        raise ValueError(text)
    return known


def root_of(name: str, rank: Any, group: Any) -> Partner:
    """Check the root of a collective call, which may be this process.

    Args:
        name: what the caller calls it, ``"dst"`` or ``"src"``.
        rank: its global rank.
        group: what the caller gave.

    Raises:
        TypeError: the rank is no int, or the group no process group.
        ValueError: the group cannot be used, or has no such rank.
    """
    group = group_of(group, MSG_ASKED.format(name=name, rank=rank))
    shown = _index(name, rank)
    places = _places(group, name)
    if shown not in places:
        raise _no_such_rank(name, shown, list(places))
    return Partner(group, places[shown], shown)


def partner_of(name: str, rank: Any, group: Any, group_rank: Any) -> Partner:
    """Check the other side of a transfer.

    Args:
        name: what the caller calls it, ``"dst"`` or ``"src"``.
        rank: its global rank.
        group: what the caller gave.
        group_rank: in the place of ``rank``, its rank in ``group``, which may be a group
            that nobody has registered.

    Raises:
        TypeError: the rank is no int, or the group no process group.
        ValueError: not exactly one rank is given, one in a group without that, or the
            group cannot be used, or has no such rank, or it is that of this process.
    """
    if group_rank is not None and group is None:
        raise ValueError(MSG_GROUP.format(name=name))
    if (rank is None) == (group_rank is None):
        raise ValueError(MSG_BOTH.format(name=name))
    if group_rank is None:
        partner = root_of(name, rank, group)
    else:
        name = f"group_{name}"
        group = group_of(group, MSG_ASKED.format(name=name, rank=group_rank))
        place = _index(name, group_rank)
        if not 0 <= place < group.size():
            raise _no_such_rank(name, place, list(range(group.size())))
        partner = Partner(group, place, place)
    if partner.group.rank() == partner.rank:
        verb = "send to" if name.endswith("dst") else "receive from"
        size = partner.group.size()
        raise ValueError(MSG_SELF.format(verb=verb, rank=partner.shown, size=size))
    return partner


def _index(name: str, rank: Any) -> int:
    try:
        return operator.index(rank)
    except TypeError:
        raise TypeError(MSG_INDEX.format(name=name, rank=rank)) from None


def _no_such_rank(name: str, rank: int, ranks: list[int]) -> ValueError:
    size = len(ranks)
    if size > 1 and ranks == list(range(size)):
        shown = f"0 to {size - 1}"
    else:
        more = ", ..." if size > MAX_SHOWN else ""
        shown = ", ".join(map(str, ranks[:MAX_SHOWN])) + more
    text = MSG_RANK.format(name=name, rank=rank, size=size, ranks=shown)
    return ValueError(text)
