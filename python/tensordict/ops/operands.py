"""Matching of operands with the leaves: tensordicts, tensors and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from tensordict import _rust
from tensordict._rust import foreach
from tensordict.primitives.arrays import as_tensor
from tensordict.primitives.checks import is_branch, is_leaf_nontensor, is_tensorclass
from tensordict.primitives.common import check_results
from tensordict.primitives.errors import absent_key, not_an_operand
from tensordict.primitives.foreach import is_dense_throughout
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.special import in_line, kind_of

NUMBERS = (int, float, complex)
Leaves = list[torch.Tensor]
ForEach = Callable[..., Any]

OF_LEAVES: set[ForEach] = {torch._foreach_clamp_max_, torch._foreach_clamp_min_}
"""In-place operations that match leaves only, whatever the batch sizes are."""

MSG_EXTRA = "Some keys were not found: {}."
MSG_BAD_DEFAULT = (
    'default must be a tensor, a number or "intersection", but got {!r}, and the two '
    "tensordicts do not have the same keys."
)
MSG_BROADCAST = "output with shape {} doesn't match the broadcast shape {}"


def is_number(value: object) -> bool:
    """Return whether ``value`` is a number of a library, such as ``numpy.float32``."""
    import numbers

    return isinstance(value, numbers.Number)


def expand_right(values: Iterable[torch.Tensor], operand: torch.Tensor) -> Leaves:
    """View ``operand`` ``[*B]`` for each leaf so that it broadcasts over ``[*F]``."""
    dims = operand.dim()
    views = {dims: operand}
    out = []
    for value in values:
        ndim = value.dim()
        view = views.get(ndim)
        if view is None:
            view = operand.view(*operand.shape, *([1] * (ndim - dims)))
            views[ndim] = view
        out.append(view)
    return out


def one_for_all(operand: object, values: Leaves) -> Any:
    """Return an operand for all leaves; a list of it if :func:`torch.vmap` maps it."""
    if isinstance(operand, torch.Tensor) and not (
        torch.compiler.is_compiling()
        or not torch._C._functorch.is_batchedtensor(operand)
    ):
        return [operand] * len(values)
    return operand


def spread(td: CollectionProtocol, values: Leaves, operand: torch.Tensor) -> Leaves:
    """Expand an operand for each leaf of ``td``, or for each member of a lazy stack."""
    if is_dense_throughout(td):
        return expand_right(values, operand)
    return td._spread(operand)


def by_members(
    function: Callable[..., Any], td: CollectionProtocol, *operands: object
) -> Any:
    """Stack ``each(member, *parts)`` for the members of a lazy stack.

    The operands broadcast with the stack, and ``parts`` are their parts for the member.
    Return None if ``td`` is no lazy stack.
    """
    stack = None if td._is_dense else td._lazy_stack()
    groups = None if stack is None else stack._member_operands(operands)
    if groups is None:
        return None
    return td._like([function(member, *parts) for member, parts in groups])


def broadcast_sizes(left: torch.Size, right: torch.Size) -> torch.Size:
    """Return the shape that both broadcast to.

    The first call of ``torch.broadcast_shapes`` imports sympy, which takes longer than
    the import of torch.
    """
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    sizes = list(longer)
    for position, size in enumerate(shorter, len(longer) - len(shorter)):
        if size not in (1, sizes[position]):
            if sizes[position] != 1:
                return torch.broadcast_shapes(left, right)  # It raises the error.
            sizes[position] = size
    return torch.Size(sizes)


def with_tensor(op: ForEach, td: Any, other: torch.Tensor) -> Any:
    """Compute ``op`` with a tensor that broadcasts from the left over batch dims."""
    size = td.batch_size
    if other.shape != size:
        shape = broadcast_sizes(size, other.shape)
        if shape != size:
            td = td._broadcast(shape)
        if shape != other.shape:
            other = other.expand(shape)
    values = _rust.leaves(td)
    if values:
        operands = spread(td, values, other)
        if _needs_apart(values, other):
            pairs = zip(values, operands, strict=True)
            values = [op([value], [operand])[0] for value, operand in pairs]
        else:
            values = op(values, operands)
    return _rust.rebuild(td, values, True, False)


def _needs_apart(values: Leaves, operand: torch.Tensor) -> bool:
    """Return whether some results, but not all, require grad."""
    if operand.requires_grad or not torch.is_grad_enabled():
        return False
    required = sum(value.requires_grad for value in values)
    return 0 < required < len(values)


def broadcast_collections(td: Any, other: Any) -> tuple[Any, Any]:
    """Expand two tensordicts to one batch size; ``other`` without batch dims stays."""
    size, other_size = td.batch_size, other.batch_size
    if other_size and size != other_size:
        shape = broadcast_sizes(size, other_size)
        if shape != size:
            td = td._broadcast(shape)
        if shape != other_size:
            other = other.expand(shape)
    return td, other


def with_collection(
    op: ForEach, td: Any, other: Any, default: object, *, is_member: bool = False
) -> Any:
    """Compute ``op`` with another tensordict, whose entries are matched by key.

    If ``td`` has no leaves, ``other`` may have any keys, unless ``td`` is a member of a
    lazy stack.
    """
    if td.batch_size != other.batch_size:
        td, other = broadcast_collections(td, other)
    values = _rust.leaves(td)
    operands = _rust.align(td, other)
    if operands is None:
        result = by_members(
            lambda member, part: with_collection(
                op, member, part, default, is_member=True
            ),
            td,
            other,
        )
        if result is not None:
            return result
        if default is not None:
            return _with_default(op, td, other, default)
        if values or is_member:
            operands = matched_leaves(td, other, strict=True)
        else:
            operands = values
    values = op(values, operands) if values else values
    return _rust.rebuild(td, values, True, bool(values), bool(values))


def matched_leaves(
    td: CollectionProtocol, other: CollectionProtocol, *, strict: bool
) -> Leaves:
    """Return the leaves of ``other`` at the keys of ``td``, or raise an error.

    Raises:
        KeyError: ``other`` lacks a key of ``td`` or, if ``strict``, has more.
    """
    own_keys = _rust.walk(td, 0, True, True)
    other_keys = set(_rust.walk(other, 0, True, True))
    missing = set(own_keys) - other_keys
    extra = other_keys - set(own_keys)
    if missing:
        raise absent_key(mismatch_message(missing, extra))
    if extra and strict:
        raise absent_key(MSG_EXTRA.format(set(extra)))
    out: Leaves = []
    _collect_matched(td, other, out)
    return out


def _collect_matched(
    td: CollectionProtocol, other: CollectionProtocol, out: Leaves
) -> None:
    """Append the leaves of ``other`` in the order of the leaves of ``td``."""
    stack = None if td._is_dense else td._lazy_stack()
    groups = None if stack is None else stack._member_operands((other,))
    if groups is not None:
        for member, parts in groups:
            _collect_matched(member, parts[0], out)
        return
    for key, value in list(td._entries().items()):
        match = other._get_entry(key, None)
        if match is None:
            # Non-tensor data, and tensordicts of non-tensor data only, need no match.
            if isinstance(value, CollectionProtocol) and (
                value._is_non_tensor or not _rust.leaves(value)
            ):
                continue
            raise absent_key(mismatch_message({key}, ()))
        if isinstance(value, CollectionProtocol):
            _collect_matched(value, match, out)
        else:
            out.append(match)


def mismatch_message(missing: Iterable[Any], extra: Iterable[Any]) -> str:
    """Describe the keys that only the first or only the second tensordict contains."""
    missing, extra = set(missing), set(extra)
    msg = "keys in tensordicts mismatch."
    if missing:
        msg += f" The first TD has keys {missing} that the second does not have."
    if extra:
        msg += f" The second TD has keys {extra} that the first does not have."
    return msg


def _with_default(op: ForEach, td: Any, other: Any, default: object) -> Any:
    """Compute ``op`` on tensordicts with different keys; see ``default`` of ``add``."""
    own_leaves = dict(_rust.walk(td, 2, True, True))
    other_leaves = dict(_rust.walk(other, 2, True, True))
    if isinstance(default, str):
        if default != "intersection" and own_leaves.keys() != other_leaves.keys():
            raise TypeError(MSG_BAD_DEFAULT.format(default))
        common = [key for key in own_leaves if key in other_leaves]
        kept = td
        if own_leaves:
            others = [key for key, _ in td.non_tensor_items(include_nested=True)]
            wanted = {*common, *others}
            entries = td.keys(True, True, is_leaf=is_leaf_nontensor)
            kept = td.select(*(k for k in entries if k in wanted), strict=False)
        values = [own_leaves[key] for key in common]
        if values:
            values = op(values, [other_leaves[key] for key in common])
        result = _rust.rebuild(kept, values, True, False, bool(values))
    else:
        if not isinstance(default, torch.Tensor):
            default = as_tensor(default)
        added = [key for key in other_leaves if key not in own_leaves]
        clashing = [key for key in added if _rust.get(td, key, None) is not None]
        if clashing:
            raise absent_key(mismatch_message((), clashing))
        values = [*own_leaves.values(), *[default] * len(added)]
        operands = [other_leaves.get(key, default) for key in [*own_leaves, *added]]
        if values:
            values = op(values, operands)
        result = _rust.rebuild(
            td, values[: len(own_leaves)], True, False, bool(own_leaves)
        )
        for key, value in zip(added, values[len(own_leaves) :], strict=True):
            _rust.set_entry(result, key, value)
    if td.is_locked:
        _rust.lock_tree(result)
    return result


def operand_lists(td: Any, operands: Sequence[Any]) -> tuple[Any, list[Any], list[Any]]:
    """Return ``td``, its leaves, and the operands matched with them.

    A tensordict operand becomes the list of its leaves at the keys of ``td``;
    additional keys are ignored. A tensor with dims becomes a list of views that
    broadcast from the left. Other operands stay. ``td`` is expanded if an operand has
    more batch dims.
    """
    size = shape = td.batch_size
    sizes = []
    for operand in operands:
        operand_size = None
        if isinstance(operand, CollectionProtocol):
            operand_size = operand.batch_size or None
        elif isinstance(operand, torch.Tensor) and operand.dim():
            operand_size = operand.shape
        sizes.append(operand_size)
        if operand_size is not None and operand_size != shape:
            shape = broadcast_sizes(shape, operand_size)
    if shape != size:
        td = td._broadcast(shape)
    values = _rust.leaves(td)
    lists: list[Any] = []
    for operand, operand_size in zip(operands, sizes, strict=True):
        if operand_size is not None and operand_size != shape:
            operand = operand.expand(shape)
        if isinstance(operand, CollectionProtocol):
            found = _rust.align(td, operand) if values else values
            if found is None:
                found = matched_leaves(td, operand, strict=False)
            lists.append(found)
        elif operand_size is not None:
            lists.append(spread(td, values, operand))
        else:
            lists.append(one_for_all(operand, values))
    return td, values, lists


def combine(op: ForEach, td: Any, *operands: object) -> Any:
    """Compute ``op(leaves, *operands)``.

    The result is locked as ``td`` is, unless the first operand is a tensor with dims
    and no later operand is a tensordict.
    """
    result = foreach(td, op, operands)
    if result is not None:
        return result
    td, values, lists = operand_lists(td, operands)
    first, *others = operands
    if values:
        try:
            values = op(values, *lists)
        except TypeError as error:
            raise not_an_operand(op, td, operands, error) from None
    is_spread = isinstance(first, torch.Tensor) and first.dim() > 0
    lock = not is_spread or any(isinstance(x, CollectionProtocol) for x in others)
    return _rust.rebuild(td, values, True, bool(values) and lock)


def combine_inplace(op: ForEach, td: CollectionProtocol, *operands: object) -> Any:
    """Call ``op(leaves, *operands)``, which writes into the leaves of ``td``."""
    if _rust.foreach_inplace(td, op, operands):
        return td
    return write_combined(op, td, *operands)


def write_combined(
    op: ForEach, td: CollectionProtocol, *operands: object
) -> CollectionProtocol:
    """Do :func:`combine_inplace` with operands that do not match the leaves yet.

    Raises:
        RuntimeError: the broadcast batch size is larger than that of ``td``.
    """
    if op in OF_LEAVES and any(_is_larger(operand, td) for operand in operands):
        # The additional batch dims of the operand match feature dims of the leaves
        # here.
        written, values = td, _rust.leaves(td)
        lists = [
            matched_leaves(td, operand, strict=False)
            if isinstance(operand, CollectionProtocol)
            else one_for_all(operand, values)
            for operand in operands
        ]
    else:
        written, values, lists = operand_lists(td, operands)
    if written.batch_size != td.batch_size:
        raise RuntimeError(MSG_BROADCAST.format(td.batch_size, written.batch_size))
    if values:
        try:
            check_results(op, values, lists)
            op(values, *lists)
        except TypeError as error:
            raise not_an_operand(op, td, operands, error) from None
    if not is_dense_throughout(td):
        td._store_leaves(values)
    return td


def _is_larger(operand: object, td: CollectionProtocol) -> bool:
    """Return whether an operand is a tensordict with a larger batch size."""
    if not isinstance(operand, CollectionProtocol):
        return False
    size, own = operand.batch_size, td.batch_size
    return len(size) > len(own) or any(
        left not in (1, right)
        for left, right in zip(size[::-1], own[::-1], strict=False)
    )


def compare_collections(
    op: Callable[..., Any],
    operator: Callable[[Any, Any], Any],
    td: Any,
    other: Any,
) -> Any:
    """Compare two tensordicts entry by entry."""
    if td.batch_size != other.batch_size:
        td, other = broadcast_collections(td, other)
    operands = _rust.align(td, other, True)
    if operands is None:
        # Use the operator: a member may be a tensorclass, which wraps the result.
        result = by_members(operator, td, other)
        if result is not None:
            result._td_dim_names = None
            return result
        return _compare_entries(operator, td, other)
    leaves = _rust.leaves(td)
    try:
        values = list(map(op, leaves, operands))
    except RuntimeError:
        if not any(map(kind_of, leaves)):
            raise
        values = list(map(op, leaves, map(in_line, leaves, operands)))
    return _rust.rebuild_as(td, values, td._plain_type)


def unset_fields(td: CollectionProtocol, keys: Iterable[str], other: Any) -> set[str]:
    """Return the keys at which ``td`` has None and ``other`` a field that is not set.

    A dictionary made of a tensorclass has None for such a field.

    Args:
        td: a tensordict.
        keys: keys of ``td`` that ``other`` lacks.
        other: another tensordict; only a tensorclass has fields.
    """
    if not is_tensorclass(other):
        return set()
    found = {key: td._get_entry(key, None) for key in keys}
    return {
        key
        for key, value in found.items()
        if key in type(other).__expected_keys__
        and getattr(value, "_is_non_tensor", False)
        and all(item is None for item in _items(value))
    }


def _items(value: Any) -> Iterable[object]:
    """Return the objects of non-tensor data, which are several after a broadcast."""
    return (value.data,) if value._is_one else value._flat()


def _compare_entries(
    operator: Callable[[Any, Any], Any],
    td: CollectionProtocol,
    other: CollectionProtocol,
) -> Any:
    """Compare entry by entry if a tensor may be compared with a tensordict.

    Raises:
        KeyError: the tensordicts have different keys.
    """
    own_entries, other_entries = dict(td._entries()), dict(other._entries())
    if own_entries.keys() != other_entries.keys():
        missing, extra = (
            own_entries.keys() - other_entries.keys(),
            other_entries.keys() - own_entries.keys(),
        )
        unset = unset_fields(td, missing, other)
        missing, extra = missing - unset, extra - unset_fields(other, extra, td)
        if missing or extra:
            raise absent_key(mismatch_message(missing, extra))
        own_entries = {
            key: value for key, value in own_entries.items() if key not in unset
        }
    entries = {
        key: operator(value, other_entries[key]) for key, value in own_entries.items()
    }
    if td.device is not None:
        for key, value in own_entries.items():
            # Comparing a tensor with a tensordict needs the device of ``td``.
            is_tensor = not isinstance(value, CollectionProtocol)
            if is_tensor and isinstance(other_entries[key], CollectionProtocol):
                entries[key] = entries[key].to(td.device)
    # A nested result that was compared with a tensor keeps its names; copy them.
    nested = (entry._td_dim_names for entry in entries.values() if is_branch(entry))
    names = next((list(found) for found in nested if found is not None), None)
    if names is not None:
        names = names[: len(td.batch_size)]
    return _rust.new(td._plain_type, entries, td.batch_size, td.device, names)
