"""Reading, writing and removing of single entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from tensordict import _rust
from tensordict._rust import getitem, set_entry
from tensordict.primitives.checks import inside
from tensordict.primitives.common import MSG_NO_KEYS, value_of
from tensordict.primitives.errors import (
    MSG_BAD_KEY,
    KeyMessageError,
    MissingKeyError,
    bad_key,
    locked_error,
    missing_key,
    missing_of_all,
)
from tensordict.primitives.protocol import (
    NO_DEFAULT,
    NONE_IF_MISSING,
    CollectionProtocol,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensordict.primitives.entry import Entry
    from tensordict.primitives.protocol import BatchIndex, NestedKeyLike

    T = TypeVar("T")

__all__ = ["AccessOps"]

MSG_NO_KEY = "key must be a NestedKey (a str or a possibly tuple of str)."
MSG_ITERATION = (
    "iteration over a 0-d tensordict. Use keys(), values() or items() to iterate over "
    "its entries."
)
MSG_ONE_DEFAULT = "Only one arg is allowed in TD.get."
MSG_NO_INDEX = "index argument missing from get_at"


DEFAULT_OF_GET: Any = NONE_IF_MISSING
"""The default of ``get``. ``set_get_defaults_to_none`` replaces it."""


MANY = 1 << 20
"""Above this number of rows, iteration makes the rows lazily, one at a time."""


class AccessOps(CollectionProtocol):
    """Reading, writing and removing of single entries."""

    # Reading -------------------------------------------------------------------

    @overload
    def __getitem__(self, index: BatchIndex) -> Self: ...
    @overload
    def __getitem__(self, index: str | tuple[str, ...]) -> Entry: ...
    @overload
    def __getitem__(self, index: object) -> Any: ...
    def __getitem__(self, index: object) -> Any:
        """Return the entry at a key, or the rows at an index.

        A string or a tuple of strings is a key. Anything else indexes the batch
        dimensions of all leaves and returns a new tensordict; as in torch, a basic
        index gives views and an index of tensors or masks gives copies.

        Args:
            index: a nested key, or an index of the batch dimensions ``[*B]`` as for
                :class:`torch.Tensor`.

        Raises:
            KeyError: no entry has that key.
            ValueError: the key leads below a leaf.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 4), "n": {"b": torch.ones(3)}}, [3])
            >>> td["n", "b"]
            tensor([1., 1., 1.])
            >>> td[0]["a"].shape
            torch.Size([4])
        """
        return getitem(self, index)

    @_rust.call_natively
    def __contains__(self, key: object) -> bool:
        """Return whether the tensordict contains an entry at a nested key.

        Examples:
            >>> td = TensorDict({"n": {"b": torch.ones(3)}}, [3])
            >>> ("n", "b") in td, "b" in td
            (True, False)
        """
        try:
            return _rust.contains(self, key)
        except TypeError:
            raise RuntimeError(MSG_NO_KEY) from None

    @_rust.call_natively
    def __len__(self) -> int:
        """Return the size of the first batch dimension; 0 without batch dimensions."""
        batch_size = self.batch_size
        return batch_size[0] if batch_size else 0

    def __iter__(self) -> Iterator[Self]:
        """Iterate over the rows: one tensordict per index of the first batch dimension.

        Raises:
            TypeError: the tensordict has no batch dimension.
        """
        if not self.batch_size:
            raise TypeError(MSG_ITERATION)
        length = self.batch_size[0]
        if length > MANY:
            # All rows at once may not fit into memory, and the caller may stop early.
            return (self[at] for at in range(length))
        return iter(self.unbind(0))

    def is_empty(self) -> bool:
        """Return whether the tensordict contains no leaf, nested ones included.

        Examples:
            >>> TensorDict({"n": {}}).is_empty()
            True
        """
        return _rust.is_empty(self)

    @overload
    def get(self, key: NestedKeyLike) -> Entry: ...
    @overload
    def get(self, key: NestedKeyLike, default: T) -> Entry | T: ...
    @overload
    def get(self, key: NestedKeyLike, *args: Any, **kwargs: Any) -> Any: ...
    def get(self, key: NestedKeyLike, *args: Any, **kwargs: Any) -> Any:
        """Return the entry at a nested key, or a default if it is missing.

        Args:
            key: a string or a tuple of strings, possibly nested.
            *args: ``default``, by position. Without it, a missing entry gives None.
            **kwargs: ``default``, by name.

        Raises:
            KeyError: ``key`` is no nested key.
            ValueError: the key leads below a leaf, and no default was passed.

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
            default = kwargs.pop("default", DEFAULT_OF_GET)
            path = _rust.unravel_key_to_tuple(key)
            if kwargs and len(path) > 1:
                # A lazy stack takes further arguments, which say how to pad.
                parent = _rust.get(self, path[:-1], None)
                if isinstance(parent, CollectionProtocol):
                    return parent.get(path[-1], default, **kwargs)
            return _rust.get(self, key, default)
        return _rust.get(self, key, DEFAULT_OF_GET)

    def _get_str(self, key: str, default: object = NO_DEFAULT, **kwargs: object) -> Any:
        return _rust.get(self, key, default)

    def _get_tuple(
        self, key: tuple[str, ...], default: object = NO_DEFAULT, **kwargs: object
    ) -> Any:
        return _rust.get(self, key, default)

    def get_non_tensor(self, key: NestedKeyLike, default: object = NO_DEFAULT) -> Any:
        """Return the entry at a nested key; for non-tensor data the Python object."""
        if not _rust.unravel_key_to_tuple(key):
            raise RuntimeError(MSG_NO_KEYS)
        return value_of(_rust.get(self, key, default))

    def set_non_tensor(self, key: NestedKeyLike, value: object) -> Self:
        """Store a Python object of any type as non-tensor data; it is not converted."""
        if self.is_locked:
            raise locked_error(self)
        if not isinstance(key, (str, tuple)):
            raise RuntimeError(MSG_NO_KEYS)
        *above, name = _rust.unravel_key_to_tuple(key) or (key,)
        if above:
            holder = _rust.get(self, tuple(above), None)
            if inside(holder) is not holder:
                holder._check_keys({name: value})
        if not isinstance(value, self._non_tensor_stack_type):
            value = self._non_tensor_type(value, batch_size=self.batch_size)
        set_entry(self, key, value)
        return self

    def get_at(self, key: NestedKeyLike, *args: object, **kwargs: object) -> Any:
        """Return ``self.get(key)[index]``, or a default if the entry is missing.

        Args:
            key: a nested key.
            *args: the index, then ``default``. Without it, a missing entry gives None.
            **kwargs: ``index`` and ``default``, by name.

        Raises:
            TypeError: the index is missing, or two defaults were passed.

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
        if len(rest) > 1:
            raise TypeError(MSG_ONE_DEFAULT)
        default = rest[0] if rest else kwargs.get("default", NO_DEFAULT)
        value: Any
        value = self.get(key) if default is NO_DEFAULT else self.get(key, default)
        if value is None or value is default:
            return value
        # torch would read a list of lists as several indices; here it is one.
        return value[(index,) if isinstance(index, list) else index]

    # Writing -------------------------------------------------------------------

    @_rust.call_natively
    def __setitem__(self, index: object, value: object) -> None:
        """Store a value at a nested key, or write into the rows at an index.

        ``td["n"] = {...}`` replaces the entry ``"n"``; :meth:`update` merges.

        Raises:
            RuntimeError: the value does not have the batch size as its leading
                dimensions, or the tensordict is locked.

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
            set_entry(self, index, value)
        else:
            self._set_index(index, value)

    def set(
        self,
        key: NestedKeyLike,
        item: object,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        **kwargs: object,
    ) -> Self:
        """Store ``item`` at a nested key. Missing levels are created.

        A tensor is stored itself, not copied. So is a tensordict whose batch size,
        device and names fit; any other one is stored as a new tensordict that shares
        its leaves where possible. Numbers, arrays and sequences become tensors,
        dictionaries become tensordicts.

        Args:
            key: a nested key.
            item: the value, of shape ``[*B, *F]``, where ``[*B]`` is the batch size.
            inplace: if the entry exists, write into its memory.
            non_blocking: passed to torch if ``item`` moves to another device.
            **kwargs: ignored here; lazy stacks and others take more arguments.

        Raises:
            KeyError: ``key`` is no nested key, or leads below a leaf.
            RuntimeError: ``item`` does not have the batch size as its leading
                dimensions, or the tensordict is locked (a write in place is allowed).
            ValueError: ``item`` contains this tensordict, or ``inplace`` is set and
                ``item`` does not fit the entry.

        Examples:
            >>> td = TensorDict(batch_size=[3])
            >>> td.set("a", torch.zeros(3, 4)).set(("n", "b"), torch.ones(3)).keys(True)
            dict_keys(['a', ('n', 'b'), 'n'])
        """
        set_entry(self, key, item, inplace or False, non_blocking)
        return self

    def set_(
        self, key: NestedKeyLike, item: object, *, non_blocking: bool = False
    ) -> Self:
        """Write ``item`` into the memory of an existing entry.

        Locked tensordicts allow it.

        Raises:
            KeyError: the entry is missing.
            ValueError: ``item`` does not fit the entry.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3]).lock_()
            >>> td.set_("a", torch.ones(3))["a"]
            tensor([1., 1., 1.])
        """
        set_entry(self, key, item, None, non_blocking)
        return self

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
        if inplace is not False:
            # Unlike in `set`, in place here requires that the entry exists.
            inplace = None if inplace is True else bool(inplace)
        set_entry(self, key, value, inplace, non_blocking, validated, ignore_lock)
        return self

    def _set_tuple(
        self,
        key: tuple[str, ...],
        value: object,
        *,
        inplace: bool | None,
        validated: bool,
        ignore_lock: bool = False,
        non_blocking: bool = False,
    ) -> Self:
        if inplace is not False:
            inplace = None if inplace is True else bool(inplace)
        set_entry(self, key, value, inplace, non_blocking, validated, ignore_lock)
        return self

    def setdefault(
        self, key: NestedKeyLike, default: object, inplace: bool = False
    ) -> Entry:
        """Return the entry at a nested key; store ``default`` first if it is missing.

        Examples:
            >>> td = TensorDict(batch_size=[3])
            >>> td.setdefault("a", torch.zeros(3))
            tensor([0., 0., 0.])
            >>> td.setdefault("a", torch.ones(3))
            tensor([0., 0., 0.])
        """
        if not _rust.unravel_key_to_tuple(key):
            raise TypeError(MSG_BAD_KEY.format(key))
        if not _rust.contains(self, key):
            set_entry(self, key, default, inplace)
        return self.get(key)

    # Removing ------------------------------------------------------------------

    def __delitem__(self, key: NestedKeyLike) -> Self:
        """Remove the entry at a nested key, as :meth:`del_` does; return ``self``."""
        return self.del_(key)

    def del_(self, key: NestedKeyLike) -> Self:
        """Remove the entry at a nested key.

        Raises:
            KeyError: the entry is missing.
            RuntimeError: the tensordict that contains the entry is locked.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3), "b": torch.ones(3)}, [3])
            >>> list(td.del_("a").keys())
            ['b']
        """
        if self.is_locked:
            raise locked_error(self)
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            raise bad_key(key)
        parent = self if len(path) == 1 else _rust.get(self, path[:-1], None)
        if not isinstance(parent, CollectionProtocol):
            _rust.get(self, path)
        if parent.is_locked:
            raise locked_error(parent)
        if parent is not self:
            try:
                parent.del_(path[-1])
            except MissingKeyError:
                last = len(path) - 1
                raise missing_key(parent, path[-1], path, last) from None
            return self
        if parent._sample_entry(path[-1]) is NO_DEFAULT:
            raise missing_key(self, path[-1])
        parent._del_entry(path[-1])
        return self

    @overload
    def pop(self, key: NestedKeyLike) -> Entry: ...
    @overload
    def pop(self, key: NestedKeyLike, default: T) -> Entry | T: ...
    def pop(self, key: NestedKeyLike, default: object = NO_DEFAULT) -> Any:
        """Remove the entry at a nested key and return it.

        Args:
            key: a nested key.
            default: the value to return if the entry is missing.

        Raises:
            KeyError: the entry is missing, and no default was passed.
            RuntimeError: the tensordict that contains the entry is locked.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, [3])
            >>> td.pop("a")
            tensor([0., 0., 0.])
            >>> td.pop("a", None) is None
            True
        """
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            raise bad_key(key)
        value = _rust.get(self, path, NONE_IF_MISSING if default is NO_DEFAULT else ...)
        if value is ...:
            return default
        if value is None:
            raise missing_of_all(self, path)
        value = _detached_entry(value)
        self.del_(path)
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last entry and return its key and value.

        Raises:
            KeyError: the tensordict is empty.
        """
        if self.is_locked:
            raise locked_error(self)
        entries = self._entries()
        if not entries:
            msg = "popitem(): dictionary is empty"
            raise KeyMessageError(msg)
        key = next(reversed(entries))
        value = _detached_entry(entries[key])
        self._del_entry(key)
        return key, value

    def clear(self) -> Self:
        """Remove all entries.

        Raises:
            RuntimeError: the tensordict is locked.
        """
        if self.is_locked:
            raise locked_error(self)
        for key in list(self._entries()):
            self._del_entry(key)
        return self


def _detached_entry(value: object) -> Any:
    """Return a removed entry in a form that no longer writes through to its parent."""
    if not isinstance(value, CollectionProtocol) or not value._writes_through():
        return value
    part: Any = value
    return part._as_plain()
