"""Calls of a function on every leaf, optionally with keys and other tensordicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tensordict.primitives.common import NO_TAIL
from tensordict.primitives.errors import missing_key
from tensordict.primitives.leaf_loops import all_begin_with, on_plain, special_keys
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.set import validate
from tensordict.primitives.special import resized
from tensordict.primitives.tree import new

if TYPE_CHECKING:
    from collections.abc import Callable


def apply_nest(
    td: CollectionProtocol,
    fn: Callable[..., Any],
    others: tuple[Any, ...] = (),
    batch_size: torch.Size | None = None,
    device: torch.device | str | int | None = NO_DEFAULT,
    names: Any = NO_DEFAULT,
    default: object = NO_DEFAULT,
    named: bool = False,
    nested_keys: bool = False,
    filter_empty: bool | None = None,
    is_leaf: Callable[[Any], bool] | None = None,
    checked: bool = False,
    prefix: tuple[str, ...] = (),
    on_unbatched: bool = False,
) -> Any:
    """Return a tensordict of the results of ``fn``, or None if nothing is left.

    ``fn`` is called with the leaf and the entries of ``others`` under the same key. A
    missing entry is replaced by ``default``; without a default it is an error. With
    ``named``, the key comes first: its last part, or the whole with ``nested_keys``. If
    ``fn`` returns None, the key is left out. Any other result is validated, unless
    ``checked``.

    ``is_leaf`` is called with the type of each value; if it is True, every direct entry
    is a leaf. The result has ``batch_size`` (also in nested tensordicts, and then no
    names) or the sizes of ``td``, and ``device`` and ``names`` if they are passed.

    If ``batch_size`` is passed, a leaf that ignores the batch size takes it, and ``fn``
    is not called with it unless ``on_unbatched``.

    A tensordict without any results is left out: with ``filter_empty=True`` always,
    with None unless it is empty in ``td`` too, with False never.
    """
    if (
        batch_size is not None
        or is_leaf is not None
        or others
        or named
        or device is not NO_DEFAULT
        or names is not NO_DEFAULT
        or not td._is_dense
    ):
        return _apply_any(
            td, fn, others, batch_size, device, names, default, named, nested_keys,
            filter_empty, is_leaf, checked, prefix, on_unbatched,
        )  # fmt: skip
    # The usual case: a call of the function on the leaves, without other options.
    size, names, is_bound = td._batch_size, td._td_dim_names, td._device is not None
    entries: dict[str, Any] = {}
    result = new(
        td.__class__, entries, size, td._device, None if names is None else list(names)
    )
    held = td._tensordict.copy()
    special = special_keys(held, True)
    # Calls follow the order of keys: take all plain leaves at once only if they come
    # first.
    plain = held.copy() if [*held][len(held) - len(special) :] == special else {}
    for key in special if plain else ():
        del plain[key]
    results, unasked = on_plain(plain, fn, (), NO_TAIL, 0)
    rest = [*held]
    if not checked and not is_bound and not unasked and all_begin_with(results, size):
        entries.update(results)
        rest = special if plain else rest
    for key in rest:
        value = held[key]
        if key in special and isinstance(value, CollectionProtocol):
            item = apply_nest(
                value, fn, (), None, NO_DEFAULT, NO_DEFAULT, default, False,
                nested_keys, filter_empty, None, checked, (*prefix, key), on_unbatched,
            )  # fmt: skip
            is_sure = checked or item is None or _fits(result, value, item)
        else:
            is_called = key in results and key not in unasked
            item = results[key] if is_called else fn(value)
            is_sure = checked
        if item is None:
            continue
        if not is_sure:
            item = validate(result, key, item)
            if isinstance(item, CollectionProtocol):
                result._hang(key, item)
                continue
        entries[key] = item
    return result if entries or _keeps_empty(td, filter_empty) else None


def _apply_any(
    td: Any,
    fn: Callable[..., Any],
    others: tuple[Any, ...],
    batch_size: torch.Size | None,
    device: Any,
    names: Any,
    default: object,
    named: bool,
    nested_keys: bool,
    filter_empty: bool | None,
    is_leaf: Any,
    checked: bool,
    prefix: tuple[str, ...],
    on_unbatched: bool,
) -> Any:
    """Do :func:`apply_nest` on any class of tensordict, with any arguments."""
    if not td._is_dense:
        return td._apply_nest(
            fn, *others, batch_size=batch_size, device=device, names=names,
            default=default, named=named, nested_keys=nested_keys,
            filter_empty=filter_empty, is_leaf=is_leaf, checked=checked, prefix=prefix,
            call_on_unbatched=on_unbatched,
        )  # fmt: skip
    if names is NO_DEFAULT:
        names = td._td_dim_names if batch_size is None else None
    result = new(
        type(td),
        {},
        td._batch_size if batch_size is None else batch_size,
        td._device if device is NO_DEFAULT else device,
        None if names is None else list(names),
    )
    entries, size = result._tensordict, result._batch_size
    keeps_shared = batch_size is not None and not on_unbatched
    # In the simplest case, nothing is checked before the call, and only the leaf is
    # passed.
    is_bare = is_leaf is None and len(others) == 0 and not named and not keeps_shared
    ndim, is_free, plain = len(size), result._device is None, torch.Tensor
    for key, value in list(td._tensordict.items()):
        if is_leaf is None:
            leaf = not isinstance(value, CollectionProtocol)
        else:
            leaf = is_leaf is True or is_leaf(type(value))
        values = [_other_entry(other, key, default) for other in others]
        if leaf:
            if is_bare:
                item = fn(value)
            elif keeps_shared and (kept := resized(value, size)) is not None:
                entries[key] = kept
                continue
            elif named:
                name = (*prefix, key) if nested_keys and prefix else key
                item = fn(name, value, *_defaulted(values, default))
            else:
                item = fn(value, *_defaulted(values, default))
            if item is None:
                continue
            # Fast path for plain tensors; `validate` handles all other results.
            if not checked and not (
                is_free
                and type(item) is plain
                and (not ndim or (not item.is_nested and item.shape[:ndim] == size))
            ):
                item = validate(result, key, item)
                if isinstance(item, CollectionProtocol):
                    result._hang(key, item)
                    continue
        else:
            item = _apply_below(
                value, fn, values, batch_size, device, default, named, nested_keys,
                filter_empty, is_leaf, checked, (*prefix, key), on_unbatched,
            )  # fmt: skip
            if item is None:
                continue
            if not checked and not _fits(result, value, item):
                result._hang(key, validate(result, key, item))
                continue
        entries[key] = item
    return result if entries or _keeps_empty(td, filter_empty) else None


def _keeps_empty(td: CollectionProtocol, filter_empty: bool | None) -> bool:
    """Return whether a result without entries is kept for ``td``."""
    return filter_empty is False or (filter_empty is None and td.is_empty())


def _defaulted(values: list[Any], default: object) -> list[Any]:
    return [default if value is NO_DEFAULT else value for value in values]


def _other_entry(other: Any, key: str, default: object) -> Any:
    """Return the entry of another tensordict; NO_DEFAULT stands for the default."""
    if other is NO_DEFAULT:
        return NO_DEFAULT
    value = other._get_entry(key, NO_DEFAULT)
    if value is NO_DEFAULT and default is NO_DEFAULT:
        raise missing_key(other, key)
    return value


def _apply_below(
    value: Any,
    fn: Callable[..., Any],
    others: list[Any],
    batch_size: Any,
    device: torch.device | str | int | None,
    default: object,
    named: bool,
    nested_keys: bool,
    filter_empty: Any,
    is_leaf: Callable[[Any], bool] | None,
    checked: bool,
    prefix: tuple[str, ...],
    on_unbatched: bool,
) -> Any:
    """Do :func:`apply_nest` on a nested tensordict."""
    if isinstance(value, CollectionProtocol) and value._is_dense:
        return apply_nest(
            value,
            fn,
            tuple(others),
            batch_size,
            device,
            NO_DEFAULT,
            default,
            named,
            nested_keys,
            filter_empty,
            is_leaf,
            checked,
            prefix,
            on_unbatched,
        )
    # If ``is_leaf`` refuses a tensor, this raises an AttributeError of the tensor.
    return value._apply_nest(
        fn,
        *others,
        batch_size=batch_size,
        device=device,
        default=default,
        named=named,
        nested_keys=nested_keys,
        filter_empty=filter_empty,
        is_leaf=is_leaf,
        checked=checked,
        prefix=prefix,
        call_on_unbatched=on_unbatched,
    )


def _fits(parent: Any, source: CollectionProtocol, item: Any) -> bool:
    """Return whether a nested result needs no check: made by the walk, no names."""
    return (
        source._is_dense
        and item._is_dense
        and parent._td_dim_names is None
        and item._td_dim_names is None
        and (parent._device is None or parent._device == item._device)
    )
