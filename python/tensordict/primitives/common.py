"""Messages, exceptions and small helpers that the methods share."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict import _rust
from tensordict.primitives.checks import holds_values, is_branch
from tensordict.primitives.errors import MSG_LOCKED, missing_key  # noqa: F401

# The native code looks for these two names here.
from tensordict.primitives.special import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict.primitives.protocol import CollectionProtocol

NO_TAIL, SHAPE_TAIL, DIMS_TAIL, ONES_TAIL = 0, 1, 2, 3

MSG_OUT_BATCH_SIZE = (
    "batch_size and out.batch_size must be equal when both are provided."
)
MSG_MEMBERSHIP = (
    "TensorDict keys are always strings. Membership checks are only supported for "
    "strings or non-empty tuples of strings (for nested TensorDicts)"
)
MSG_NO_KEYS = "key should be a Sequence<NestedKey>"
MSG_PRESENT = "The entry {} is already present in tensordict {}."
MSG_INPLACE = "Failed to update {!r} in tensordict {}"
MSG_BATCH_MISMATCH = (
    "batch dimension mismatch, got self.batch_size={} and value.shape={} for key {!r}. "
    "The leading dimensions of a value must match the batch size."
)
MSG_BATCH_SIZE = (
    "batch size was not specified when creating the TensorDict instance and it could "
    "not be retrieved from source."
)


class _InplaceWriteError(ValueError, RuntimeError):
    """The error of a value that cannot be written into an existing entry."""


def value_of(entry: object) -> Any:
    """Return the result of reading an entry: for non-tensor data the Python object."""
    if holds_values(entry):
        return entry._value()
    return entry


def python_value(entry: Any) -> Any:
    """Return non-tensor data as a Python object, a list if it has several values."""
    return entry.to_dict() if holds_values(entry) else entry


def mark_device(td: CollectionProtocol, device: torch.device | None) -> None:
    """Set the device of a tensordict and of nested ones, without moving leaves.

    Some have the device of another tensordict: a view, a lazy stack, a tensorclass.
    """
    for collection in _rust.containers(td):
        if "_device" in collection.__dict__:
            collection._device = device


def as_size(batch_size: Any) -> torch.Size:
    """Convert an argument to a batch size; None means no batch dims."""
    if batch_size is None:
        return torch.Size([])
    if isinstance(batch_size, torch.Size):
        return batch_size
    if isinstance(batch_size, (int, np.integer, torch.SymInt)):
        return torch.Size([int(batch_size)])
    try:
        return torch.Size(batch_size)
    except TypeError:
        msg = (
            f"{MSG_BATCH_SIZE} A batch size is a number or a sequence of numbers; the "
            f"argument is {batch_size!r:.50}, of type {type(batch_size).__name__}."
        )
        raise ValueError(msg) from None


def more_refs(held: Any, more: Any) -> list[Any]:
    """Return weak references to the living objects of ``held`` and ``more``."""
    objects: list[Any] = []
    refs: list[Any] = []
    for ref in [*held, *more]:
        target = ref()
        # No `id`: the compiler would guard it.
        if target is not None and not any([target is other for other in objects]):
            objects.append(target)
            # Make a new reference: the compiler returns one that it got as its object.
            refs.append(weakref.ref(target))
    return refs


def not_a_value(key: object, entry: object, item: object) -> Exception:
    """Make the error of writing a value into an entry of another kind, at an index."""
    msg = (
        f"the entry {key!r} is a {type(entry).__name__}: a "
        f"{type(item).__name__} cannot be written into it."
    )
    # The published release fails on a missing method for a value that is no tensor.
    is_collection = is_branch(item)
    return TypeError(msg) if is_collection else AttributeError(msg)


MSG_OVERFLOW = "value cannot be converted to type {} without overflow"


def check_number(leaves: list[torch.Tensor], value: Any, is_index: bool) -> None:
    """Raise an error if a dtype cannot represent a number, before any leaf is written.

    ``is_index`` says how the number will be written: torch's errors name dtypes in two
    ways.
    """
    narrow = dict.fromkeys(
        leaf.dtype
        for leaf in leaves
        if not (leaf.dtype.is_floating_point or leaf.dtype.is_complex)
    )
    for dtype in narrow:
        try:
            torch.empty((), dtype=dtype).fill_(value)
        except RuntimeError as error:
            if not is_index:
                raise
            name = str(dtype).removeprefix("torch.")
            raise RuntimeError(MSG_OVERFLOW.format(name)) from error


def refused_first(writes: list[Any], position: int) -> list[Any]:
    """Sort ``writes``: first the ones that torch may refuse because of their target.

    The target of a write is its item at ``position``. So if a write is refused, nothing
    has been written.
    """
    if torch.compiler.is_compiling():
        return writes
    targets = [write[position] for write in writes]
    if not any(
        [type(each) is not torch.Tensor or each.requires_grad for each in targets]
    ):
        return writes

    def is_safe(write: Any) -> bool:
        target = write[position]
        return not isinstance(target, torch.Tensor) or not (
            kind_of(target) or (target.requires_grad and target.is_leaf)
        )

    return sorted(writes, key=is_safe)


def check_results(op: Any, leaves: list[torch.Tensor], operands: list[Any]) -> None:
    """Raise an error if a leaf cannot store a result, before any leaf is written.

    ``op(leaves, *operands)`` writes into leaves one by one. Each operand is a list with
    one tensor for each leaf, or one operand for all leaves.
    """
    if len(leaves) < 2:  # a failing `op` does not write a single leaf
        return
    lists = [operand for operand in operands if type(operand) is list]
    for position, leaf in enumerate(leaves):
        if not all([_spreads(parts[position], leaf) for parts in lists]):
            # Raise torch's error, on a copy of the leaf.
            samples = [
                [operand[position]] if type(operand) is list else operand
                for operand in operands
            ]
            op([leaf.detach().clone()], *samples)
    if len({leaf.dtype for leaf in leaves}) < 2:
        return
    seen = set()
    for position, leaf in enumerate(leaves):
        parts = [
            operand[position] if type(operand) is list else operand
            for operand in operands
        ]
        dtypes = [
            part.dtype if isinstance(part, torch.Tensor) else None for part in parts
        ]
        pair = (leaf.dtype, *dtypes)
        if pair in seen:
            continue
        seen.add(pair)
        samples = [
            [_sample(part)] if type(operand) is list else operand
            for part, operand in zip(parts, operands, strict=True)
        ]
        try:
            op([_sample(leaf)], *samples)
        except RuntimeError as error:
            if type(error) is not RuntimeError or "cast" not in str(error):
                raise
            msg = (
                f"{error}. A leaf of dtype {leaf.dtype} cannot hold the result: use the "
                "operation that returns a new tensordict, or change the dtype first. No "
                "leaf was written."
            )
            raise RuntimeError(msg) from None


def _spreads(part: object, leaf: torch.Tensor) -> bool:
    """Return whether ``part`` is known to broadcast to the shape of ``leaf``."""
    if not isinstance(part, torch.Tensor) or leaf.is_nested or part.is_nested:
        return True
    shape, target_shape = part.shape, leaf.shape
    if shape == target_shape:
        return True
    missing = len(target_shape) - len(shape)
    return missing >= 0 and all(
        length in (1, expected)
        for length, expected in zip(shape, target_shape[missing:], strict=True)
    )


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return one element, with a dim if the tensor has dims: promotion needs it."""
    shape = (1,) if tensor.dim() else ()
    return torch.ones(shape, dtype=tensor.dtype, device=tensor.device)


def _spliced_size(
    old: torch.Size, prefix: torch.Size | None, k: int, names: object = None
) -> torch.Size:
    """Return the new size of a tensordict of size ``old`` if its root gets ``prefix``.

    A tensordict with fewer dims than the root keeps the same number if its missing dims
    stay in their places, which ``names`` says; see :func:`map_leaves`.
    """
    if prefix is None:
        return old
    missing = k - len(old)
    if missing == 0:
        return prefix
    if missing < 0:
        return torch.Size([*prefix, *old[k:]])
    kept = len(prefix) - missing
    if names is True:
        in_place = len(prefix) == k
    else:
        in_place = isinstance(names, tuple) and names[kept:] == tuple(
            range(len(old), k)
        )
    return torch.Size(prefix[:kept]) if in_place else prefix


def _spliced_names(
    old: list[str | None] | None, names: Any, k: int, size: torch.Size
) -> list[str | None] | None:
    """Return the names for the new batch size ``size``; see :func:`map_leaves`."""
    if names is True:
        return None if old is None else list(old)
    if names is None:
        return None
    if isinstance(names, tuple):
        if old is None:
            return None
        sources = names[: len(size)]
        moved = [old[dim] if 0 <= dim < len(old) else None for dim in sources]
        moved += old[k:]
        return moved if any(name is not None for name in moved) else None
    names = names[: len(size)]
    tail = [None] * (len(size) - len(names)) if old is None else old[k:]
    return [*names, *tail]


def tail_of(leaf: torch.Tensor, tail: int, k: int) -> Sequence[int]:
    """Return the numbers to append to the first argument of an operation on a leaf."""
    if tail == SHAPE_TAIL:
        return leaf.shape[k:]
    if tail == DIMS_TAIL:
        return range(k, leaf.dim())
    return [1] * (leaf.dim() - k)


def _call(
    value: Any, op: str | Callable[..., Any], args: tuple[Any, ...], tail: int, k: int
) -> Any:
    if tail:
        args = with_tail(value, args, tail, k)
    if isinstance(op, str):
        return getattr(value, op)(*args)
    return op(value, *args)


def with_tail(value: Any, args: tuple[Any, ...], tail: int, k: int) -> tuple[Any, ...]:
    """Return the arguments for a leaf, with its tail appended to the first one."""
    if not tail:
        return args
    first = [*args[0], *tail_of(value, tail, k)]
    return (torch.Size(first) if tail == SHAPE_TAIL else tuple(first), *args[1:])


def shape_of_lists(data: list[Any]) -> list[int]:
    """Return the lengths of nested lists, down to the level where they differ."""
    size = [len(data)]
    level = data
    while level and all(isinstance(item, list) for item in level):
        lengths = {len(item) for item in level}
        if len(lengths) != 1:
            break
        size.append(lengths.pop())
        level = [item for row in level for item in row]
    return size
