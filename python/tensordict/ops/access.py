"""Reading and writing entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from tensordict import _rust
from tensordict.interop.access_twins import _missing
from tensordict.interop.convert import tensor_of, tensor_of_sequence
from tensordict.interop.key_twins import MSG_INPLACE, MSG_NO_KEYS, MSG_PRESENT
from tensordict.interop.twins import MSG_BAD_KEY, MSG_LOCKED, _InplaceWriteError
from tensordict.protocol import NO_DEFAULT, NONE_IF_MISSING, CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.protocol import NestedKeyLike

__all__ = ["AccessOps"]

MSG_NO_KEY = "key must be a NestedKey (a str or a possibly tuple of str)."
MSG_ITERATION = (
    "iteration over a 0-d tensordict. Use keys(), values() or items() to iterate over "
    "its entries."
)
MSG_ONE_DEFAULT = "Only one arg is allowed in TD.get."
MSG_NO_INDEX = "index argument missing from get_at"
MSG_KEY_LIST = "Expected a list or a tuple of keys, got {}."
MSG_INSIDE_ITSELF = (
    "Cannot set a tensordict inside itself (key {!r}): tensordicts that contain "
    "themselves are not supported."
)
MSG_BATCH_SIZE_KEYS = (
    "Some keys of the dest tensordict are not present in the source during update with "
    "mismatching batch-size. batch_size of source={}, batch_size of dest={}, keys in "
    "dest but not in source: {{{}}}."
)
MSG_NAMES = "refine_names: cannot coerce TensorDict names {} with {}."
MSG_FAST_COPY = (
    "copy_at_(..., fast=True) requires the optimized tensor-only copy path, but the "
    "source, destination, or index is not compatible. Use fast=False or update_at_ for "
    "the general update semantics."
)
MSG_NO_NON_TENSOR = (
    "Cannot store a {} under key {!r}: only tensors, arrays, numbers, mappings and "
    "collections can be entries."
)


DEFAULT_OF_GET: Any = NONE_IF_MISSING
"""What ``get`` uses without a default; ``set_get_defaults_to_none`` exchanges it."""


class AccessOps(CollectionProtocol):
    """Reading and writing entries."""

    # Reading -------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """The entry at a nested key, or the container of the entries indexed.

        Args:
            index: a string or a tuple of strings, possibly nested; or an index of the
                batch dims ``[*B]``, as for :class:`torch.Tensor`.

        Raises:
            KeyError: there is no entry at that key.
            ValueError: the key goes on below a leaf.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 4), "n": {"b": torch.ones(3)}}, [3])
            >>> td["n", "b"]
            tensor([1., 1., 1.])
            >>> td[0]["a"].shape
            torch.Size([4])
        """
        return _rust.getitem(self, index)

    def __contains__(self, key: Any) -> bool:
        """Whether there is an entry at a nested key.

        Examples:
            >>> td = TensorDict({"n": {"b": torch.ones(3)}}, [3])
            >>> ("n", "b") in td, "b" in td
            (True, False)
        """
        try:
            return _rust.contains(self, key)
        except TypeError:
            raise RuntimeError(MSG_NO_KEY) from None

    def __len__(self) -> int:
        """The first dim of the batch size; 0 where there is none."""
        batch_size = self.batch_size
        return batch_size[0] if batch_size else 0

    def __iter__(self) -> Iterator[Any]:
        """The containers along the first batch dim.

        Raises:
            TypeError: there is no batch dim.
        """
        if not self.batch_size:
            raise TypeError(MSG_ITERATION)
        return iter(self.unbind(0))

    def is_empty(self) -> bool:
        """Whether there is no leaf, here or in what is nested.

        Examples:
            >>> TensorDict({"n": {}}).is_empty()
            True
        """
        values = self._entries().values()
        for value in values:
            if not isinstance(value, CollectionProtocol):
                return False
        return all(not value._is_non_tensor and value.is_empty() for value in [*values])

    def get(self, key: NestedKeyLike, *args: Any, **kwargs: Any) -> Any:
        """The entry at a nested key, or ``default`` where there is none.

        Args:
            key: a string or a tuple of strings, possibly nested.
            *args: ``default``, by position. Without it a missing entry is None.
            **kwargs: ``default``, by name.

        Raises:
            KeyError: ``key`` is no nested key.
            ValueError: the key goes on below a leaf, and there is no default.

        Examples:
            >>> td = TensorDict({"n": {"b": torch.ones(3)}}, [3])
            >>> td.get(("n", "b"))
            tensor([1., 1., 1.])
            >>> td.get("missing") is None
            True
            >>> td.get("missing", 0)
            0
        """
        if args:
            if len(args) > 1:
                raise TypeError(MSG_ONE_DEFAULT)
            return _rust.get(self, key, args[0])
        if kwargs:
            return _rust.get(self, key, kwargs.get("default", DEFAULT_OF_GET))
        return _rust.get(self, key, DEFAULT_OF_GET)

    def _get_str(self, key: str, default: Any = NO_DEFAULT, **kwargs: Any) -> Any:
        return _rust.get(self, key, default)

    def _get_tuple(
        self, key: tuple[str, ...], default: Any = NO_DEFAULT, **kwargs: Any
    ) -> Any:
        return _rust.get(self, key, default)

    def get_non_tensor(self, key: NestedKeyLike, default: Any = NO_DEFAULT) -> Any:
        """The entry at a nested key; of a non-tensor entry the value that it holds."""
        if not _rust.unravel_key_to_tuple(key):
            raise RuntimeError(MSG_NO_KEYS)
        return _rust.get(self, key, default)

    def set_non_tensor(self, key: NestedKeyLike, value: Any) -> Self:
        """Store a value of any type, which no operation looks into."""
        if self.is_locked:
            raise RuntimeError(MSG_LOCKED)
        raise TypeError(MSG_NO_NON_TENSOR.format(type(value).__name__, key))

    def get_at(self, key: NestedKeyLike, *args: Any, **kwargs: Any) -> Any:
        """``self.get(key)[index]``, or ``default`` where there is no entry at ``key``.

        Args:
            key: a nested key.
            *args: the index, then ``default``. Without it a missing entry is None.
            **kwargs: ``index`` and ``default``, by name.

        Raises:
            TypeError: there is no index.

        Examples:
            >>> td = TensorDict({"a": torch.arange(3)}, [3])
            >>> td.get_at("a", 1)
            tensor(1)
        """
        if args:
            index, rest = args[0], args[1:]
        elif "index" in kwargs:
            index, rest = kwargs.pop("index"), ()
        else:
            raise TypeError(MSG_NO_INDEX)
        default = rest[0] if rest else kwargs.get("default", NO_DEFAULT)
        value = self.get(key) if default is NO_DEFAULT else self.get(key, default)
        if value is None or value is default:
            return value
        return value[index]

    # Writing -------------------------------------------------------------------

    def __setitem__(self, index: Any, value: Any) -> None:
        """Store a value at a nested key, or write into the entries at an index.

        ``td["n"] = {...}`` replaces what is at ``"n"``; :meth:`update` merges.

        Raises:
            RuntimeError: the value does not have the batch size as its leading dims, or
                the container is locked.

        Examples:
            >>> td = TensorDict(batch_size=[3])
            >>> td["n", "b"] = torch.ones(3)
            >>> td[1] = TensorDict({"n": {"b": torch.zeros(())}})
            >>> td["n", "b"]
            tensor([1., 0., 1.])
        """
        if isinstance(index, str) or (
            isinstance(index, tuple) and _rust.unravel_key_to_tuple(index)
        ):
            _rust.set_entry(self, index, value)
        else:
            self._set_index(index, value)

    def set(
        self,
        key: NestedKeyLike,
        item: Any,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Store ``item`` under a nested key, making the containers on the way.

        Tensors, and containers whose batch size, device and names fit, are stored as
        they are; others as new containers that share what they can. Numbers, arrays and
        sequences become tensors, dictionaries containers.

        Args:
            key: where to store it.
            item: of shape ``[*B, *F]``, where ``[*B]`` is the batch size.
            inplace: write into the entry where there is one.
            non_blocking: how ``item`` is moved to the device of the container.
            **kwargs: for other containers.

        Raises:
            KeyError: ``key`` is no nested key, or goes on below a leaf.
            RuntimeError: ``item`` does not have the batch size as its leading dims, or
                the container is locked (unless the entry is written in place).
            ValueError: ``item`` holds the container that it is set in, or
                with ``inplace`` does not fit the entry.

        Examples:
            >>> td = TensorDict(batch_size=[3])
            >>> td.set("a", torch.zeros(3, 4)).set(("n", "b"), torch.ones(3)).keys(True)
            _TensorDictKeysView(['a', ('n', 'b'), 'n'],
                include_nested=True,
                leaves_only=False)
        """
        _rust.set_entry(self, key, item, inplace, non_blocking)
        return self

    def set_(
        self, key: NestedKeyLike, item: Any, *, non_blocking: bool = False
    ) -> Self:
        """Write ``item`` into the storage of the entry at a nested key.

        Locked containers allow it.

        Raises:
            KeyError: there is no such entry.
            ValueError: ``item`` does not fit the entry.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3]).lock_()
            >>> td.set_("a", torch.ones(3))["a"]
            tensor([1., 1., 1.])
        """
        # Usually a tensor is written over one of its shape: nothing to check or convert.
        parent: Any = self
        name: Any = key
        if isinstance(key, tuple) and len(key) == 2 and self._is_dense:
            parent, name = self._tensordict.get(key[0]), key[1]
        if isinstance(name, str) and getattr(parent, "_is_dense", False):
            present = parent._tensordict.get(name)
            if (
                isinstance(present, torch.Tensor)
                and isinstance(item, torch.Tensor)
                and present.shape == item.shape
            ):
                present.copy_(item, non_blocking=non_blocking)
                return self
        _rust.set_entry(self, key, item, None, non_blocking)
        return self

    def _set_str(
        self,
        key: str,
        value: Any,
        *,
        inplace: bool | None,
        validated: bool,
        ignore_lock: bool = False,
        non_blocking: bool = False,
    ) -> Self:
        # Here in place means that there must be an entry.
        inplace = None if inplace is True else bool(inplace)
        _rust.set_entry(self, key, value, inplace, non_blocking, validated, ignore_lock)
        return self

    def _set_tuple(
        self,
        key: tuple[str, ...],
        value: Any,
        *,
        inplace: bool | None,
        validated: bool,
        ignore_lock: bool = False,
        non_blocking: bool = False,
    ) -> Self:
        return self._set_str(
            key,  # type: ignore[arg-type]
            value,
            inplace=inplace,
            validated=validated,
            ignore_lock=ignore_lock,
            non_blocking=non_blocking,
        )

    def setdefault(
        self, key: NestedKeyLike, default: Any, inplace: bool = False
    ) -> Any:
        """The entry at a nested key, which is set to ``default`` where there is none.

        Examples:
            >>> td = TensorDict(batch_size=[3])
            >>> td.setdefault("a", torch.zeros(3))
            tensor([0., 0., 0.])
            >>> td.setdefault("a", torch.ones(3))
            tensor([0., 0., 0.])
        """
        if not _rust.unravel_key_to_tuple(key):
            raise KeyError(MSG_BAD_KEY.format(key))
        if not _rust.contains(self, key):
            _rust.set_entry(self, key, default, inplace)
        return self.get(key)

    # Removing ------------------------------------------------------------------

    def __delitem__(self, key: NestedKeyLike) -> None:
        """Remove the entry at a nested key. See :meth:`del_`."""
        self.del_(key)

    def del_(self, key: NestedKeyLike) -> Self:
        """Remove the entry at a nested key.

        Raises:
            KeyError: there is no such entry.
            RuntimeError: the container that holds it is locked.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3), "b": torch.ones(3)}, [3])
            >>> list(td.del_("a").keys())
            ['b']
        """
        if self.is_locked:
            raise RuntimeError(MSG_LOCKED)
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            raise KeyError(MSG_BAD_KEY.format(key))
        parent = self if len(path) == 1 else _rust.get(self, path[:-1])
        if not isinstance(parent, CollectionProtocol):
            _rust.get(self, path)
        if parent.is_locked:
            raise RuntimeError(MSG_LOCKED)
        if parent._get_entry(path[-1], NO_DEFAULT) is NO_DEFAULT:
            raise KeyError(path[-1])
        parent._del_entry(path[-1])
        return self

    def pop(self, key: NestedKeyLike, default: Any = NO_DEFAULT) -> Any:
        """Remove the entry at a nested key and return it.

        Args:
            key: the entry.
            default: what to return where there is none.

        Raises:
            KeyError: there is no such entry and no default.
            RuntimeError: the container that holds it is locked.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3])
            >>> td.pop("a")
            tensor([0., 0., 0.])
            >>> td.pop("a", None) is None
            True
        """
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            raise KeyError(MSG_BAD_KEY.format(key))
        value = _rust.get(self, path, NONE_IF_MISSING if default is NO_DEFAULT else ...)
        if value is ...:
            return default
        if value is None:
            name = path[0] if len(path) == 1 else path
            raise _absent(self, name)
        value = _kept(self, value)
        self.del_(path)
        return value

    def popitem(self) -> tuple[NestedKeyLike, Any]:
        """Remove the last entry and return its key and value.

        Raises:
            KeyError: there is none.
        """
        if self.is_locked:
            raise RuntimeError(MSG_LOCKED)
        entries = self._entries()
        if not entries:
            msg = "popitem(): dictionary is empty"
            raise KeyError(msg)
        key = next(reversed(entries))
        value = _kept(self, entries[key])
        self._del_entry(key)
        return key, value

    def clear(self) -> Self:
        """Remove all entries.

        Raises:
            RuntimeError: the container is locked.
        """
        if self.is_locked:
            raise RuntimeError(MSG_LOCKED)
        for key in list(self._entries()):
            self._del_entry(key)
        return self

    # Many at once ----------------------------------------------------------------

    def update(
        self,
        input_dict_or_td: Mapping[Any, Any] | CollectionProtocol | None = None,
        clone: bool = False,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[NestedKeyLike] | None = None,
        is_leaf: Any = None,
        update_batch_size: bool = False,
        ignore_lock: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Merge the entries of another container or mapping into this one.

        Nested containers are merged, everything else is replaced. All entries are
        stored, or where one does not fit none.

        Args:
            input_dict_or_td: the entries, in which keys may be nested.
            clone: store copies.
            inplace: write into the entries that there are.
            non_blocking: how entries are moved to the device of this container.
            keys_to_update: take only these. A key of a container takes all in it.
            is_leaf: which types of nested containers replace what is there.
            update_batch_size: take the batch size of the other container, which must
                then have all leaves of this one.
            ignore_lock: write to a locked container, too.
            **kwargs: more entries.

        Raises:
            RuntimeError: a value does not have the batch size as its leading dims, the
                batch sizes differ, or the container is locked.

        Examples:
            >>> td = TensorDict({"n": {"a": torch.zeros(3)}}, [3])
            >>> td.update({"n": {"b": torch.ones(3)}}, c=torch.ones(3))["n"].keys()
            _StringKeys(dict_keys(['a', 'b']))
        """
        if self.is_locked and not inplace and not ignore_lock:
            raise RuntimeError(MSG_LOCKED)
        source: Any = kwargs
        if input_dict_or_td is not None:
            if input_dict_or_td is self:
                return self
            source = input_dict_or_td
            if kwargs:
                source = {**dict(source.items()), **kwargs}
        if keys_to_update is not None:
            source = _restricted(source, _paths(keys_to_update))
        if not update_batch_size or not isinstance(source, CollectionProtocol):
            _rust.update(
                self, source, clone, inplace, non_blocking, is_leaf, ignore_lock
            )
            return self
        held = [
            (container, dict(container._entries()), container.batch_size)
            for container in _rust.containers(self)
        ]
        try:
            _take_batch_sizes(self, source)
            _rust.update(
                self, source, clone, inplace, non_blocking, is_leaf, ignore_lock
            )
        except BaseException:
            for container, entries, batch_size in held:
                container._batch_size = batch_size
                for key in list(container._entries()):
                    container._del_entry(key)
                for key, value in entries.items():
                    container._set_entry(key, value)
            raise
        return self

    def update_(
        self,
        input_dict_or_td: Mapping[Any, Any] | CollectionProtocol | None = None,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[NestedKeyLike] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Copy the values of another container or mapping into the entries of this one.

        Values broadcast to the shape of the entry. Those that have no entry here are
        left out, unless that is all of them. Nothing is copied where one does not fit.

        Args:
            input_dict_or_td: the values, in which keys may be nested.
            clone: has no effect, since values are copied.
            non_blocking: whether copies between devices may be asynchronous.
            keys_to_update: copy only these. A key of a container copies all in it.
            **kwargs: more values.

        Raises:
            KeyError: there is an entry for none of the values.
            RuntimeError: a value does not fit its entry.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3]).lock_()
            >>> td.update_({"a": torch.ones(3)})["a"]
            tensor([1., 1., 1.])
        """
        source = kwargs if input_dict_or_td is None else input_dict_or_td
        if source is self:
            return self
        if kwargs and source is not kwargs:
            source = {**dict(source.items()), **kwargs}
        keys = None
        if keys_to_update is not None:
            keys = _paths(keys_to_update)
        _rust.copy_into(self, source, keys, non_blocking)
        return self

    def copy_(self, tensordict: CollectionProtocol, non_blocking: bool = False) -> Self:
        """Copy the values of another container into the entries of this one.

        As :meth:`update_`.
        """
        return self.update_(tensordict, non_blocking=non_blocking)

    # At an index -----------------------------------------------------------------

    def set_at_(
        self,
        key: NestedKeyLike,
        value: Any,
        index: Any,
        *,
        non_blocking: bool = False,
    ) -> Self:
        """Write ``value`` into the entry at a nested key, where ``index`` points.

        Raises:
            KeyError: there is no such entry.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3])
            >>> td.set_at_("a", 1.0, slice(1, None))["a"]
            tensor([0., 1., 1.])
        """
        path = _rust.unravel_key_to_tuple(key)
        target = _rust.get(self, path or key)
        if isinstance(target, CollectionProtocol):
            if isinstance(value, dict):
                value = _rust.validate(self, key, value)
            target[index] = value
            return self
        if not isinstance(value, (torch.Tensor, bool, int, float, complex)):
            value = tensor_of(value, target.device)
        if isinstance(value, torch.Tensor):
            value = value.to(target.dtype)
        target[index] = value
        parent: Any = self if len(path) == 1 else _rust.get(self, path[:-1])
        if parent._writes_through():
            # What it gives may be a copy.
            parent._set_entry(path[-1], target)
        return self

    def _set_at_str(
        self, key: str, value: Any, idx: Any, *, validated: bool, non_blocking: bool
    ) -> Self:
        return self.set_at_(key, value, idx, non_blocking=non_blocking)

    def _set_at_tuple(
        self,
        key: tuple[str, ...],
        value: Any,
        idx: Any,
        *,
        validated: bool,
        non_blocking: bool,
    ) -> Self:
        return self.set_at_(key, value, idx, non_blocking=non_blocking)

    def update_at_(
        self,
        input_dict_or_td: Mapping[Any, Any] | CollectionProtocol,
        idx: Any,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[NestedKeyLike] | None = None,
    ) -> Self:
        """Write the values of another container or mapping where ``idx`` points.

        Args:
            input_dict_or_td: the values, of the shape that indexing the entries gives.
            idx: an index of the batch dims.
            clone: has no effect, since values are copied.
            non_blocking: whether copies between devices may be asynchronous.
            keys_to_update: write only these.

        Raises:
            KeyError: there is no entry for a value.
            RuntimeError: a value does not fit what the index points at; then nothing
                is written.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 2)}, [3])
            >>> td.update_at_({"a": torch.ones(2)}, 1)["a"].sum(-1)
            tensor([0., 2., 0.])
        """
        source: Any = input_dict_or_td
        if keys_to_update is not None:
            source = _restricted(source, _paths(keys_to_update))
        writes: list[tuple[Any, str, torch.Tensor, Any, Any]] = []
        _collect_writes(self, source, idx, writes)
        for parent, name, target, at, value in writes:
            target[at] = value
            if parent._writes_through():
                # What it gives may be a copy.
                parent._set_entry(name, target)
        return self

    def copy_at_(
        self,
        tensordict: CollectionProtocol,
        idx: Any,
        non_blocking: bool = False,
        *,
        fast: bool = True,
    ) -> Self:
        """Copy all leaves of another container to where ``idx`` points.

        Args:
            tensordict: a container with the leaves of this one.
            idx: an integer or a slice, or a tuple of them; any index if not ``fast``.
            non_blocking: whether copies between devices may be asynchronous.
            fast: refuse what is not a plain copy of tensors to tensors.

        Raises:
            RuntimeError: ``fast`` is set, and the leaves or the index do not fit.
        """
        if fast and not _copies_plainly(self, tensordict, idx):
            raise RuntimeError(MSG_FAST_COPY)
        return self.update_at_(tensordict, idx, non_blocking=non_blocking)

    # Filling ---------------------------------------------------------------------

    def fill_(self, key: NestedKeyLike, value: float | bool) -> Self:
        """Fill the entry at a nested key with one number; all leaves of a container.

        Raises:
            KeyError: there is no such entry.
        """
        path = _rust.unravel_key_to_tuple(key)
        target = _rust.get(self, path or key)
        if isinstance(target, CollectionProtocol):
            _rust.fill(target, value)
            return self
        target.fill_(value)
        parent: Any = self if len(path) == 1 else _rust.get(self, path[:-1])
        if parent._writes_through():
            # What it gives may be a copy.
            parent._set_entry(path[-1], target)
        return self

    # How values come in ----------------------------------------------------------

    def _set_path(
        self,
        path: tuple[str, ...],
        value: Any,
        inplace: bool | None,
        non_blocking: bool,
        validated: bool,
        ignore_lock: bool,
    ) -> None:
        """Store a value at a flat path: the slow, general form of ``set_entry``."""
        key = path[0]
        present = self._get_entry(key, NO_DEFAULT)
        if len(path) > 1:
            rest = path[1:]
            if present is NO_DEFAULT:
                if self.is_locked and not ignore_lock:
                    raise RuntimeError(MSG_LOCKED)
                # The new branch is filled before it is hung in: a value that does
                # not fit leaves this container as it was.
                child = self._make_child()
                child._set_path(rest, value, False, non_blocking, validated, True)
                self._hang(key, child)
            elif isinstance(present, CollectionProtocol):
                present._set_path(
                    rest, value, inplace, non_blocking, validated, ignore_lock
                )
            else:
                raise KeyError(MSG_PRESENT.format(key, self))
            return
        if present is NO_DEFAULT:
            if inplace is None:
                raise _missing(self, key)
        elif inplace is not False:
            self._write_into(key, present, value, non_blocking)
            return
        if not validated:
            value = _rust.validate(self, key, value, non_blocking)
        if self.is_locked and not ignore_lock:
            raise RuntimeError(MSG_LOCKED)
        if isinstance(value, CollectionProtocol):
            self._hang(key, value)
        else:
            self._set_entry(key, value)

    def _hang(self, key: str, value: CollectionProtocol) -> None:
        """Store a nested container that fits."""
        _rust.hang(self, key, value)

    def _write_into(
        self, key: str, present: Any, value: Any, non_blocking: bool
    ) -> None:
        """Copy ``value`` into the storage of an entry that exists."""
        if not isinstance(present, CollectionProtocol):
            if isinstance(value, (CollectionProtocol, dict)):
                _rust.validate(self, key, value, non_blocking)
                raise _InplaceWriteError(MSG_INPLACE.format(key, self))
            value = _rust.fit_inplace(self, key, value, present)
            if not value.numel():
                # Of no elements any shape fits, which copy_ does not know.
                return
            try:
                present.copy_(value, non_blocking=non_blocking)
            except RuntimeError as error:
                # A leaf that requires grad, for one.
                message = MSG_INPLACE.format(key, self)
                raise _InplaceWriteError(message) from error
            return
        if not isinstance(value, (CollectionProtocol, dict)):
            raise _InplaceWriteError(MSG_INPLACE.format(key, self))
        try:
            _rust.update(present, value, False, True, non_blocking)
        except _InplaceWriteError:
            raise
        except RuntimeError as error:
            raise _InplaceWriteError(MSG_INPLACE.format(key, self)) from error

    def _make_child(self) -> Any:
        kind = type(self) if self._is_dense else self._plain_type
        names = list(self.names) if self._has_names() else None
        return _rust.new(kind, {}, self.batch_size, self.device, names)

    def _convert_value(self, key: Any, value: Any, non_blocking: bool) -> Any:
        """A tensor or a container made of a value that is neither."""
        if isinstance(value, dict):
            names = list(self.names) if self._has_names() else None
            child = _rust.new(self._plain_type, {}, self.batch_size, self.device, names)
            for name, item in value.items():
                _rust.set_entry(child, name, item, False, non_blocking)
            return child
        if isinstance(value, (list, tuple)):
            converted = tensor_of_sequence(value, self.device)
        else:
            converted = tensor_of(value, self.device)
        if converted is None:
            raise TypeError(MSG_NO_NON_TENSOR.format(type(value).__name__, key))
        if isinstance(converted, CollectionProtocol):
            return self._fit_collection(key, converted, non_blocking)
        return converted

    def _fit_collection(
        self, key: Any, value: Any, non_blocking: bool
    ) -> CollectionProtocol:
        """A nested container made to fit: batch size, device and names."""
        if any(container is self for container in _rust.containers(value)):
            raise ValueError(MSG_INSIDE_ITSELF.format(key))
        batch_size = self.batch_size
        if value.batch_size[: len(batch_size)] != batch_size:
            value = value.clone(False)
            value.batch_size = batch_size
        if self.device is not None and value.device != self.device:
            value = value.to(self.device, non_blocking=non_blocking)
        if self._has_names():
            names, held = self.names, value.names
            wanted = names + held[len(names) :]
            if held != wanted:
                if any(
                    own is not None and own != new
                    for own, new in zip(held, wanted, strict=True)
                ):
                    raise RuntimeError(MSG_NAMES.format(held, wanted))
                value = value.clone(False)
                value.names = wanted
        return value


def _take_batch_sizes(td: Any, source: Any) -> None:
    """Take the batch sizes of ``source`` where they differ, and drop the leaves there."""
    size = td.batch_size
    common = min(len(size), len(source.batch_size))
    if size[:common] == source.batch_size[:common]:
        for key, value in list(source._entries().items()):
            present = td._get_entry(key, NO_DEFAULT)
            if isinstance(value, CollectionProtocol) and isinstance(
                present, CollectionProtocol
            ):
                _take_batch_sizes(present, value)
        return
    absent = set(td.keys(True)) - set(source.keys(True))
    if absent:
        raise RuntimeError(MSG_BATCH_SIZE_KEYS.format(source.batch_size, size, absent))
    if td.is_locked:
        raise RuntimeError(MSG_LOCKED)
    # All leaves come anew: without them any batch size fits.
    for container in _rust.containers(td):
        for key, value in list(container._entries().items()):
            if not isinstance(value, CollectionProtocol):
                container._del_entry(key)
    td.batch_size = source.batch_size


def _kept(td: Any, value: Any) -> Any:
    """``value``, an entry of ``td``, as it can be used once it is removed."""
    if td._is_dense or not isinstance(value, CollectionProtocol) or value._is_dense:
        return value
    part: Any = value
    return part._as_plain()


def _absent(td: Any, key: Any) -> KeyError:
    keys = sorted(td.keys(isinstance(key, tuple)), key=str)
    return KeyError(f'key "{key}" not found in {type(td).__name__} with keys {keys}')


def _paths(keys: Any) -> list[tuple[str, ...]]:
    """The flat paths of a list or tuple of nested keys."""
    if not isinstance(keys, (list, tuple)):
        raise TypeError(MSG_KEY_LIST.format(type(keys)))
    paths = [_rust.unravel_key_to_tuple(key) for key in keys]
    if not all(paths):
        raise RuntimeError(MSG_NO_KEYS)
    return paths


def _restricted(source: Any, keys: list[tuple[str, ...]]) -> Any:
    """The part of a container or mapping at ``keys``, flat paths, as a mapping."""
    kept: dict[Any, Any] = {}
    for key, value in source.items():
        path = _rust.unravel_key_to_tuple(key)
        if any(path[: len(wanted)] == wanted for wanted in keys):
            kept[key] = value
            continue
        below = [wanted[len(path) :] for wanted in keys if wanted[: len(path)] == path]
        if below and isinstance(value, CollectionProtocol):
            kept[key] = value.select(*below, strict=False)
        elif below and isinstance(value, Mapping):
            kept[key] = _restricted(value, below)
    return kept


def _collect_writes(
    td: Any,
    source: Any,
    index: Any,
    writes: list[tuple[Any, str, torch.Tensor, Any, Any]],
) -> None:
    """The leaves of ``td`` and the values for them, checked against what is indexed."""
    for key, value in list(source.items()):
        target = _rust.get(td, key)
        if not isinstance(target, CollectionProtocol):
            path = _rust.unravel_key_to_tuple(key)
            parent = td if len(path) == 1 else _rust.get(td, path[:-1])
            checked = _checked_write(target, value, index)
            writes.append((parent, path[-1], target, index, checked))
        elif isinstance(value, CollectionProtocol):
            # The index means the batch dims of what is nested, not the dims of leaves.
            plan = _rust.index_plan(target.batch_size, index)
            at = ... if plan is None else plan[0]
            _collect_writes(target, value, at, writes)
        elif isinstance(value, Mapping):
            _collect_writes(target, value, index, writes)
        else:
            spread = dict.fromkeys(target.keys(True, True), value)
            _collect_writes(target, spread, index, writes)


def _copies_plainly(td: Any, source: Any, index: Any) -> bool:
    """Whether each leaf of ``source`` has the shape that it has at ``index`` of ``td``."""
    parts = index if isinstance(index, tuple) else (index,)
    if not isinstance(source, CollectionProtocol) or any(
        isinstance(part, bool) or not _is_plain_index(part) for part in parts
    ):
        return False
    for key, value in source.items(True, leaves_only=True):
        if not _rust.contains(td, key):
            return False
        target = _rust.get(td, key)
        if not isinstance(target, torch.Tensor):
            return False
        try:
            shape = target[index].shape
        except IndexError:
            return False
        if value.shape != shape:
            return False
    return True


def _is_plain_index(part: Any) -> bool:
    if isinstance(part, torch.Tensor):
        return not part.shape and part.dtype is not torch.bool
    return isinstance(part, (int, slice, np.integer))


def _checked_write(target: torch.Tensor, value: Any, index: Any) -> Any:
    """The form of ``value`` that can be written at ``index``, or what the write raises."""
    if not isinstance(value, (torch.Tensor, bool, int, float, complex)):
        value = tensor_of(value, target.device)
    if isinstance(value, torch.Tensor):
        shape = target[index].shape
        if value.shape != shape and shape.numel():
            spare = value.dim() - len(shape)
            if spare > 0 and set(value.shape[:spare]) == {1}:
                value = value.reshape(value.shape[spare:])
            value.expand(shape)
        value = value.to(target.dtype)
    return value
