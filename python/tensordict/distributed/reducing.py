"""``reduce`` and ``all_reduce``: small leaves of a dtype together, large ones in their place.

Before anything is reduced all processes compare what their collections consist of, as a
backend that is given tensors of other lengths ends the process.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed

from tensordict.distributed import wire
from tensordict.distributed.channels import device_of
from tensordict.distributed.groups import MSG_ALL, group_of, root_of
from tensordict.distributed.plans import (
    Packing,
    Parts,
    Plan,
    copy_into,
    difference,
    parts_of,
)

if TYPE_CHECKING:
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["Reduction", "all_reduce", "reduce"]

BUCKET_BYTES = 32 << 20
"""So many bytes of small leaves are reduced together, where nothing else is asked for."""

PACKED_BYTES = 256 << 10
"""Leaves below this size are packed, where nothing else is asked for."""

FAILED = b"!"
"""The beginning of a text, which is JSON otherwise, that says why there is no structure."""

MSG_DIFFERENT = "The collections of the ranks differ: {}. Nothing was reduced."


_Call = Callable[[torch.Tensor, bool], Any]
"""Reduces a tensor: in the background, if the second argument says so."""


class _Bucket(NamedTuple):
    """Leaves of one dtype that are reduced together."""

    packing: Packing
    dtype: torch.dtype
    numel: int
    """The number of elements that they have."""


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
        """Tell whether waiting would not take time."""
        return self._work is None or bool(self._work.is_completed())

    def is_success(self) -> bool:
        """Tell whether it is over and went well."""
        return self._work is None or bool(self._work.is_success())

    def exception(self) -> Any:
        """The reason why it failed; None if it did not."""
        return None if self._work is None else self._work.exception()


def all_reduce(
    td: CollectionProtocol,
    op: Any = None,
    group: Any = None,
    *,
    async_op: bool = False,
    bucket_bytes: int | None = None,
) -> list[Reduction] | None:
    """Reduce the leaves over all processes of a group, in place."""
    group = group_of(group, MSG_ALL.format(name="all_reduce"))

    def call(tensor: torch.Tensor, later: bool) -> Any:
        return distributed.all_reduce(tensor, _op(op), group=group, async_op=later)

    begun = _begin(td, group, call, bucket_bytes, is_kept=True, later=async_op)
    if async_op:
        return begun
    _wait(begun)
    return None


def reduce(
    td: CollectionProtocol,
    dst: int,
    op: Any = None,
    group: Any = None,
    *,
    later: bool = False,
    bucket_bytes: int | None = None,
) -> list[Reduction] | None:
    """Reduce the leaves over all processes of a group, into those of one of them."""
    group, root, dst = root_of("dst", dst, group)

    def call(tensor: torch.Tensor, later: bool) -> Any:
        return distributed.reduce(tensor, dst, _op(op), group=group, async_op=later)

    is_kept = group.rank() == root
    begun = _begin(td, group, call, bucket_bytes, is_kept=is_kept, later=later)
    if later:
        return begun
    _wait(begun)
    return None


def _op(op: object) -> Any:
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
    td: CollectionProtocol,
    group: Any,
    call: _Call,
    bucket_bytes: int | None,
    *,
    is_kept: bool,
    later: bool,
) -> list[Reduction]:
    """Begin all reductions, once all processes agree."""
    try:
        parts = parts_of(td)
    except TypeError as error:
        _Agreement(FAILED + wire.text_of(error), None, group).check()
        raise
    agreement = _Agreement(parts.plan.text, parts.plan.digest, group)
    buckets, alone = _buckets(parts, bucket_bytes)
    packed = [_packed(parts, bucket) for bucket in buckets]
    agreement.check()
    # One that is waited for anyway takes a turn of the interpreter less.
    later = later or len(buckets) + len(alone) > 1
    begun = []
    for bucket, flat in zip(buckets, packed, strict=True):
        finish = _unpacking(parts, bucket, flat) if is_kept else None
        begun.append(Reduction(call(flat, later), finish))
    begun += [
        _alone(parts.leaf(place).detach(), group, call, is_kept) for place in alone
    ]
    if parts.views and is_kept:
        begun.append(Reduction(None, _writing_views(parts)))
    return begun


def _alone(leaf: torch.Tensor, group: Any, call: _Call, is_kept: bool) -> Reduction:
    device = device_of(group)
    if leaf.is_contiguous() and (leaf.device == device or device.type == "cpu"):
        return Reduction(call(leaf, True), None)
    target = leaf.to(device).contiguous().clone()

    def finish() -> None:
        copy_into(leaf, target)

    return Reduction(call(target, True), finish if is_kept else None)


# Buckets ----------------------------------------------------------------------------------


def _buckets(parts: Parts, bucket_bytes: int | None) -> tuple[list[_Bucket], list[int]]:
    """Decide which leaves are reduced together, and which alone.

    All processes decide it alike: it follows from the structure.
    """
    plan: Plan = parts.plan
    known = plan.buckets.get(bucket_bytes)
    if known is not None:
        return known
    limit = PACKED_BYTES if bucket_bytes is None else bucket_bytes + 1
    most = BUCKET_BYTES if bucket_bytes is None else bucket_bytes
    filled: list[_Filling] = []
    alone: list[int] = []
    filling: dict[str, _Filling] = {}
    for place, (_, dtype, _) in enumerate(plan.specs):
        size = plan.num_bytes[place]
        if size >= limit:
            alone.append(place)
            continue
        bucket = filling.get(dtype)
        if bucket is None or bucket.end + size > most:
            bucket = filling[dtype] = _Filling(getattr(torch, dtype))
            filled.append(bucket)
        bucket.places.append(place)
        bucket.starts.append(bucket.end)
        bucket.end += size
    plan.buckets[bucket_bytes] = [bucket.filled(plan) for bucket in filled], alone
    return plan.buckets[bucket_bytes]


class _Filling:
    """A bucket that more leaves may be put in.

    Args:
        dtype: that of its leaves.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.places: list[int] = []
        self.starts: list[int] = []
        self.end = 0

    def filled(self, plan: Plan) -> _Bucket:
        """Make the bucket."""
        packing = plan.packed_at(self.places, self.starts)
        return _Bucket(packing, self.dtype, self.end // self.dtype.itemsize)


def _packed(parts: Parts, bucket: _Bucket) -> torch.Tensor:
    device = parts.found[0].device
    flat = torch.empty(bucket.numel, dtype=bucket.dtype, device=device)
    if not bucket.packing.copy(parts.found, flat, False):
        leaves = bucket.packing.leaves_in(parts.found)
        same = [leaf.detach().to(device).reshape(-1) for leaf in leaves]
        torch.cat(same, out=flat)
    return flat


def _unpacking(parts: Parts, bucket: _Bucket, flat: torch.Tensor) -> Callable[[], None]:
    def finish() -> None:
        if bucket.packing.copy(parts.found, flat, True):
            return
        leaves = bucket.packing.leaves_in(parts.found)
        pieces = flat.split([leaf.numel() for leaf in leaves])
        with torch.no_grad():
            for leaf, piece in zip(leaves, pieces, strict=True):
                copy_into(leaf, piece.view(leaf.shape))

    return finish


def _writing_views(parts: Parts) -> Callable[[], None]:
    def finish() -> None:
        for place, td, key in parts.views:
            td.set_(key, parts.leaf(place))

    return finish


# Agreeing ---------------------------------------------------------------------------------


class _Agreement:
    """Compares a structure over all processes of a group.

    Args:
        text: the structure of this one, or behind :data:`FAILED` why it has none.
        digest: that of the text, where it is known.
        group: the group.
    """

    def __init__(self, text: bytes, digest: bytes | None, group: Any) -> None:
        self.text = text
        self.group = group
        self.world = group.size()
        self.place = device_of(group)
        digest = digest or hashlib.blake2b(text, digest_size=16).digest()
        if self.world == 1:
            return
        first, second = struct.unpack("<qq", digest)
        # The greatest of each, and by the complements the least: they are one where all
        # are the same.
        words = [first, second, ~first, ~second]
        self.words = torch.tensor(words, device=self.place)
        self.work = distributed.all_reduce(
            self.words, distributed.ReduceOp.MAX, group=group, async_op=True
        )

    def check(self) -> None:
        """Raise on all processes if two of them differ, or one has no structure.

        Raises:
            ValueError: they do.
            WireError: another one has none.
        """
        if self.world == 1:
            return
        self.work.wait()
        first, second, least_first, least_second = self.words.tolist()
        if first == ~least_first and second == ~least_second:
            return
        texts = self._all_texts(self.text)
        if self.text.startswith(FAILED):
            return
        rank, other = next(
            (rank, text) for rank, text in enumerate(texts) if text != self.text
        )
        if other.startswith(FAILED):
            reason = other.removeprefix(FAILED).decode(errors="replace")
            raise wire.WireError(wire.MSG_FAILED.format(rank=rank, text=reason))
        found = difference(self.text, other, f"rank {rank}")
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
