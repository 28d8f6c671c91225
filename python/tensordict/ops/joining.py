"""Stacking and concatenation of tensordicts, and of a tensordict's entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

import torch

from tensordict import _rust
from tensordict.primitives import classes
from tensordict.primitives import options as options_primitives
from tensordict.primitives.checks import holds_values
from tensordict.primitives.dim_numbers import from_front
from tensordict.primitives.errors import locked_error
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol, as_stack
from tensordict.primitives.special import is_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tensordict.containers.collection import TensorDictBase
    from tensordict.containers.lazy.stack import LazyStackedTensorDict
    from tensordict.primitives.protocol import NestedKeyLike

    T = TypeVar("T", bound=CollectionProtocol | torch.Tensor)
    C = TypeVar("C", bound=CollectionProtocol)

__all__ = [
    "JoiningOps",
    "cat",
    "cat_collections",
    "dense_stack_tds",
    "maybe_dense_stack",
    "stack",
    "stack_collections",
]

MSG_RANGE = "Dimension out of range (expected to be in range of [-{}, {}], but got {})"
MSG_CAT_DIM = (
    "dim must be in the range 0 <= dim < len(batch_size), got dim={} and batch_size={}"
)
MSG_OUT_SIZE = (
    "out.batch_size and {} batch size must match, got out.batch_size={} and "
    "batch_size={}"
)
MSG_NOTHING = "list_of_tensordicts cannot be empty"
MSG_NO_STACK_DIM = "If a list of tensordicts is provided, stack_dim must not be None"
MSG_SORTED = "The provided set of keys differs from the tensordict list of keys."


class JoiningOps(CollectionProtocol):
    """Stacking and concatenation of tensordicts, and of a tensordict's entries."""

    @classmethod
    def stack(cls, input: Sequence[T], dim: int = 0, *, out: T | None = None) -> T:
        """Stack tensordicts or tensors along a new dim: see :func:`tensordict.stack`.

        Raises:
            IndexError: ``input`` is empty.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, batch_size=[3])
            >>> TensorDict.stack([td, td], 1)["a"].shape
            torch.Size([3, 2])
        """
        if not len(input):
            raise IndexError(MSG_NOTHING)
        return stack(input, dim, out=out)

    @classmethod
    def cat(cls, input: Sequence[T], dim: int = 0, *, out: T | None = None) -> T:
        """Concatenate tensordicts or tensors: see :func:`tensordict.cat`.

        Raises:
            IndexError: ``input`` is empty.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, batch_size=[3])
            >>> TensorDict.cat([td, td])["a"].shape
            torch.Size([6])
        """
        if not len(input):
            raise IndexError(MSG_NOTHING)
        return cat(input, dim, out=out)

    @overload
    @classmethod
    def lazy_stack(
        cls,
        input: Sequence[TensorDictBase],
        dim: int = ...,
        *,
        out: None = ...,
        **kwargs: object,
    ) -> LazyStackedTensorDict: ...
    @overload
    @classmethod
    def lazy_stack(
        cls,
        input: Sequence[C],
        dim: int = ...,
        *,
        out: C | None = ...,
        **kwargs: object,
    ) -> C: ...
    @overload
    @classmethod
    def lazy_stack(
        cls, input: object, dim: int = ..., *, out: object = ..., **kwargs: object
    ) -> Any: ...
    @classmethod
    def lazy_stack(
        cls, input: object, dim: int = 0, *, out: object = None, **kwargs: object
    ) -> Any:
        """Stack tensordicts without copying: see :func:`tensordict.lazy_stack`.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, batch_size=[3])
            >>> TensorDict.lazy_stack([td, td])[1] is td
            True
        """
        return classes.lazy_stack(input, dim, out=out, **kwargs)

    def _stack_lazily(
        self, members: list[Any], dim: int, name: str | None, is_shown: bool = False
    ) -> LazyStackedTensorDict:
        """Make a lazy stack of ``members``, which fit; this is the first of them."""
        return classes.LazyStackedTensorDict._of(members, dim, name)

    def to_lazystack(self, dim: int = 0) -> Any:
        """Split along a batch dimension, and return the parts as a lazy stack.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 4)}, batch_size=[3])
            >>> td.to_lazystack(0).tensordicts[0]["a"].shape
            torch.Size([4])

        Raises:
            IndexError: ``dim`` is no batch dimension.
            RuntimeError: the size of the dimension is 0.
        """
        ndim = len(self.batch_size)
        at = from_front(dim, ndim)
        if not 0 <= at < ndim:
            raise IndexError(MSG_LAZY_DIM.format(dim, ndim))
        dim = at
        names = self.names if self._has_names() else None
        members = list(self.unbind(dim))
        name = None if names is None else names[dim]
        if not members:
            raise RuntimeError(MSG_NO_MEMBERS)
        return members[0]._stack_lazily(members, dim, name)

    @classmethod
    def maybe_dense_stack(
        cls, input: Sequence[T], dim: int = 0, *, out: T | None = None, **kwargs: object
    ) -> T:
        """Stack densely if possible: see :func:`tensordict.maybe_dense_stack`."""
        return maybe_dense_stack(input, dim, out=out, **kwargs)

    def _stack_onto_(self, list_item: list[Any], dim: int) -> Self:
        """Write the stack of ``list_item`` along ``dim`` into the leaves."""
        _write_group(self, list_item, dim, _rust.stack, torch.stack)
        return self

    # Entries of one tensordict ---------------------------------------------------

    def stack_tensors(
        self,
        *keys: NestedKeyLike,
        out_key: NestedKeyLike,
        dim: int = 0,
        keep_entries: bool = False,
    ) -> Self:
        """Replace several entries by their stack, in place.

        Args:
            *keys: the keys of the entries.
            out_key: the key of the stack.
            dim: the new dimension, as in :func:`torch.stack`.
            keep_entries: keep the entries.

        Raises:
            KeyError: an entry is missing.
            RuntimeError: shapes differ, the stack does not have the batch size as its
                leading dimensions, or the tensordict is locked. Then nothing changes.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3), b=torch.ones(3), batch_size=[3])
            >>> td.stack_tensors("a", "b", out_key="c", dim=1)["c"].shape
            torch.Size([3, 2])
        """
        return self._join_entries(torch.stack, keys, out_key, dim, keep_entries)

    def cat_tensors(
        self,
        *keys: NestedKeyLike,
        out_key: NestedKeyLike,
        dim: int = 0,
        keep_entries: bool = False,
    ) -> Self:
        """Replace several entries by their concatenation, in place.

        As :meth:`stack_tensors`, but with :func:`torch.cat`.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3, 2), b=torch.ones(3, 1), batch_size=[3])
            >>> td.cat_tensors("a", "b", out_key="c", dim=1)["c"].shape
            torch.Size([3, 3])
        """
        return self._join_entries(torch.cat, keys, out_key, dim, keep_entries)

    def _join_entries(
        self,
        join: Callable[..., Any],
        keys: Iterable[NestedKeyLike],
        out_key: NestedKeyLike,
        dim: int,
        keep_entries: bool,
    ) -> Self:
        joined = join([_rust.get(self, key) for key in keys], dim=dim)
        if not keep_entries:
            if self.is_locked:
                raise locked_error(self)
            paths = [_rust.unravel_key_to_tuple(key) for key in keys]
            for key, path in zip(keys, paths, strict=True):
                if paths.count(path) > 1:
                    raise KeyError(key)
        # The new entry comes last, even if it takes the key of one of the entries.
        joined = _rust.validate(self, out_key, joined)
        if self.is_locked:
            raise locked_error(self)
        if keep_entries:
            return self.set(out_key, joined)
        new = _rust.unravel_key_to_tuple(out_key)
        takes_a_key = any(all(map(str.__eq__, path, new)) for path in paths)
        if not takes_a_key:
            # A view may refuse the new key: find out before any entry is removed.
            self.set(out_key, joined)
        for key in keys:
            self.del_(key)
        return self.set(out_key, joined) if takes_a_key else self

    def stack_from_tensordict(
        self,
        dim: int = 0,
        *,
        sorted: bool | list[NestedKeyLike] | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Stack all leaves into one tensor.

        Args:
            dim: the new dimension, as in :func:`torch.stack`.
            sorted: True to sort the leaves by key, or a list of all keys in the wanted
                order. Default: the order of the entries.
            out: a tensor to write the result into.

        Raises:
            RuntimeError: there is no leaf, shapes differ, or ``sorted`` is a list that
                does not contain exactly the keys of all leaves.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3), b=torch.ones(3), batch_size=[3])
            >>> td.stack_from_tensordict().tolist()
            [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
        """
        return torch.stack(_leaves_in_order(self, sorted), dim, out=out)

    def cat_from_tensordict(
        self,
        dim: int = 0,
        *,
        sorted: bool | list[NestedKeyLike] | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Concatenate all leaves into one tensor: see :meth:`stack_from_tensordict`.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3), b=torch.ones(3), batch_size=[3])
            >>> td.cat_from_tensordict().shape
            torch.Size([6])
        """
        return torch.cat(_leaves_in_order(self, sorted), dim, out=out)


MSG_NO_MEMBERS = "items cannot be empty: a stack needs at least one member."
MSG_LAZY_DIM = "Incompatible dim {} for tensordict with batch dims {}."


def stack(input: Sequence[T], dim: int = 0, *, out: T | None = None) -> T:
    """Stack tensordicts along a new batch dimension, as :func:`torch.stack`.

    The type, device and order of entries come from the first tensordict. Names are kept
    if all tensordicts have the same. The result is unlocked.

    Args:
        input: tensordicts of the same batch size with the same entries, or tensors.
        dim: the new dimension.
        out: a tensordict to write the result into, entry by entry; it is returned.

    Raises:
        IndexError: ``dim`` is out of range.
        RuntimeError: ``input`` is empty; batch sizes, keys or shapes differ; or ``out``
            has another batch size than the result.

    Examples:
        >>> td = TensorDict({"a": torch.zeros(3)}, batch_size=[3])
        >>> stack([td, td]).batch_size
        torch.Size([2, 3])
    """
    if not len(input) or not isinstance(input[0], CollectionProtocol):
        _check_no_collection(input, out)
        return cast("Any", torch.stack)(input, dim, out=out)
    return stack_collections(input, dim, out)


def cat(input: Sequence[T], dim: int = 0, *, out: T | None = None) -> T:
    """Concatenate tensordicts along a batch dimension, as :func:`torch.cat`.

    The type, names and order of entries come from the first tensordict. The result is
    unlocked.

    Args:
        input: tensordicts with the same entries, whose batch sizes may differ in
            ``dim`` only; or tensors.
        dim: the batch dimension.
        out: a tensordict to write the result into, entry by entry; it is returned.

    Raises:
        ValueError: ``input`` is empty.
        KeyError: the tensordicts do not have the same entries.
        RuntimeError: ``dim`` is no batch dimension, shapes differ, or ``out`` has
            another batch size than the result.

    Examples:
        >>> td = TensorDict({"a": torch.zeros(3)}, batch_size=[3])
        >>> cat([td, td[:1]]).batch_size
        torch.Size([4])
    """
    if not len(input) or not isinstance(input[0], CollectionProtocol):
        _check_no_collection(input, out)
        return cast("Any", torch.cat)(input, dim, out=out)
    return cat_collections(input, dim, out)


def maybe_dense_stack(
    input: Sequence[T],
    dim: int = 0,
    *,
    out: T | None = None,
    **kwargs: object,
) -> T:
    """Stack tensordicts along a new batch dimension, densely if shapes allow it.

    If not, nested tensordicts whose shapes differ become lazy stacks, or the whole
    result does. See :func:`stack`; ``kwargs`` are passed to
    :func:`tensordict.lazy_stack`.
    """
    if not len(input):
        raise RuntimeError(MSG_NOTHING)
    if isinstance(input, CollectionProtocol):
        input = cast("Any", input.unbind(0))
    if out is None and not kwargs:
        return dense_stack_tds(input, dim)
    try:
        return stack_collections(input, dim, out)
    except RecursionError:
        raise
    except RuntimeError:
        return classes.lazy_stack(input, dim, out=out, **kwargs)


def dense_stack_tds(td_list: Any, dim: int | None = None) -> Any:
    """Stack tensordicts along a new batch dimension, with one tensor for each entry.

    If this is not possible, nested tensordicts that differ become lazy stacks, or the
    whole result does.

    Args:
        td_list: a list of tensordicts; or a lazy stack, which is made dense along its
            stack dimension.
        dim: the new dimension. Required for a list.

    Raises:
        ValueError: ``td_list`` is a list and ``dim`` is missing.

    Examples:
        >>> td = TensorDict({"a": torch.zeros(3)}, batch_size=[3])
        >>> dense_stack_tds([td, td], dim=0).batch_size
        torch.Size([2, 3])
    """
    if isinstance(td_list, CollectionProtocol):
        try:
            stack = as_stack(td_list)
            if stack is None or not stack.tensordicts:
                return td_list if td_list._is_dense else td_list.contiguous()
            return _rust.stack(stack.tensordicts, stack.stack_dim)
        except RecursionError:
            raise
        except RuntimeError:
            # Only the members of a lazy stack can differ.
            stack_dim: int = td_list.stack_dim  # type: ignore[attr-defined]
            return dense_stack_tds(td_list.unbind(stack_dim), stack_dim)
    if dim is None:
        raise ValueError(MSG_NO_STACK_DIM)
    try:
        return stack_collections(td_list, dim, None)
    except RecursionError:
        raise
    except RuntimeError:
        ndim = len(td_list[0].batch_size)
        at = dim + ndim + 1 if dim < 0 else dim
        mixed = _stack_by_level(td_list, at)
        return classes.lazy_stack(td_list, dim) if mixed is None else mixed


def _stack_by_level(tds: Sequence[Any], dim: int) -> Any:
    """Stack densely, with lazy stacks of the nested tensordicts that differ.

    Return None if keys or shapes differ at this level.
    """
    # A view is stacked as a dense tensordict of its part.
    tds = [td._as_dense() if td._writes_through() else td for td in tds]
    first = tds[0]
    keys = first._entries().keys() if first._is_dense else None
    if keys is None or any(
        not td._is_dense or td._entries().keys() != keys for td in tds
    ):
        return None
    nested = {}
    for key, value in list(first._entries().items()):
        group = [td._get_entry(key, None) for td in tds]
        are_collections = [isinstance(item, CollectionProtocol) for item in group]
        if all(are_collections) and not value._is_non_tensor:
            if any(item.batch_size != value.batch_size for item in group):
                return None
            nested[key] = group
        elif any(are_collections) and not all(are_collections):
            return None
    try:
        result = _rust.stack([td.exclude(*nested) for td in tds], dim)
    except RecursionError:
        raise
    except RuntimeError:
        return None
    entries = {key: result._get_entry(key, None) for key in keys if key not in nested}
    for key in keys:
        entry = dense_stack_tds(nested[key], dim) if key in nested else entries[key]
        if key in entries:
            result._del_entry(key)
        result._set_entry(key, entry)
    return result


def stack_collections(tensors: Sequence[Any], dim: int = 0, out: object = None) -> Any:
    """Stack tensordicts: see :func:`stack`."""
    if not len(tensors):
        raise RuntimeError(MSG_NOTHING)
    try:
        first = tensors[0]
        if first._is_dense:
            # An attribute costs less to compile than a property.
            ndim = len(first._batch_size)
        else:
            ndim = len(first.batch_size)
            _check_members(tensors)
        at = dim + ndim + 1 if dim < 0 else dim
        if options_primitives._lazy_legacy and out is None:
            return first.lazy_stack(tensors, dim)
        if not 0 <= at <= ndim:
            # If the tensors cannot be stacked at all, raise that error first.
            _rust.stack(tensors, 0)
            raise IndexError(MSG_RANGE.format(ndim + 1, ndim, dim))
        if out is None:
            return _rust.stack(tensors, at)
    except (AttributeError, TypeError):
        _check_members(tensors)
        raise
    return _write_join(tensors, at, out, _rust.stack, torch.stack, "stacked")


def cat_collections(tensors: Sequence[Any], dim: int = 0, out: object = None) -> Any:
    """Concatenate tensordicts: see :func:`cat`."""
    if not len(tensors):
        raise RuntimeError(MSG_NOTHING)
    try:
        first = tensors[0]
        if first._is_dense:
            batch_size = first._batch_size
        else:
            batch_size = first.batch_size
            _check_members(tensors)
        ndim = len(batch_size)
        at = from_front(dim, ndim)
        if not 0 <= at < ndim:
            raise RuntimeError(MSG_CAT_DIM.format(dim, list(batch_size)))
        if out is None:
            return _rust.cat(tensors, at)
    except (AttributeError, TypeError):
        _check_members(tensors)
        raise
    return _write_join(tensors, at, out, _rust.cat, torch.cat, "cat")


def _check_no_collection(tensors: Sequence[Any], out: object) -> None:
    """Refuse a mix of tensors and tensordicts, and an empty list with ``out``."""
    if not len(tensors) and isinstance(out, CollectionProtocol):
        raise RuntimeError(MSG_NOTHING)
    if any(isinstance(item, CollectionProtocol) for item in tensors):
        _check_members(tensors)


def _check_members(tds: Sequence[Any]) -> None:
    for position, td in enumerate(tds):
        if isinstance(td, torch.Tensor):
            msg = (
                f"'{type(td).__name__}' object has no attribute 'batch_size': item "
                f"{position} is a tensor. Join tensordicts with tensordicts, and "
                "tensors with tensors."
            )
            raise AttributeError(msg)
        if not isinstance(td, CollectionProtocol):
            msg = (
                f"expected Tensor as element {position} in argument 0, but got "
                f"{type(td).__name__}"
            )
            raise TypeError(msg)


def _write_join(
    tds: Sequence[Any],
    dim: int,
    out: Any,
    build: Callable[..., Any],
    join: Callable[..., Any],
    word: str,
) -> Any:
    """Join into ``out``: write into its entries, and store missing entries."""
    # Joining the empty structures finds errors before anything is written.
    size = build([_skeleton(td) for td in tds], dim).batch_size
    if out.batch_size != size:
        raise RuntimeError(MSG_OUT_SIZE.format(word, out.batch_size, size))
    if not out._is_dense:
        return out.update(build(tds, dim), inplace=True)
    _check_entries(tds, out, dim, build, join)
    for key, value in list(tds[0]._entries().items()):
        group = [value, *(td._get_entry(key, NO_DEFAULT) for td in tds[1:])]
        target = out._get_entry(key, NO_DEFAULT)
        if _is_replaced(value) or _is_replaced(target):
            out._set_entry(key, _joined_entry(tds, key, dim, build))
        elif target is NO_DEFAULT:
            fresh = build(group, dim) if _is_nested(value) else join(group, dim)
            out.set(key, fresh)
        else:
            _write_group(target, group, dim, build, join)
    return out


def _check_entries(
    tds: Sequence[Any], out: Any, dim: int, build: Callable[..., Any], join: object
) -> None:
    """Raise a join's error if entries do not fit, before ``out`` is written."""
    if any(not td._is_dense for td in (out, *tds)):
        return
    keys = tds[0]._entries().keys()
    if any(td._entries().keys() != keys for td in tds):
        build(tds, dim)
    for key in keys:
        group = [td._get_entry(key, NO_DEFAULT) for td in tds]
        target = out._get_entry(key, NO_DEFAULT)
        if any(_is_replaced(value) for value in (target, *group)):
            continue
        nested = [_is_nested(value) for value in group]
        if all(nested) and _is_nested(target):
            _check_entries(group, target, dim, build, join)
        elif any(nested):
            build(group, dim)
        elif isinstance(target, torch.Tensor):
            _check_leaves(group, target, dim, join)


def _check_leaves(
    group: list[torch.Tensor], target: torch.Tensor, dim: int, join: Any
) -> None:
    """Raise the error that ``join`` raises for the leaves of one entry."""
    first = group[0]
    at = dim if join is torch.cat else first.dim()
    around = first.shape[:at], first.shape[at + 1 :], first.dim()
    fits = all(
        (leaf.shape[:at], leaf.shape[at + 1 :], leaf.dim()) == around
        and leaf.dtype == target.dtype
        and not leaf.requires_grad
        for leaf in group
    )
    if not fits:
        join(group, dim, out=target.new_empty(0))


def _skeleton(td: CollectionProtocol) -> Any:
    """Return the nested structure of ``td`` without leaves."""
    return td.empty(recurse=True)


def _is_nested(value: object) -> bool:
    return isinstance(value, CollectionProtocol)


def _is_replaced(value: object) -> bool:
    """Return whether an entry is replaced, since it has no rows to write into."""
    return is_shared(value) or (holds_values(value))


def _joined_entry(tds: Sequence[Any], key: str, dim: int, build: Any) -> Any:
    """Join an entry that ignores the batch size.

    The result may be a tensor of one of ``tds``, so it must not be written into.
    """
    return build([td.select(key) for td in tds], dim)._get_entry(key, None)


def _write_group(
    target: CollectionProtocol,
    group: list[Any],
    dim: int,
    build: Callable[..., Any],
    join: Callable[..., Any],
) -> None:
    if not _is_nested(target):
        join(group, dim, out=target)
        return
    if not target._is_dense:
        # A lazy stack returns copies of its entries, so write through `update`.
        target.update(build(group, dim), inplace=True)
        return
    for key, value in list(target._entries().items()):
        if _is_replaced(value):
            target._set_entry(key, _joined_entry(group, key, dim, build))
        else:
            items = [item._get_entry(key, NO_DEFAULT) for item in group]
            _write_group(value, items, dim, build, join)


def _leaves_in_order(td: CollectionProtocol, order: object) -> list[torch.Tensor]:
    if order is None:
        return _rust.walk(td, 1, True, True)
    items = dict(td.items(True, True))
    if isinstance(order, (list, tuple)):
        keys = [_rust.unravel_key(key) for key in order]
        if set(keys) != set(items) or len(keys) != len(items):
            raise RuntimeError(MSG_SORTED)
    elif order:
        keys = sorted(items, key=lambda key: (key,) if isinstance(key, str) else key)
    else:
        keys = list(items)
    return [items[key] for key in keys]
