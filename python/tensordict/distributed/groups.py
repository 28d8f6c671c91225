"""Checks of the process group and the rank of a call, before anything is sent.

A backend that is told to send to a rank outside its group waits forever or ends the process, so
every call checks its arguments here first. In a collective call, each process checks the root
rank for itself.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from torch import distributed
from torch.distributed import distributed_c10d as c10d

__all__ = ["Partner", "group_of", "partner_of", "ranks_of", "root_of"]

MAX_SHOWN = 8
"""The most ranks of a group that a message lists."""

MSG_BOTH = "Exactly one of `{name}` and `group_{name}` must be provided."
MSG_GROUP = "`group_{name}` requires `group` to be passed."
MSG_NONE = (
    "Default process group has not been initialized, please make sure to call "
    "init_process_group. {asked}."
)
MSG_ASKED = "{name}={rank} was asked for, in a group of size 0"
MSG_ALL = "{name} needs a process group"
MSG_TYPE = (
    "group must be a process group, such as torch.distributed.new_group() returns, got "
    "{group!r}."
)
MSG_OUTSIDE = (
    "This process, rank {rank} of {size}, is not in the group that was passed. Only the "
    "members of a group may pass it."
)
MSG_DESTROYED = (
    "The process group that was passed was destroyed: this process had rank {rank} of "
    "{size} in it. Create another with torch.distributed.new_group()."
)
MSG_UNKNOWN = (
    "torch.distributed does not know the group that was passed, in which this process has "
    "rank {rank} of {size}, so its members have no global ranks. Pass the rank in the group "
    "instead: group_{name}."
)
MSG_INDEX = "{name} must be a rank, an int, got {rank!r}."
MSG_RANK = (
    "{name}={rank} is not in the group: its size is {size}, and its ranks are {ranks}."
)
MSG_SELF = (
    "Cannot {verb} itself: rank {rank} is this process, in a group of size {size}. Pass the "
    "rank of another process."
)


class Partner(NamedTuple):
    """The other process of a transfer, or the root of a collective call."""

    group: Any
    rank: int
    """The rank in the group."""
    shown: int
    """The rank as the caller has passed it, for messages."""


def group_of(group: Any, asked: str) -> Any:
    """Return the group of a call: ``group``, or the group of all processes.

    Args:
        group: the process group that the caller has passed, or ``None``.
        asked: the last sentence of the error if there is no group, without its full stop.

    Raises:
        TypeError: ``group`` is not a process group.
        ValueError: there is no group, it was destroyed, or this process is not in it.
    """
    if group is None:
        if not distributed.is_initialized():
            raise ValueError(MSG_NONE.format(asked=asked))
        return c10d._get_default_group()
    if c10d._rank_not_in_group(group):
        if not distributed.is_initialized():
            raise ValueError(MSG_NONE.format(asked=asked))
        rank, size = distributed.get_rank(), distributed.get_world_size()
        raise ValueError(MSG_OUTSIDE.format(rank=rank, size=size))
    if not all(hasattr(group, name) for name in ("rank", "size", "send")):
        raise TypeError(MSG_TYPE.format(group=group))
    if _is_destroyed(group):
        message = MSG_DESTROYED.format(rank=group.rank(), size=group.size())
        raise ValueError(message)
    return group


def _is_destroyed(group: Any) -> bool:
    """Return whether torch has created the group and forgotten it since."""
    if group in c10d._world.pg_group_ranks or type(group) is not c10d.ProcessGroup:
        return False
    try:
        return bool(group.group_name)
    except RuntimeError:
        # torch names the groups that it creates. This group was created by the caller.
        return False


def ranks_of(group: Any) -> list[int]:
    """Return the global ranks of a group's members, in the order of their ranks in the group."""
    return list(_places(group, "dst"))


def _places(group: Any, name: str) -> dict[int, int]:
    """Return a dictionary from the global rank of each member to its rank in the group.

    Raises:
        ValueError: torch does not know the group.
    """
    places: dict[int, int] | None = c10d._world.pg_group_ranks.get(group)
    if places is None:
        text = MSG_UNKNOWN.format(rank=group.rank(), size=group.size(), name=name)
        raise ValueError(text)
    return places


def root_of(name: str, rank: Any, group: Any) -> Partner:
    """Check the root of a collective call. The root may be this process.

    Args:
        name: the argument's name, ``"dst"`` or ``"src"``.
        rank: the global rank of the root.
        group: the process group that the caller has passed, or ``None``.

    Raises:
        TypeError: the rank is not an int, or the group is not a process group.
        ValueError: the group cannot be used, or has no member of this rank.
    """
    group = group_of(group, MSG_ASKED.format(name=name, rank=rank))
    shown = _index(name, rank)
    places = _places(group, name)
    if shown not in places:
        raise _no_such_rank(name, shown, list(places))
    return Partner(group, places[shown], shown)


def partner_of(name: str, rank: Any, group: Any, group_rank: Any) -> Partner:
    """Check the partner of a transfer.

    Args:
        name: the argument's name, ``"dst"`` or ``"src"``.
        rank: the global rank of the partner.
        group: the process group that the caller has passed, or ``None``.
        group_rank: the partner's rank in ``group``, instead of ``rank``. The group may be
            unknown to ``torch.distributed`` then.

    Raises:
        TypeError: the rank is not an int, or the group is not a process group.
        ValueError: both ranks or no rank is given, ``group_rank`` is given without
            ``group``, the group cannot be used, it has no member of this rank, or the
            rank is this process.
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
