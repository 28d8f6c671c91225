"""The decorators that fill the uniform methods: a hundred functions, one body each.

Where dozens of methods differ only in the torch function they call, each is written
with its real signature and docstring and an empty body, and a decorator of this file
puts the body in when the class is made. The filled method is a plain function: a call
costs one Python frame.

The functions below the decorators are the slower roads: an operand that is another
collection or a tensor, and so has to be brought into line first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

from tensordict import _rust
from tensordict._rust import foreach
from tensordict.primitives.checks import is_leaf_nontensor, is_tensorclass
from tensordict.primitives.common import check_results
from tensordict.primitives.errors import not_an_operand
from tensordict.primitives.foreach import is_dense_throughout
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.primitives.ragged_leaves import is_jagged, with_rows_of

__all__ = [
    "casting",
    "comparing",
    "elementwise",
    "elementwise_inplace",
    "elementwise_scaled",
    "elementwise_scaled_inplace",
    "elementwise_with",
    "elementwise_with_inplace",
    "leafwise",
    "mapping",
]

NUMBERS = (int, float, complex)
F = TypeVar("F", bound=Callable[..., Any])
Leaves = list[torch.Tensor]
ForEach = Callable[..., Any]

MSG_EXTRA = "Some keys were not found: {}."
MSG_BAD_DEFAULT = (
    'default must be a tensor, a number or "intersection", but got {!r}, and the two '
    "collections do not have the same keys."
)

MSG_BROADCAST = "output with shape {} doesn't match the broadcast shape {}"


def _filled(method: Callable[..., Any], stub: F) -> F:
    """``method`` with the name, signature, annotations and docstring of ``stub``."""
    return functools.update_wrapper(method, stub)  # type: ignore[return-value]


# Decorators ------------------------------------------------------------------------


def elementwise(op: ForEach) -> Callable[[F], F]:
    """Fill ``method(self)`` with ``op(leaves)``, a ``torch._foreach_*`` function."""

    def fill(stub: F) -> F:
        def method(self: Any) -> Any:
            return foreach(self, op)

        _rust.call_foreach_natively(method, False)
        return _filled(method, stub)

    return fill


def elementwise_inplace(op: ForEach) -> Callable[[F], F]:
    """Fill ``method_(self)`` with ``op(leaves)``, which writes into the leaves."""

    def fill(stub: F) -> F:
        def method(self: Any) -> Any:
            _rust.foreach_inplace(self, op)
            return self

        return _filled(method, stub)

    return fill


def mapping(op: str | Callable[..., Any]) -> Callable[[F], F]:
    """Fill ``method(self)`` with ``op`` called on each leaf; there is no foreach form."""

    def fill(stub: F) -> F:
        def method(self: Any) -> Any:
            return _rust.map_leaves(self, op, (), None, True, 0, True)

        return _filled(method, stub)

    return fill


def elementwise_with(op: ForEach) -> Callable[[F], F]:
    """Fill ``method(self, other, default=None)`` with ``op(leaves, operand)``.

    ``op`` takes a list of leaves and either a list of as many operands, or one operand
    for all. Names and lock are kept; nested collections that hold nothing are not, but
    where the operand is a tensor with dims. The stub says whether ``default`` is
    keyword-only.
    """

    def fill(stub: F) -> F:
        def method(self: Any, other: object, default: object = None) -> Any:
            result = foreach(self, op, (other,), True)
            return _with(op, self, other, default) if result is None else result

        def by_keyword(self: Any, other: object, *, default: object = None) -> Any:
            result = foreach(self, op, (other,), True)
            return _with(op, self, other, default) if result is None else result

        def plain(self: Any, other: object) -> Any:
            result = foreach(self, op, (other,), True)
            return _with(op, self, other, None) if result is None else result

        for each in (method, by_keyword, plain):
            _rust.call_foreach_natively(each, True)
        if "default" in (stub.__kwdefaults__ or {}):
            return _filled(by_keyword, stub)
        return _filled(method if stub.__defaults__ else plain, stub)

    return fill


def _with(op: ForEach, td: CollectionProtocol, other: object, default: object) -> Any:
    """``op`` with an operand that is not in line with ``td`` as it is."""
    if isinstance(other, CollectionProtocol):
        return with_collection(op, td, other, default)
    if isinstance(other, torch.Tensor) and other.dim():
        return with_tensor(op, td, other)
    values = _rust.leaves(td)
    if values:
        try:
            values = op(values, _one_for_all(other, values))
        except TypeError as error:
            raise not_an_operand(op, td, (other,), error) from None
    return _rust.rebuild(td, values, True, bool(values), bool(values))


def elementwise_scaled(op: ForEach, sign: int) -> Callable[[F], F]:
    """Build ``self + sign * alpha * other``: see :func:`elementwise_with`."""

    def fill(stub: F) -> F:
        def method(
            self: Any, other: object, *, alpha: object = None, default: object = None
        ) -> Any:
            each = op
            if alpha is not None:
                each = _scaled(op, torch._foreach_add, sign, alpha, other)
            result = foreach(self, each, (other,), True)
            return _with(each, self, other, default) if result is None else result

        _rust.call_foreach_natively(method, True)
        return _filled(method, stub)

    return fill


def _scaled(
    op: ForEach, add: ForEach, sign: int, alpha: object, other: object
) -> ForEach:
    """``op`` with its operand, which is made of ``other``, times ``alpha``.

    The foreach forms take ``alpha`` for lists, and the addition also for one tensor.
    """
    if isinstance(other, CollectionProtocol):
        # Its leaves are a list. One call of Python less than below.
        return functools.partial(op, alpha=alpha)

    def scaled(values: Leaves, operand: Any) -> Any:
        if type(operand) is list:
            return op(values, operand, alpha=alpha)
        if isinstance(operand, torch.Tensor) and sign > 0:
            return add(values, operand, alpha=alpha)
        if isinstance(operand, torch.Tensor):
            return op(values, [operand] * len(values), alpha=alpha)
        return op(values, operand * alpha)

    return scaled


def elementwise_scaled_inplace(op: ForEach, sign: int) -> Callable[[F], F]:
    """Build the operation of :func:`elementwise_scaled` that writes into the leaves."""

    def fill(stub: F) -> F:
        def method(self: Any, other: object, alpha: object = None) -> Any:
            if alpha is None and _rust.foreach_inplace(self, op, (other,)):
                return self
            each = op
            if alpha is not None:
                each = _scaled(op, torch._foreach_add_, sign, alpha, other)
            return combine_inplace(each, self, other)

        def by_keyword(self: Any, other: object, *, alpha: object = None) -> Any:
            if alpha is None and _rust.foreach_inplace(self, op, (other,)):
                return self
            return method(self, other, alpha)

        keyword = "alpha" in (stub.__kwdefaults__ or {})
        return _filled(by_keyword if keyword else method, stub)

    return fill


def elementwise_with_inplace(op: ForEach) -> Callable[[F], F]:
    """Fill ``method_(self, other)`` with ``op(leaves, operand)``, writing into the leaves."""

    def fill(stub: F) -> F:
        def method(self: Any, other: object) -> Any:
            if _rust.foreach_inplace(self, op, (other,)):
                return self
            return _write_combined(op, self, other)

        return _filled(method, stub)

    return fill


def leafwise(op: Callable[..., Any]) -> Callable[[F], F]:
    """Build a method of a function of one leaf: see :func:`elementwise_with`."""

    def for_each(values: Leaves, operand: object) -> Leaves:
        if type(operand) is list and len(operand) == len(values):
            return list(map(op, values, operand))
        return [op(value, operand) for value in values]

    return elementwise_with(for_each)


_CASTS = {
    torch.bool: "bool",
    torch.float16: "half",
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "bfloat16",
    torch.int8: "char",
    torch.int16: "short",
    torch.int32: "int",
    torch.int64: "long",
    torch.uint8: "byte",
    torch.complex64: "cfloat",
    torch.complex128: "cdouble",
}
"""The casts that are methods: several times as fast as reading a dtype from arguments."""


def cast_of(dtype: torch.dtype) -> tuple[str, tuple[torch.dtype, ...]]:
    """The method that casts a leaf to ``dtype``, and its arguments."""
    return _cast_of(dtype)


def _cast_of(dtype: torch.dtype) -> tuple[str, tuple[torch.dtype, ...]]:
    method = _CASTS.get(dtype)
    return ("to", (dtype,)) if method is None else (method, ())


TRACED = ((cast_of, _cast_of),)
"""Functions for :mod:`tensordict.compile.registration`: a known dtype is not looked
up."""


def cast_leaves(td: CollectionProtocol, dtype: torch.dtype) -> Any:
    """``td`` with its leaves in ``dtype``; those that are stay the same tensors."""
    return _rust.map_leaves(td, *cast_of(dtype), None, True, 0, True)


def casting(dtype: torch.dtype) -> Callable[[F], F]:
    """Fill ``method(self, *, cast_filter=None)`` with a cast of all leaves."""
    method_name, args = _cast_of(dtype)

    def fill(stub: F) -> F:
        def method(self: Any, *, cast_filter: object = None) -> Any:
            if cast_filter is not None:
                result = self._cast_where(dtype, cast_filter)
                if self.is_locked:
                    _rust.lock_tree(result)
                return result
            return _rust.map_leaves(self, method_name, args, None, True, 0, True)

        return _filled(method, stub)

    return fill


def comparing(
    op: Callable[..., Any],
    operator: Callable[[Any, Any], Any],
    otherwise: bool,
) -> Callable[[F], F]:
    """Fill ``__op__(self, other)`` with ``op(leaf, operand)``, a comparison.

    The result is a plain collection without names, never locked. ``operator`` is the
    function of :mod:`operator` for two entries of which one is a collection, and
    ``otherwise`` the answer where ``other`` is nothing to compare with.
    """

    def for_each(values: Leaves, operands: Leaves) -> Leaves:
        return list(map(op, values, operands))

    def fill(stub: F) -> F:
        def method(self: Any, other: object) -> Any:
            try:
                result = _rust.compare(self, op, other, self._plain_type)
            except RuntimeError:
                # Jagged tensors that have the same rows can be compared below.
                if not any(map(is_jagged, _rust.leaves(self))):
                    raise
                result = None
            if result is not None:
                return result
            if isinstance(other, CollectionProtocol):
                return compare_collections(op, operator, self, other)
            if isinstance(other, torch.Tensor):
                if other.dim():
                    return with_tensor(for_each, self, other)
            elif isinstance(other, dict):
                other = self._compared_dict(other)
                return compare_collections(op, operator, self, other)
            elif not _is_number(other):
                return self._incomparable(stub.__name__, other, otherwise)
            values = [op(value, other) for value in _rust.leaves(self)]
            return _rust.rebuild_as(self, values, self._plain_type)

        return _filled(method, stub)

    return fill


def _is_number(value: object) -> bool:
    """Return whether ``value`` is a number of a library, such as ``numpy.float32``."""
    import numbers

    return isinstance(value, numbers.Number)


# Operands ----------------------------------------------------------------------------


def expand_right(values: Iterable[torch.Tensor], operand: torch.Tensor) -> Leaves:
    """For each leaf a view of ``operand`` (shape ``[*B]``) that broadcasts over ``[*F]``."""
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


def _one_for_all(operand: object, values: Leaves) -> Any:
    """An operand that all leaves share; a list of it where :func:`torch.vmap` maps it."""
    if isinstance(operand, torch.Tensor) and not (
        torch.compiler.is_compiling()
        or not torch._C._functorch.is_batchedtensor(operand)
    ):
        return [operand] * len(values)
    return operand


def spread(td: CollectionProtocol, values: Leaves, operand: torch.Tensor) -> Leaves:
    """:func:`expand_right` for the leaves of ``td``, of a stack the parts of members."""
    if is_dense_throughout(td):
        return expand_right(values, operand)
    return td._spread(operand)


def by_members(
    each: Callable[..., Any], td: CollectionProtocol, *operands: object
) -> Any:
    """``each(member, *parts)`` of a stack, stacked again; None where ``td`` is no stack.

    The parts are those of the operands, which are broadcast with the stack, that belong
    to the member.
    """
    stack = None if td._is_dense else td._lazy_stack()
    groups = None if stack is None else stack._member_operands(operands)
    if groups is None:
        return None
    return td._like([each(member, *parts) for member, parts in groups])


def broadcast_sizes(left: torch.Size, right: torch.Size) -> torch.Size:
    """The shape that both broadcast to.

    ``torch.broadcast_shapes`` would do, but its first call imports sympy, which takes
    longer than the import of torch.
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
    """``op`` with a tensor that broadcasts from the left over the batch dims."""
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
    """Return whether some results, but not all, require a gradient."""
    if operand.requires_grad or not torch.is_grad_enabled():
        return False
    required = sum(value.requires_grad for value in values)
    return 0 < required < len(values)


def broadcast_collections(td: Any, other: Any) -> tuple[Any, Any]:
    """Two collections with one batch size; one without batch dims stays as it is."""
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
    """``op`` with another collection, whose entries are matched by key.

    A collection without leaves takes any other; a member of a stack none with more keys.
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
    """The leaves of ``other`` at the keys of ``td``; the slow road, with its errors.

    Raises:
        KeyError: ``other`` lacks a key of ``td`` or, if ``strict``, has more.
    """
    mine = _rust.walk(td, 0, True, True)
    theirs = set(_rust.walk(other, 0, True, True))
    missing = set(mine) - theirs
    extra = theirs - set(mine)
    if missing:
        raise KeyError(mismatch_message(missing, extra))
    if extra and strict:
        raise KeyError(MSG_EXTRA.format(set(extra)))
    out: Leaves = []
    _collect_matched(td, other, out)
    return out


def _collect_matched(
    td: CollectionProtocol, other: CollectionProtocol, out: Leaves
) -> None:
    """Append the leaves of ``other`` at the keys of ``td``, in the order of its leaves."""
    stack = None if td._is_dense else td._lazy_stack()
    groups = None if stack is None else stack._member_operands((other,))
    if groups is not None:
        for member, parts in groups:
            _collect_matched(member, parts[0], out)
        return
    for key, value in list(td._entries().items()):
        match = other._get_entry(key, None)
        if match is None:
            # A value, or a collection of values alone, has nothing to be matched.
            if isinstance(value, CollectionProtocol) and (
                value._is_non_tensor or not _rust.leaves(value)
            ):
                continue
            raise KeyError(mismatch_message({key}, ()))
        if isinstance(value, CollectionProtocol):
            _collect_matched(value, match, out)
        else:
            out.append(match)


def mismatch_message(missing: Iterable[Any], extra: Iterable[Any]) -> str:
    """Describe the keys that only the first or only the second collection has."""
    missing, extra = set(missing), set(extra)
    msg = "keys in tensordicts mismatch."
    if missing:
        msg += f" The first TD has keys {missing} that the second does not have."
    if extra:
        msg += f" The second TD has keys {extra} that the first does not have."
    return msg


def _with_default(op: ForEach, td: Any, other: Any, default: object) -> Any:
    """``op`` on collections with different keys; see the ``default`` of ``add``."""
    mine = dict(_rust.walk(td, 2, True, True))
    theirs = dict(_rust.walk(other, 2, True, True))
    if isinstance(default, str):
        if default != "intersection" and mine.keys() != theirs.keys():
            raise TypeError(MSG_BAD_DEFAULT.format(default))
        common = [key for key in mine if key in theirs]
        kept = td
        if mine:
            others = [key for key, _ in td.non_tensor_items(include_nested=True)]
            wanted = {*common, *others}
            entries = td.keys(True, True, is_leaf=is_leaf_nontensor)
            kept = td.select(*(k for k in entries if k in wanted), strict=False)
        values = [mine[key] for key in common]
        if values:
            values = op(values, [theirs[key] for key in common])
        result = _rust.rebuild(kept, values, True, False, bool(values))
    else:
        if not isinstance(default, torch.Tensor):
            default = torch.as_tensor(default)
        added = [key for key in theirs if key not in mine]
        clashing = [key for key in added if _rust.get(td, key, None) is not None]
        if clashing:
            raise KeyError(mismatch_message((), clashing))
        values = [*mine.values(), *[default] * len(added)]
        operands = [theirs.get(key, default) for key in [*mine, *added]]
        if values:
            values = op(values, operands)
        result = _rust.rebuild(td, values[: len(mine)], True, False, bool(mine))
        for key, value in zip(added, values[len(mine) :], strict=True):
            _rust.set_entry(result, key, value)
    if td.is_locked:
        _rust.lock_tree(result)
    return result


def operand_lists(td: Any, operands: Sequence[Any]) -> tuple[Any, list[Any], list[Any]]:
    """``td``, its leaves, and the operands in line with them.

    A collection becomes the list of its leaves at the keys of ``td`` (it may have
    more), a tensor with dims a list of views that broadcast from the left, and anything
    else stays. ``td`` is expanded where the batch dims of an operand ask for it.
    """
    size = shape = td.batch_size
    sizes = []
    for operand in operands:
        own = None
        if isinstance(operand, CollectionProtocol):
            own = operand.batch_size or None
        elif isinstance(operand, torch.Tensor) and operand.dim():
            own = operand.shape
        sizes.append(own)
        if own is not None and own != shape:
            shape = broadcast_sizes(shape, own)
    if shape != size:
        td = td._broadcast(shape)
    values = _rust.leaves(td)
    lists: list[Any] = []
    for operand, own in zip(operands, sizes, strict=True):
        if own is not None and own != shape:
            operand = operand.expand(shape)
        if isinstance(operand, CollectionProtocol):
            found = _rust.align(td, operand) if values else values
            if found is None:
                found = matched_leaves(td, operand, strict=False)
            lists.append(found)
        elif own is not None:
            lists.append(spread(td, values, operand))
        else:
            lists.append(_one_for_all(operand, values))
    return td, values, lists


def combine(op: ForEach, td: Any, *operands: object) -> Any:
    """``op(leaves, *operands)``.

    Locked as ``td``, except where a tensor comes first and no collection after it.
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
    """``op(leaves, *operands)``, which writes into the leaves of ``td``."""
    if _rust.foreach_inplace(td, op, operands):
        return td
    return _write_combined(op, td, *operands)


def _write_combined(op: ForEach, td: CollectionProtocol, *operands: object) -> Any:
    """:func:`combine_inplace` with operands that are not in line as they are.

    Raises:
        RuntimeError: together they have more batch dims, or larger ones, than ``td``.
    """
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


# Comparisons ---------------------------------------------------------------------------


def compare_collections(
    op: Callable[..., Any],
    operator: Callable[[Any, Any], Any],
    td: Any,
    other: Any,
) -> Any:
    """Compare two collections entry by entry."""
    if td.batch_size != other.batch_size:
        td, other = broadcast_collections(td, other)
    operands = _rust.align(td, other, True)
    if operands is None:
        # By the operator: a member may be a class over a stack, which wraps the answer.
        result = by_members(operator, td, other)
        if result is not None:
            result._td_dim_names = None
            return result
        return _compare_entries(operator, td, other)
    leaves = _rust.leaves(td)
    try:
        values = list(map(op, leaves, operands))
    except RuntimeError:
        if not any(map(is_jagged, leaves)):
            raise
        values = list(map(op, leaves, map(with_rows_of, leaves, operands)))
    return _rust.rebuild_as(td, values, td._plain_type)


def unset_fields(td: CollectionProtocol, keys: Iterable[str], other: Any) -> set[str]:
    """The keys at which ``td`` has None and ``other`` a field that is not set.

    What is made of the dictionary that a tensorclass gives has such entries.

    Args:
        td: a collection.
        keys: keys of ``td`` that ``other`` does not have.
        other: a collection, which has fields if it is a tensorclass.
    """
    if not is_tensorclass(other):
        return set()
    found = {key: td._get_entry(key, None) for key in keys}
    return {
        key
        for key, value in found.items()
        if key in type(other).__expected_keys__
        and getattr(value, "_is_non_tensor", False)
        and value._is_one
        and value.data is None
    }


def _compare_entries(
    operator: Callable[[Any, Any], Any],
    td: CollectionProtocol,
    other: CollectionProtocol,
) -> Any:
    """Compare where a tensor may meet a collection.

    Raises:
        KeyError: the two do not have the same keys.
    """
    mine, theirs = dict(td._entries()), dict(other._entries())
    if mine.keys() != theirs.keys():
        missing, extra = mine.keys() - theirs.keys(), theirs.keys() - mine.keys()
        unset = unset_fields(td, missing, other)
        missing, extra = missing - unset, extra - unset_fields(other, extra, td)
        if missing or extra:
            raise KeyError(mismatch_message(missing, extra))
        mine = {key: value for key, value in mine.items() if key not in unset}
    entries = {key: operator(value, theirs[key]) for key, value in mine.items()}
    if td.device is not None:
        for key, value in mine.items():
            # A tensor is compared with a collection on the device of that, if any.
            is_tensor = not isinstance(value, CollectionProtocol)
            if is_tensor and isinstance(theirs[key], CollectionProtocol):
                entries[key] = entries[key].to(td.device)
    # A collection that was compared with a tensor keeps its names, and gives them.
    nested = (
        entry._td_dim_names
        for entry in entries.values()
        if isinstance(entry, CollectionProtocol) and not entry._is_non_tensor
    )
    names = next((list(found) for found in nested if found is not None), None)
    if names is not None:
        names = names[: len(td.batch_size)]
    return _rust.new(td._plain_type, entries, td.batch_size, td.device, names)
