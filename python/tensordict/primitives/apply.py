"""Call a function on every leaf, with its key and those of other collections if asked."""

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
    """A collection of what ``fn`` gives for each leaf, or None where nothing is left.

    ``fn`` is called with the leaf and the entries of ``others`` under the same key (a
    missing one is ``default``; an error without). With ``named`` the key comes first:
    the last part of it, or with ``nested_keys`` all of it. None as its result leaves
    the key out. Any other result is validated, unless ``checked``.

    ``is_leaf`` is asked about the type of each value; True takes every direct entry
    as a leaf. The result has ``batch_size`` (nested tensordicts too, and then no names)
    or the sizes of ``td``, and ``device`` and ``names`` where they are given.

    Where there is a ``batch_size`` a leaf that is held whole takes it, and ``fn`` is not
    called with it unless ``on_unbatched``.

    A collection without any results is left out: with ``filter_empty`` true always,
    with None unless it is empty in ``td`` too, with false never.
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
    # The usual case: nothing but the function is asked of the leaves.
    size, names, is_bound = td._batch_size, td._td_dim_names, td._device is not None
    entries: dict[str, Any] = {}
    result = new(
        td.__class__, entries, size, td._device, None if names is None else list(names)
    )
    held = td._tensordict.copy()
    special = special_keys(held, True)
    # The calls are in the order of the keys: all plain leaves come first, or none.
    plain = held.copy() if [*held][len(held) - len(special) :] == special else {}
    for key in special if plain else ():
        del plain[key]
    found, unasked = on_plain(plain, fn, (), NO_TAIL, 0)
    rest = [*held]
    if not checked and not is_bound and not unasked and all_begin_with(found, size):
        entries.update(found)
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
            is_called = key in found and key not in unasked
            item = found[key] if is_called else fn(value)
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
    """:func:`apply_nest` of any collection, with any arguments."""
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
    # Nothing but the leaf is looked at before the call, and nothing else is passed.
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
            # Plain tensors are looked at here, everything else there.
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
    """Return whether a result without entries is one, where ``td`` was walked."""
    return filter_empty is False or (filter_empty is None and td.is_empty())


def _defaulted(values: list[Any], default: object) -> list[Any]:
    return [default if value is NO_DEFAULT else value for value in values]


def _other_entry(other: Any, key: str, default: object) -> Any:
    """The entry of a further collection; NO_DEFAULT stands for the default."""
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
    """:func:`apply_nest` of a nested tensordict."""
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
    # An ``is_leaf`` that refuses tensors meets the AttributeError of a tensor here.
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
    """Return whether a nested result needs no check: made by the walk, without names."""
    return (
        source._is_dense
        and item._is_dense
        and parent._td_dim_names is None
        and item._td_dim_names is None
        and (parent._device is None or parent._device == item._device)
    )
