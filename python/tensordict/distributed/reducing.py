"""``reduce`` and ``all_reduce``: small leaves are packed by dtype, large leaves reduced alone.

First all processes compare the structures of their collections: a backend that receives tensors of
other lengths ends the process.
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
"""The default size of a bucket: the bytes of small leaves that are reduced together."""

PACKED_BYTES = 256 << 10
"""By default, leaves below this size are packed into buckets."""

FAILED = b"!"
"""The first byte of a text that holds an error. Other texts are structures in JSON."""

MSG_DIFFERENT = "The tensordicts of the ranks differ: {}. Nothing was reduced."


_Call = Callable[[torch.Tensor, bool], Any]
"""A function that reduces a tensor; in the background if its second argument is true."""


class _Bucket(NamedTuple):
    """Leaves of one dtype that are reduced together."""

    packing: Packing
    dtype: torch.dtype
    numel: int
    """The number of elements of all leaves."""


class Reduction:
    """A reduction under way, with the methods of torch's ``Work``.

    Args:
        work: torch's work, ``None`` if it has ended.
        finish: a function that :meth:`wait` calls to write the result into the leaves.
    """

    def __init__(self, work: Any, finish: Callable[[], None] | None) -> None:
        self._work = work
        self._finish = finish

    def wait(self, timeout: Any = None) -> bool:
        """Wait until the reduction ends, and write the result into the leaves.

        Raises:
            RuntimeError: the reduction failed.
        """
        if self._work is not None:
            _ = self._work.wait() if timeout is None else self._work.wait(timeout)
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def is_completed(self) -> bool:
        """Return whether :meth:`wait` would return at once."""
        return self._work is None or bool(self._work.is_completed())

    def is_success(self) -> bool:
        """Return whether the reduction has ended without an error."""
        return self._work is None or bool(self._work.is_success())

    def exception(self) -> Any:
        """Return the error of the reduction, ``None`` if there is none."""
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
    """Reduce the leaves over all processes of a group, into the leaves of rank ``dst``."""
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
    """Wait for all reductions, then raise the first error."""
    failed: Exception | None = None
    for reduction in begun:
        try:
            reduction.wait()
        except Exception as error:  # noqa: BLE001 (raised after the last has ended)
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
    """Begin all reductions, if all processes have the same structure."""
    try:
        parts = parts_of(td)
    except TypeError as error:
        _Agreement(FAILED + wire.text_of(error), None, group).check()
        raise
    agreement = _Agreement(parts.plan.text, parts.plan.digest, group)
    buckets, alone = _buckets(parts, bucket_bytes)
    packed = [_packed(parts, bucket) for bucket in buckets]
    agreement.check()
    # A single reduction that the caller waits for is faster without the background.
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
    """Return the buckets of small leaves, and the places of leaves that are reduced alone.

    The result depends only on the structure, so all processes compute the same.
    """
    plan: Plan = parts.plan
    cached = plan.buckets.get(bucket_bytes)
    if cached is not None:
        return cached
    limit = PACKED_BYTES if bucket_bytes is None else bucket_bytes + 1
    max_bytes = BUCKET_BYTES if bucket_bytes is None else bucket_bytes
    filled: list[_Filling] = []
    alone: list[int] = []
    filling: dict[str, _Filling] = {}
    for place, (_, dtype, _) in enumerate(plan.specs):
        size = plan.num_bytes[place]
        if size >= limit:
            alone.append(place)
            continue
        bucket = filling.get(dtype)
        if bucket is None or bucket.end + size > max_bytes:
            bucket = filling[dtype] = _Filling(getattr(torch, dtype))
            filled.append(bucket)
        bucket.places.append(place)
        bucket.starts.append(bucket.end)
        bucket.end += size
    plan.buckets[bucket_bytes] = [bucket.filled(plan) for bucket in filled], alone
    return plan.buckets[bucket_bytes]


class _Filling:
    """A bucket to which leaves are being added.

    Args:
        dtype: the dtype of its leaves.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.places: list[int] = []
        self.starts: list[int] = []
        self.end = 0

    def filled(self, plan: Plan) -> _Bucket:
        """Return the bucket with the leaves added so far."""
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
    """A comparison of the structure over all processes of a group.

    Args:
        text: the structure of this process, or :data:`FAILED` and an error.
        digest: the digest of the text, if it is known.
        group: the process group.
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
        # The reduction computes the maximum of each word, and by the complements the
        # minimum. They are equal if all processes have the same digest.
        words = [first, second, ~first, ~second]
        self.words = torch.tensor(words, device=self.place)
        self.work = distributed.all_reduce(
            self.words, distributed.ReduceOp.MAX, group=group, async_op=True
        )

    def check(self) -> None:
        """Raise on all processes if two structures differ, or one process has no structure.

        Raises:
            ValueError: two structures differ.
            WireError: another process has no structure.
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
        longest = max(int(rank_length) for rank_length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8, device=self.place)
        padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        texts = [torch.empty_like(padded) for _ in range(self.world)]
        distributed.all_gather(texts, padded, group=self.group)
        return [
            text.cpu().numpy().tobytes()[: int(rank_length)]
            for text, rank_length in zip(texts, lengths, strict=True)
        ]
