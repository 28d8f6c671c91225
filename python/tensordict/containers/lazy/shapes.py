"""Operations on the batch dims of a lazy stack, and views of its merged entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict import _rust
from tensordict.containers.lazy.formats import check_tensors, stack_leaves
from tensordict.ops.display import PrintedEntry, get_printoptions
from tensordict.primitives.common import DIMS_TAIL, NO_TAIL
from tensordict.primitives.metatensor import MetaTensor
from tensordict.primitives.operations import rows_moved
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.storage.tensors.mapped import MemoryMappedTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict.containers.dense import TensorDict
    from tensordict.containers.lazy.access import StackState
    from tensordict.containers.lazy.stack import LazyStackedTensorDict

    MemberCall = tuple[str, tuple[Any, ...], int]

__all__ = [
    "densified",
    "first_entry",
    "gathered",
    "moved",
    "printed_entries",
    "rearranged",
    "regrouped",
    "softmaxed",
    "take_over",
]

MSG_VIEW = "Cannot call `view` on a lazy stacked tensordict. Call `reshape` instead."
MSG_DENSIFY_SCALARS = (
    "Cannot densify a tensordict with values with empty shape and exclusive keys: got "
    "shape {}."
)
MAPPED_OR_TRAINED = (MemoryMappedTensor, torch.nn.Parameter)
MSG_IN_PLACE = (
    "An operation in place that {} is not supported on a lazy stack; call "
    ".to_tensordict() first or use inplace=False."
)
MSG_MIXED = (
    "Cannot densify: some members have a collection under the key {!r}, one a {}. "
    "Give all members the same kind of entry."
)
MSG_DENSIFY = "stack_dim is {} but not 0. Densify cannot be done."


# Dims ------------------------------------------------------------------------------


def moved(
    td: StackState,
    op: Any,
    args: tuple[Any, ...],
    order: tuple[int, ...],
    tail: int,
    k: int,
    lock: bool,
) -> Any:
    """Return a stack with reordered dims; each member is changed in the same way.

    ``order`` lists the old dim for each of the ``k`` new leading dims, -1 for a new dim
    of size 1. It contains the stack dim.
    """
    dim = td.stack_dim
    new_dim = order.index(dim)
    rest = tuple(old - (old > dim) for at, old in enumerate(order) if at != new_dim)
    op, args, tail = _IN_MEMBERS[op](args, rest, dim, new_dim)
    members: list[Any] = []
    if tail == DIMS_TAIL and rest == tuple(range(len(rest))):
        # Only the stack dim moves, so the members stay.
        members = list(td.tensordicts)
        return members[0]._stack_lazily(members, new_dim, td._td_dim_name)
    for member in td.tensordicts:
        # A ragged dim has a different size in each member.
        member_size = member.batch_size
        size = torch.Size([1 if old < 0 else member_size[old] for old in rest])
        try:
            part = _rust.map_leaves(member, op, args, size, rest, tail, lock, k - 1)
        except RuntimeError:
            if -1 not in order:
                raise
            # A nested tensor cannot get a new first dim: stack this stack instead.
            return td._stack_lazily([td], order.index(-1), None)
        members.append(part)
    return members[0]._stack_lazily(members, new_dim, td._td_dim_name)


def _permuted_member(_: object, rest: tuple[int, ...], *__: int) -> MemberCall:
    return "permute", (rest,), DIMS_TAIL


def _squeezed_member(args: tuple[Any, ...], _: object, dim: int, __: int) -> MemberCall:
    dims = args[0] if isinstance(args[0], tuple) else (args[0],)
    return "squeeze", (tuple(removed - (removed > dim) for removed in dims),), NO_TAIL


def _unsqueezed_member(
    args: tuple[Any, ...], _: object, __: int, new_dim: int
) -> MemberCall:
    return "unsqueeze", (args[0] - (args[0] > new_dim),), NO_TAIL


_IN_MEMBERS: dict[str, Callable[[Any, tuple[int, ...], int, int], MemberCall]] = {
    "permute": _permuted_member,
    "squeeze": _squeezed_member,
    "transpose": _permuted_member,
    "unsqueeze": _unsqueezed_member,
}
"""For each operation on a stack, a function that returns the operation on a member.

The function takes the arguments on the stack, the order of the member's dims, the stack
dim and the new stack dim. It returns the name, the arguments and the kind of tail.
"""


def batched(
    td: StackState,
    op: object,
    args: tuple[Any, ...],
    names: tuple[int, ...],
    k: int,
) -> Any:
    """Return the members with a dim removed by ``vmap``, or given back.

    Return None if ``op`` does neither. The mapped dim is not the stack dim, so members
    that differ in shape can be mapped, too.
    """
    name = getattr(op, "__name__", "")
    if name not in ("_add_batch_dim", "_remove_from_leaf"):
        return None
    dim = td.stack_dim
    new_dim = names.index(dim)
    if name == "_add_batch_dim":
        at, *more = args
        inner = (at - (at > dim), *more)
    else:
        *more, at = args
        inner = (*more, at - (at > new_dim))
    rest = tuple(old - (old > dim) for at, old in enumerate(names) if at != new_dim)
    members = []
    for member in td.tensordicts:
        member_size = member.batch_size
        size = torch.Size([args[1] if old < 0 else member_size[old] for old in rest])
        members.append(_rust.map_leaves(member, op, inner, size, rest, 0, False, k - 1))
    return members[0]._stack_lazily(members, new_dim, td._td_dim_name)


def squeezed(td: StackState, gone: tuple[int, ...], k: int) -> Any:
    """Return the single member, without the dims ``gone``."""
    dim = td.stack_dim
    member = td.tensordicts[0]
    rest = tuple(removed - (removed > dim) for removed in gone if removed != dim)
    if not rest:
        return member
    size = member.batch_size
    order = tuple(at for at in range(len(size)) if at not in rest)
    prefix = torch.Size([size[at] for at in order if at < k - 1])
    order = tuple(at for at in order if at < k - 1)
    return _rust.map_leaves(member, "squeeze", (rest,), prefix, order, 0, False, k - 1)


def regrouped(td: StackState, shape: torch.Size, copies: bool) -> Any:
    """Return the same elements in another shape, by joining or splitting dims.

    One run of dims is joined into one, or one dim is split.

    Raises:
        RuntimeError: the new shape needs more than that, and ``copies`` is false.
    """
    old = td.batch_size
    if shape == old:
        return td
    ones = _ones_taken_out(old[td.stack_dim + 1 :], shape[td.stack_dim + 1 :])
    if ones and old[: td.stack_dim + 1] == shape[: td.stack_dim + 1]:
        # The members stay, with some dims of size 1 removed.
        for at in reversed(ones):
            td = td.squeeze(td.stack_dim + 1 + at)
        if len(shape) == td.stack_dim + 1:
            # A dim that was joined with the stack dim has no name.
            td._td_dim_name = None
        return td
    most = min(len(old), len(shape)) - 1
    head = _num_equal(old, shape, most)
    tail = _num_equal(old[::-1], shape[::-1], most - head)
    if 0 in old and 0 in shape[head : len(shape) - tail]:
        # Without elements, a dim of size 0 should keep its position.
        tail = _num_equal(old[::-1], shape[::-1], most)
        head = _num_equal(old, shape, most - tail)
    before = old[head : len(old) - tail]
    after = shape[head : len(shape) - tail]
    if len(after) == 1 and before and _can_unbind(td, head, len(before)):
        if -1 in before and not copies:
            raise RuntimeError(MSG_VIEW)
        parts = [td]
        for _ in before:
            parts = [piece for part in parts for piece in part.unbind(head)]
        if parts:
            return parts[0]._stack_lazily(parts, head, None)
    elif before == (-1,) and _is_ragged_with_ones(after):
        kept = next((at for at, length in enumerate(after) if length != 1), 0)
        for at in range(len(after)):
            if at != kept:
                td = td._stack_lazily([td], head + at, None)
        return td
    elif len(before) == 1 and after and (0 not in after or after == (1, 0)):
        return _split_dim(td, head, after)
    # A shape without elements never needs a copy.
    if not copies and 0 not in old:
        raise RuntimeError(MSG_VIEW)
    return td._as_dense().reshape(shape)


def _num_equal(first: Sequence[int], second: Sequence[int], most: int) -> int:
    """Return the number of leading sizes that two shapes share, at most ``most``."""
    pairs = zip(first[:most], second[:most], strict=True)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), max(most, 0))


def _ones_taken_out(old: torch.Size, new: torch.Size) -> list[int]:
    """Return the dims of size 1 that ``new`` lacks; an empty list if others differ."""
    removed: list[int] = []
    for at, length in enumerate(old):
        kept = at - len(removed)
        if kept >= len(new) or new[kept] != length:
            removed.append(at)
    rest = [length for at, length in enumerate(old) if at not in removed]
    is_all = rest == list(new) and all(old[at] == 1 for at in removed)
    return removed if is_all else []


def take_over(td: StackState, result: Any) -> None:
    """Replace the content of a stack's members by the parts of ``result``.

    The members stay the same objects. Further parts become new members, and superfluous
    members are removed.
    """
    dim = td.stack_dim
    if result.batch_dims != td.batch_dims:
        raise NotImplementedError(MSG_IN_PLACE.format("changes the number of dims"))
    is_stack = isinstance(result, type(td)) and result.stack_dim == dim
    parts = list(result.tensordicts if is_stack else result.unbind(dim))
    pairs = list(zip(td.tensordicts, parts, strict=False))
    if any(set(member.keys()) - set(part.keys()) for member, part in pairs):
        raise NotImplementedError(MSG_IN_PLACE.format("drops entries of some members"))
    for member, part in pairs:
        member._replace_content(part)
    td.tensordicts = [*td.tensordicts[: len(parts)], *parts[len(pairs) :]]
    td._batch_size = result.batch_size


def rearranged(td: CollectionProtocol, op: object, args: object) -> Any:
    """Apply ``narrow``, ``flip`` or ``roll`` to members that cannot be stacked.

    Return None for another operation.
    """
    work = _REARRANGED.get(op) if isinstance(op, str) else None
    return None if work is None else work(td, args)


def _narrowed(td: StackState, args: tuple[int, int, int]) -> Any:
    dim, start, length = args
    return td._index((slice(None),) * dim + (slice(start, start + length),))


def _flipped(td: StackState, args: tuple[Any, ...]) -> Any:
    dims = args[0] if isinstance(args[0], tuple) else args
    return _with_rows_moved(td, "flip", [((0,), dim) for dim in dims])


def _rolled(td: StackState, args: tuple[Any, ...]) -> Any:
    shifts, dims = (
        argument if isinstance(argument, (tuple, list)) else (argument,)
        for argument in args
    )
    pairs = zip(shifts, dims, strict=True)
    return _with_rows_moved(td, "roll", [((shift, 0), dim) for shift, dim in pairs])


_REARRANGED: dict[str, Callable[[Any, Any], Any]] = {
    "flip": _flipped,
    "narrow": _narrowed,
    "roll": _rolled,
}


def _with_rows_moved(td: StackState, op: str, steps: list[tuple[Any, int]]) -> Any:
    """Move the rows of ``td`` by ``op``, for each pair of arguments and dim."""
    result = td
    for arguments, dim in steps:
        rows = rows_moved(op, arguments, td.batch_size[dim])
        result = result._index((slice(None),) * dim + (rows,))
    # The index returned the members themselves: copy them, as for tensors.
    result = result.clone()
    if td._own_names() is not None:
        result.names = td._own_names()
    return result


def softmaxed(td: StackState, args: tuple[Any, ...]) -> StackState:
    """Apply a softmax along the stack dim, to each entry among members that have it."""
    dim, members = td.stack_dim, td.tensordicts
    results = [_rust.clone_structure(member) for member in members]
    holders: dict[Any, list[int]] = {}
    for at, member in enumerate(members):
        for key in _rust.walk(member, 0, True, True):
            holders.setdefault(key, []).append(at)
    for key, places in holders.items():
        values = [members[at].get(key) for at in places]
        rows = stack_leaves(key, values, dim).softmax(dim, *args).unbind(dim)
        for at, row in zip(places, rows, strict=True):
            results[at].set(key, row)
    return td._like(results)


def gathered(td: StackState, dim: int, index: torch.Tensor) -> Any:
    """Apply ``gather`` to members that cannot be stacked."""
    ndim = index.dim()
    items = [
        torch.arange(length).reshape(
            [-1 if other == at else 1 for other in range(ndim)]
        )
        for at, length in enumerate(index.shape)
    ]
    items[dim] = index
    result = td._index(tuple(items)).clone()
    if td._own_names() is not None:
        result.names = td._own_names()
    return result


def _can_unbind(td: StackState, dim: int, count: int) -> bool:
    """Return whether ``count`` dims from ``dim`` on can be unbound one by one.

    A ragged dim can only be unbound after the stack dim.
    """
    ragged = [at for at in range(dim, dim + count) if td.batch_size[at] == -1]
    return not ragged or dim <= td.stack_dim < min(ragged)


def _is_ragged_with_ones(after: torch.Size) -> bool:
    """Return whether a shape is one ragged dim and dims of size 1."""
    return [length for length in after if length != 1] == [-1]


def _split_dim(td: Any, dim: int, sizes: torch.Size) -> Any:
    """Split one dim into several, each as a stack of pieces."""
    if dim and len(sizes) == 2 and sizes[0] == 1:
        # The result shares the members, so a new entry appears in both.
        return td._stack_lazily([td], dim, None)
    names, length = td._own_names(), td.batch_size[dim]
    for at, count in enumerate(sizes[:-1], dim):
        parts = list(td.chunk(count, at))
        td = parts[0]._stack_lazily(parts, at, None)
    if names is not None:
        split = [names[dim] if size == length != 1 else None for size in sizes]
        td.names = [*names[:dim], *split, *names[dim + 1 :]]
    return td


# The whole stack ----------------------------------------------------------------------


def densified(td: LazyStackedTensorDict, layout: torch.layout) -> TensorDict:
    """See ``LazyStackedTensorDict.densify``."""
    from tensordict.containers.dense import TensorDict

    members = td.tensordicts
    all_entries = [dict(member._entries()) for member in members]
    keys = dict.fromkeys(key for entries in all_entries for key in entries)
    entries: dict[str, Any] = {}
    for key in keys:
        values = [member_entries.get(key, NO_DEFAULT) for member_entries in all_entries]
        present = [value for value in values if value is not NO_DEFAULT]
        first = present[0]
        if isinstance(first, CollectionProtocol):
            for value in present:
                if not isinstance(value, CollectionProtocol):
                    raise TypeError(MSG_MIXED.format(key, type(value).__name__))
            values = [
                first.empty() if value is NO_DEFAULT else value for value in values
            ]
            stacked = first._stack_lazily(values, td.stack_dim, td._td_dim_name)
            entries[key] = stacked.densify(layout)
            continue
        if len(present) == len(values) and all(
            value.shape == first.shape for value in present
        ):
            entries[key] = stack_leaves(key, present, td.stack_dim)
            continue
        if td.stack_dim != 0:
            raise NotImplementedError(MSG_DENSIFY.format(td.stack_dim))
        check_tensors(key, present)
        entries[key] = _nested_rows(td, values, present, layout)
    return _rust.new(TensorDict, entries, td._batch_size, td._device, td._own_names())


def _nested_rows(
    td: LazyStackedTensorDict, values: list[Any], present: list[Any], layout: object
) -> torch.Tensor:
    """Make a nested tensor of the members' entries; missing entries are empty rows."""
    first = present[0]
    dtype = _common_dtype(present)
    ndim = max(len(td._batch_size) - 1, 0)
    rows = []
    for member, value in zip(td.tensordicts, values, strict=True):
        if value is NO_DEFAULT:
            if not first.shape:
                raise RuntimeError(MSG_DENSIFY_SCALARS.format(first.shape))
            empty = [*member.batch_size, *first.shape[ndim:]]
            empty[min(ndim, len(empty) - 1)] = 0
            value = first.new_zeros(empty, dtype=dtype)
        rows.append(value.to(dtype))
    return torch.nested.as_nested_tensor(rows, layout=layout)


def _common_dtype(values: list[torch.Tensor]) -> torch.dtype:
    """Return the common dtype of the values with elements, if there are any."""
    non_empty = [value for value in values if value.numel()] or values
    dtype = non_empty[0].dtype
    for value in non_empty[1:]:
        dtype = torch.promote_types(dtype, value.dtype)
    return dtype


def printed_entries(td: Any) -> list[tuple[str, Any]]:
    """Return the entries that all members have, in their printed form."""
    out: list[tuple[str, Any]] = []
    is_short = get_printoptions()["compact"]
    for key in td._common_keys():
        values = td._seen(key)
        nested = [isinstance(value, CollectionProtocol) for value in values]
        if all(nested) and len({len(value.batch_size) for value in values}) > 1:
            out.append((key, _Mixed(values)))
        elif all(nested):
            out.append((key, _printed(td._sampled(values), first_entry(td, key))))
        elif any(nested) or not all(map(_has_shape, values)):
            out.append((key, _Mixed(values)))
        else:
            meta = MetaTensor._of_stack(values, td.stack_dim)
            if not is_short and any(value.shape != values[0].shape for value in values):
                meta.dtype = values[0].dtype
            elif issubclass(meta._class, MAPPED_OR_TRAINED):
                # Stacking makes a plain tensor of memory-mapped tensors and parameters.
                meta._class = torch.Tensor
            out.append((key, meta))
    if get_printoptions()["sort_keys"] == "alphabetical":
        out.sort(key=lambda entry: entry[0])
    return out


def first_entry(td: LazyStackedTensorDict, key: str) -> Any:
    """Return the entry of the first member that is not a stack itself."""
    while td.tensordicts and hasattr(td.tensordicts[0], "tensordicts"):
        td = td.tensordicts[0]
    return td.tensordicts[0]._sample_entry(key)


def _printed(stack: Any, first: Any) -> Any:
    """Return a stacked entry to print; stacked values print like the first value."""
    if not first._is_non_tensor or isinstance(stack, type(first)):
        return stack
    return PrintedEntry(stack, first._repr_short())


def _has_shape(value: object) -> bool:
    """Return whether an object is a leaf with a shape; other leaves have none."""
    return isinstance(value, (torch.Tensor, MetaTensor))


class _Mixed:
    """An entry that cannot be stacked; its text lists the classes of its values."""

    def __init__(self, values: list[Any]) -> None:
        self.names = dict.fromkeys(type(value).__name__ for value in values)

    def __repr__(self) -> str:
        return f"[{', '.join(self.names)}]"
