"""``reduce`` and ``all_reduce``: small leaves of a dtype together, large ones in their place.

Before anything is reduced all processes compare what their collections consist of, as a
backend that is given tensors of other lengths ends the process.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.distributed import distributed_c10d as c10d

from tensordict import _rust
from tensordict.distributed.channels import device_of
from tensordict.distributed.plans import Parts, Plan, copy_into, difference, parts_of

__all__ = ["Reduction", "all_reduce", "reduce"]

BUCKET_BYTES = 32 << 20
"""So many bytes of small leaves are reduced together, where nothing else is asked for."""

PACKED_BYTES = 256 << 10
"""Leaves below this size are packed, where nothing else is asked for."""

MSG_DIFFERENT = "The collections of the ranks differ: {}. Nothing was reduced."


_Call = Callable[[torch.Tensor, bool], Any]
"""Reduces a tensor: in the background, if the second argument says so."""


class _Bucket(NamedTuple):
    """Leaves that are reduced together: their places in the plan, and their first bytes."""

    places: list[int]
    starts: list[int]
    numel: int


class Reduction:
    """A reduction under way, as ``Work`` of torch: waiting writes its result to the leaves.

    Args:
        work: what torch gave; None where it is over.
        finish: writes the result.
    """

    def __init__(self, work: Any, finish: Callable[[], None] | None) -> None:
        self._work = work
        self._finish = finish

    def wait(self, timeout: Any = None) -> bool:
        """Wait until it is over, and write the result.

        Raises:
            RuntimeError: it failed.
        """
        if self._work is not None:
            _ = self._work.wait() if timeout is None else self._work.wait(timeout)
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def is_completed(self) -> bool:
        """Whether waiting would not take time."""
        return self._work is None or bool(self._work.is_completed())

    def is_success(self) -> bool:
        """Whether it is over and went well."""
        return self._work is None or bool(self._work.is_success())

    def exception(self) -> Any:
        """Why it failed; None where it did not."""
        return None if self._work is None else self._work.exception()


def all_reduce(
    td: Any,
    op: Any = None,
    group: Any = None,
    *,
    async_op: bool = False,
    bucket_bytes: int | None = None,
) -> list[Reduction] | None:
    """Reduce the leaves over all processes of a group, in place."""

    def call(tensor: torch.Tensor, later: bool) -> Any:
        return distributed.all_reduce(tensor, _op(op), group=group, async_op=later)

    begun = _begin(td, group, call, bucket_bytes, is_kept=True, later=async_op)
    if async_op:
        return begun
    _wait(begun)
    return None


def reduce(
    td: Any,
    dst: int,
    op: Any = None,
    group: Any = None,
    *,
    later: bool = False,
    bucket_bytes: int | None = None,
) -> list[Reduction] | None:
    """Reduce the leaves over all processes of a group, into those of one of them."""

    def call(tensor: torch.Tensor, later: bool) -> Any:
        return distributed.reduce(tensor, dst, _op(op), group=group, async_op=later)

    is_kept = distributed.get_rank() == dst
    begun = _begin(td, group, call, bucket_bytes, is_kept=is_kept, later=later)
    if later:
        return begun
    _wait(begun)
    return None


def _op(op: Any) -> Any:
    return distributed.ReduceOp.SUM if op is None else op


def _wait(begun: list[Reduction]) -> None:
    """Wait for all, whatever becomes of the first."""
    failed: Exception | None = None
    for each in begun:
        try:
            each.wait()
        except Exception as error:  # noqa: BLE001 (raised when all are over)
            failed = failed or error
    if failed is not None:
        raise failed


def _begin(
    td: Any,
    group: Any,
    call: _Call,
    bucket_bytes: int | None,
    *,
    is_kept: bool,
    later: bool,
) -> list[Reduction]:
    """Begin all reductions, once all processes agree."""
    if c10d._rank_not_in_group(group):
        return []
    parts = parts_of(td)
    agreement = _Agreement(parts.plan, group)
    buckets, alone = _buckets(parts, bucket_bytes)
    leaves = [[parts.leaves[place] for place in bucket.places] for bucket in buckets]
    packed = [
        _packed(each, bucket) for each, bucket in zip(leaves, buckets, strict=True)
    ]
    agreement.check()
    # One that is waited for anyway takes a turn of the interpreter less.
    later = later or len(buckets) + len(alone) > 1
    begun = []
    for each, bucket, flat in zip(leaves, buckets, packed, strict=True):
        finish = _unpacking(each, bucket, flat) if is_kept else None
        begun.append(Reduction(call(flat, later), finish))
    begun += [
        _alone(parts.leaves[place].detach(), group, call, is_kept) for place in alone
    ]
    if parts.views and is_kept:
        begun.append(Reduction(None, _writing_views(parts)))
    return begun


def _alone(leaf: torch.Tensor, group: Any, call: _Call, is_kept: bool) -> Reduction:
    device = device_of(group or c10d._get_default_group())
    if leaf.is_contiguous() and (leaf.device == device or device.type == "cpu"):
        return Reduction(call(leaf, True), None)
    target = leaf.to(device).contiguous().clone()

    def finish() -> None:
        copy_into(leaf, target)

    return Reduction(call(target, True), finish if is_kept else None)


# Buckets ----------------------------------------------------------------------------------


def _buckets(parts: Parts, bucket_bytes: int | None) -> tuple[list[_Bucket], list[int]]:
    """Which leaves are reduced together, and which alone.

    It is the same in all processes: it follows from the structure.
    """
    plan: Plan = parts.plan
    known = plan.buckets.get(bucket_bytes)
    if known is not None:
        return known
    limit = PACKED_BYTES if bucket_bytes is None else bucket_bytes + 1
    most = BUCKET_BYTES if bucket_bytes is None else bucket_bytes
    buckets: list[_Bucket] = []
    alone: list[int] = []
    filling: dict[str, tuple[_Bucket, int]] = {}
    for place, (_, dtype, _) in enumerate(plan.specs):
        size = plan.num_bytes[place]
        if size >= limit:
            alone.append(place)
            continue
        bucket, end = filling.get(dtype, (None, 0))
        if bucket is None or end + size > most:
            bucket, end = _Bucket([], [], 0), 0
            buckets.append(bucket)
        bucket.places.append(place)
        bucket.starts.append(end)
        filling[dtype] = bucket, end + size
    sized = [bucket._replace(numel=_numel(plan, bucket)) for bucket in buckets]
    plan.buckets[bucket_bytes] = sized, alone
    return sized, alone


def _numel(plan: Plan, bucket: _Bucket) -> int:
    dtype = getattr(torch, plan.specs[bucket.places[0]][1])
    return sum(plan.num_bytes[place] for place in bucket.places) // int(dtype.itemsize)


def _packed(leaves: list[torch.Tensor], bucket: _Bucket) -> torch.Tensor:
    dtype, device = leaves[0].dtype, leaves[0].device
    flat = torch.empty(bucket.numel, dtype=dtype, device=device)
    if not _rust.copy_parts(leaves, bucket.starts, flat, False):
        same = [leaf.detach().to(device).reshape(-1) for leaf in leaves]
        torch.cat(same, out=flat)
    return flat


def _unpacking(
    leaves: list[torch.Tensor], bucket: _Bucket, flat: torch.Tensor
) -> Callable[[], None]:
    def finish() -> None:
        if _rust.copy_parts(leaves, bucket.starts, flat, True):
            return
        pieces = flat.split([leaf.numel() for leaf in leaves])
        with torch.no_grad():
            for leaf, piece in zip(leaves, pieces, strict=True):
                copy_into(leaf, piece.view(leaf.shape))

    return finish


def _writing_views(parts: Parts) -> Callable[[], None]:
    def finish() -> None:
        for place, td, key in parts.views:
            td.set_(key, parts.leaves[place])

    return finish


# Agreeing ---------------------------------------------------------------------------------


class _Agreement:
    """Compares a structure over all processes of a group.

    Args:
        plan: the structure of this one.
        group: the group.
    """

    def __init__(self, plan: Plan, group: Any) -> None:
        self.plan = plan
        self.group = group
        self.world = distributed.get_world_size(group)
        self.place = device_of(group or c10d._get_default_group())
        if self.world == 1:
            return
        first, second = struct.unpack("<qq", plan.digest)
        # The greatest of each, and by the complements the least: they are one where all
        # are the same.
        words = [first, second, ~first, ~second]
        self.words = torch.tensor(words, device=self.place)
        self.work = distributed.all_reduce(
            self.words, distributed.ReduceOp.MAX, group=group, async_op=True
        )

    def check(self) -> None:
        """Raise on all processes if two of them differ.

        Raises:
            ValueError: they do.
        """
        if self.world == 1:
            return
        self.work.wait()
        first, second, least_first, least_second = self.words.tolist()
        if first == ~least_first and second == ~least_second:
            return
        mine = self.plan.text
        texts = self._all_texts(mine)
        rank, other = next(
            (rank, text) for rank, text in enumerate(texts) if text != mine
        )
        found = difference(mine, other, f"rank {rank}")
        raise ValueError(MSG_DIFFERENT.format(found))

    def _all_texts(self, mine: bytes) -> list[bytes]:
        length = torch.tensor([len(mine)], device=self.place)
        lengths = [torch.empty_like(length) for _ in range(self.world)]
        distributed.all_gather(lengths, length, group=self.group)
        longest = max(int(each) for each in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8, device=self.place)
        padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        found = [torch.empty_like(padded) for _ in range(self.world)]
        distributed.all_gather(found, padded, group=self.group)
        return [
            text.cpu().numpy().tobytes()[: int(each)]
            for text, each in zip(found, lengths, strict=True)
        ]
