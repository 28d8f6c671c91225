"""The dense collection: entries in a plain dictionary."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import torch
from torch import Tensor

from tensordict import _rust
from tensordict.containers.collection import TensorDictBase
from tensordict.ops.key_views import listed_items, listed_keys, listed_values
from tensordict.ops.torch_dispatch import TorchDispatchOps
from tensordict.primitives import classes
from tensordict.primitives.common import as_size
from tensordict.primitives.options import CHECK_INVARIANTS
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, ItemsView, KeysView, Mapping, Sequence

    from tensordict.ops.comparison import Equality, Order

__all__ = ["TensorDict"]

MSG_INVARIANT = (
    "The entry {!r} has shape {}, which does not start with the batch size {}."
)
MSG_TWO_SOURCES = (
    "Either a dictionary or a sequence of kwargs must be provided, not both."
)


@classes.provided
class TensorDict(TensorDictBase):
    """A batch of named tensors and nested collections, held in a dictionary.

    Args:
        source: the entries: a mapping from keys (nested keys too) to tensors, arrays,
            numbers, mappings and collections, or another collection.
        batch_size: the leading dims ``[*B]`` that all entries share. Default: ``[]``,
            even if ``source`` is a collection with a batch size.
        device: the device to which all entries are moved. Default: entries are not
            moved.
        names: a name or None for each batch dim.
        non_blocking: whether entries are moved to ``device`` asynchronously.
        lock: whether the new collection is locked.
        **kwargs: entries, in place of ``source``.

    Raises:
        ValueError: ``source`` is no mapping, or both ``source`` and entries are given.
        RuntimeError: an entry does not have the batch size as its leading dims.

    Examples:
        >>> td = TensorDict({"a": torch.zeros(3, 4), "n": {"b": torch.ones(3)}}, [3])
        >>> td["n", "b"]
        tensor([1., 1., 1.])
        >>> td[0].batch_size
        torch.Size([])
    """

    _is_dense: ClassVar[bool] = True

    if TYPE_CHECKING:
        # Comparisons of a subclass also return plain tensordicts.
        __hash__: ClassVar[Any]
        __eq__: Equality[TensorDict]
        __ne__: Equality[TensorDict]
        __lt__: Order[TensorDict]
        __le__: Order[TensorDict]
        __gt__: Order[TensorDict]
        __ge__: Order[TensorDict]

    def __init__(
        self,
        source: Mapping[Any, Any] | CollectionProtocol | None = None,
        batch_size: Sequence[int] | torch.Size | int | None = None,
        device: torch.device | str | int | None = None,
        names: Sequence[str | None] | None = None,
        non_blocking: bool | None = None,
        lock: bool = False,
        **kwargs: object,
    ) -> None:
        if source is None:
            source = kwargs
        elif kwargs:
            raise ValueError(MSG_TWO_SOURCES)
        _rust.init(self, source, batch_size, device, names, bool(non_blocking))
        if lock:
            self.lock_()

    @classmethod
    def _new_unsafe(
        cls,
        source: Mapping[str, Any] | None = None,
        batch_size: Sequence[int] | torch.Size | int | None = None,
        device: torch.device | str | int | None = None,
        names: Sequence[str | None] | None = None,
        non_blocking: bool | None = None,
        lock: bool = False,
        nested: bool = True,
        is_shared: bool = False,
        is_memmap: bool = False,
        **kwargs: object,
    ) -> Self:
        """Make a collection from entries that are known to fit, without checks."""
        entries = dict(source if source is not None else kwargs)
        size = as_size(batch_size)
        device = None if device is None else torch.device(device)
        td = _rust.new(cls, entries, size, device, None)
        if names is not None:
            td._td_dim_names = list(names)
        if CHECK_INVARIANTS:
            _check_invariants(td)
        if nested:
            for key, value in entries.items():
                if isinstance(value, dict):
                    entries[key] = TensorDict._new_unsafe(value, size, device)
        if is_shared:
            td._is_shared = True
        if is_memmap:
            td._is_memmap = True
        if lock:
            td.lock_()
        return td

    # Reading: straight from the dictionary of entries ---------------------------------

    @overload
    def keys(self) -> KeysView[str]: ...
    @overload
    def keys(
        self,
        include_nested: bool = ...,
        leaves_only: bool = ...,
        is_leaf: Callable[[type], bool] | None = ...,
        *,
        sort: bool = ...,
    ) -> Any: ...
    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Return a view of the keys. See :meth:`TensorDictBase.keys`."""
        if include_nested or leaves_only or sort or is_leaf is not None:
            return listed_keys(self, include_nested, leaves_only, is_leaf, sort)
        return _rust.string_keys(self._tensordict)

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Return the values. See :meth:`TensorDictBase.values`."""
        if include_nested or leaves_only or sort:
            return listed_values(self, include_nested, leaves_only, is_leaf, sort)
        return self._tensordict.values()

    @overload
    def items(self) -> ItemsView[str, Any]: ...
    @overload
    def items(
        self,
        include_nested: bool = ...,
        leaves_only: bool = ...,
        is_leaf: Callable[[type], bool] | None = ...,
        *,
        sort: bool = ...,
    ) -> Any: ...
    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Return the pairs of key and value. See :meth:`TensorDictBase.items`."""
        if include_nested or leaves_only or sort:
            return listed_items(self, include_nested, leaves_only, is_leaf, sort)
        return self._tensordict.items()

    def is_consolidated(self) -> bool:
        """Return whether all leaves are in the buffer that :meth:`consolidate` made."""
        return self._consolidated is not None and super().is_consolidated()

    def _get_str(self, key: str, default: object = NO_DEFAULT, **kwargs: object) -> Any:
        try:
            return self._tensordict[key]
        except KeyError:
            pass
        return _rust.get(self, key, default)

    def _set_str(
        self,
        key: str,
        value: object,
        *,
        inplace: bool | None,
        validated: bool,
        ignore_lock: bool = False,
        non_blocking: bool = False,
    ) -> Self:
        if (
            validated
            and inplace is False
            and type(value) is Tensor
            and (ignore_lock or not self._is_locked)
        ):
            self._tensordict[key] = value
            return self
        return super()._set_str(
            key,
            value,
            inplace=inplace,
            validated=validated,
            ignore_lock=ignore_lock,
            non_blocking=non_blocking,
        )

    # The protocol ----------------------------------------------------------------

    def _entries(self) -> dict[str, Any]:
        return self._tensordict

    def _get_entry(self, key: str, default: object) -> Any:
        return self._tensordict.get(key, default)

    def _set_entry(self, key: str, value: object) -> None:
        self._tensordict[key] = value

    def _del_entry(self, key: str) -> None:
        del self._tensordict[key]


def _check_invariants(td: TensorDict) -> None:
    """Check the shapes and dim names of a collection that was made without checks.

    Raises:
        AssertionError: the shape of an entry does not begin with the batch size, or the
            number of dim names is not the number of batch dims.
    """
    size = td._batch_size
    for key, value in td._tensordict.items():
        shape = getattr(value, "shape", size)
        if shape[: len(size)] != size:
            raise AssertionError(MSG_INVARIANT.format(key, shape, size))
    names = td._td_dim_names
    if names is not None and len(names) != len(size):
        msg = f"The dim names {names} do not match the batch size {size}."
        raise AssertionError(msg)


# Torch looks this attribute up twice or more in each call, by a new string each time,
# which Python's attribute cache misses. Set on the first class of some forty, and bound
# already, the lookup is short.
_answer: Any = TorchDispatchOps.__dict__["__torch_function__"].__func__
TensorDict.__torch_function__ = MethodType(_answer, TensorDict)  # type: ignore[method-assign]

for _name in ("keys", "values", "items"):
    # `help` shows the docstring of the base class, with the arguments and examples.
    vars(TensorDict)[_name].__doc__ = getattr(TensorDictBase, _name).__doc__

TensorDict.__module__ = "tensordict._td"
CollectionProtocol._plain_type = TensorDict
