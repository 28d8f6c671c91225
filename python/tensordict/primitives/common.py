"""Share messages, exceptions and small readings of arguments between the methods."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

# The native code looks for these two here.
from tensordict.primitives.checks import holds_values, is_branch
from tensordict.primitives.errors import MSG_LOCKED, missing_key  # noqa: F401
from tensordict.primitives.special import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NO_TAIL, SHAPE_TAIL, DIMS_TAIL, ONES_TAIL = 0, 1, 2, 3

MSG_BAD_KEY = (
    "Only NestedKeys are supported: a key must be a string or a non-empty, "
    "possibly nested tuple of strings. Got key {!r}."
)
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
    """A value cannot be written into the entry that is there."""


def value_of(entry: object) -> Any:
    """Return what reading an entry by key gives: the value of non-tensor data."""
    if holds_values(entry):
        return entry._value()
    return entry


def as_size(batch_size: Any) -> torch.Size:
    """The batch size that an argument names; None is that without dims."""
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
    """Weak references to all that ``held`` and ``more`` refer to, and that is alive."""
    found: list[Any] = []
    refs: list[Any] = []
    for ref in [*held, *more]:
        each = ref()
        # No identity is asked for: the compiler would guard it.
        if each is not None and not any([each is other for other in found]):
            found.append(each)
            # A reference that came in the compiler would return as what it refers to.
            refs.append(weakref.ref(each))
    return refs


def not_a_value(key: object, entry: object, item: object) -> Exception:
    """The error of writing a value into an entry of another kind, at an index."""
    msg = (
        f"the entry {key!r} is a {type(entry).__name__}: a "
        f"{type(item).__name__} cannot be written into it."
    )
    # For a value that is no tensor the published release looks for a method in vain.
    is_collection = is_branch(item)
    return TypeError(msg) if is_collection else AttributeError(msg)


MSG_OVERFLOW = "value cannot be converted to type {} without overflow"


def check_number(leaves: list[torch.Tensor], value: Any, is_index: bool) -> None:
    """Raise where the dtype of a leaf has no such number, before any leaf is written.

    ``is_index`` tells how it will be written: the errors name dtypes in two ways.
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
    """``writes`` with those first that torch can refuse for what their target is.

    The target of a write is its item at ``position``. Nothing is written if the first
    one is refused.
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
    """Raise where ``op`` cannot store a result in a leaf, before any leaf is written.

    ``op(leaves, *operands)`` writes into leaves one by one; each operand is a list of as
    many tensors, or one for all leaves.
    """
    if len(leaves) < 2:  # the only leaf is not written where it fails
        return
    lists = [operand for operand in operands if type(operand) is list]
    for position, leaf in enumerate(leaves):
        if not all([_spreads(parts[position], leaf) for parts in lists]):
            # The error is torch's, about a copy of the leaf.
            samples = [
                [operand[position]] if type(operand) is list else operand
                for operand in operands
            ]
            op([leaf.detach().clone()], *samples)
    if len({leaf.dtype for leaf in leaves}) < 2:  # two dtypes
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
                "operation that gives a new collection, or change the dtype first. No "
                "leaf was written."
            )
            raise RuntimeError(msg) from None


def _spreads(part: object, leaf: torch.Tensor) -> bool:
    """Return whether ``part`` is known to broadcast to the shape of ``leaf``."""
    if not isinstance(part, torch.Tensor) or leaf.is_nested or part.is_nested:
        return True
    shape, whole = part.shape, leaf.shape
    if shape == whole:
        return True
    missing = len(whole) - len(shape)
    return missing >= 0 and all(
        length in (1, expected)
        for length, expected in zip(shape, whole[missing:], strict=True)
    )


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """One element, with dims where there are some: they count in the promotion."""
    shape = (1,) if tensor.dim() else ()
    return torch.ones(shape, dtype=tensor.dtype, device=tensor.device)


def _spliced_size(
    old: torch.Size, prefix: torch.Size | None, k: int, names: object = None
) -> torch.Size:
    """The new size of a collection of size ``old`` whose root gets ``prefix``.

    One that was given fewer dims than the root keeps as many where those that it lacks
    stay in their places, which ``names`` tells; see :func:`map_leaves`.
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
    """The names of a collection of the new batch size ``size``; see :func:`map_leaves`."""
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
    """Return what a tail appends to the first argument of an operation on a leaf."""
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
    """The arguments for a leaf, of which the first one ends with a tail of its shape."""
    if not tail:
        return args
    first = [*args[0], *tail_of(value, tail, k)]
    return (torch.Size(first) if tail == SHAPE_TAIL else tuple(first), *args[1:])


def shape_of_lists(data: list[Any]) -> list[int]:
    """The lengths of nested lists, as far down as all at a depth have one length."""
    size = [len(data)]
    level = data
    while level and all(isinstance(item, list) for item in level):
        lengths = {len(item) for item in level}
        if len(lengths) != 1:
            break
        size.append(lengths.pop())
        level = [item for row in level for item in row]
    return size
