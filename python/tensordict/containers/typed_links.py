"""Typed collections over a lazy stack, a view or another collection that is not dense.

A typed collection over a dense one shares the dense one's dictionary of entries.
Another collection has no such dictionary. A typed collection over it is of a class that
:func:`linked` makes: a subclass of the declared class. Its methods call the methods of
the collection, its ``_source``.
"""

from __future__ import annotations

import copyreg
import functools
from typing import TYPE_CHECKING, Any

from tensordict import _rust
from tensordict.containers.delegation import delegate, members_of, results
from tensordict.containers.dense import TensorDict
from tensordict.ops.display import DisplayOps
from tensordict.primitives import classes
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Linked", "default_of", "linked"]

MSG_UNSET = "{!r} has field {!r} declared but not set"

_OWN = frozenset((
    "__copy__", "__deepcopy__", "__getitem__", "__getstate__", "__init__",
    "__reduce_ex__", "__repr__", "__setstate__", "_child_type", "_stack_lazily",
    *(name for name in vars(DisplayOps) if name.startswith("_repr")),
))  # fmt: skip
"""The methods that :class:`Linked` or the declared class implements itself: making,
printing, pickling and joining instances."""

_ENTRIES = frozenset((
    "entry_class", "get", "get_at", "get_non_tensor", "items", "keys",
    "non_tensor_items", "pop", "popitem", "setdefault", "to_lazystack",
    "to_tensordict", "values", "sum", "mean", "prod", "std", "var", "nansum",
    "nanmean", "quantile", "amax", "amin", "max", "min", "cummax", "cummin",
    "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
))  # fmt: skip
"""Public methods whose results stay plain: entries, or values of undeclared types."""

_WALKS = frozenset((
    "_apply_nest", "_as_plain", "_clone_structure", "_fast_apply", "_get_index",
    "_get_sub_tensordict", "_index", "_like", "_map_leaves", "_new_tensors_from",
    "_rebuild", "_refined", "_resized", "_split_leaves", "_with_entries",
))  # fmt: skip
"""Protocol methods that return one or several collections like this one."""

_STATE = (
    "_batch_size", "_device", "_td_dim_names", "_is_locked", "_is_memmap", "_is_shared",
    "_memmap_prefix", "_has_exclusive_keys", "_consolidated", "_lock_parents_weakrefs",
)  # fmt: skip
"""The attributes in which dense collections keep their state."""


class Linked:
    """A typed collection over another collection, which does all the work.

    Its methods are the methods of dense collections, called on the source.
    """

    _is_dense = False

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The declared class: pickles name it, and programs compare with it."""
        return self._declared()

    @property
    def _source(self) -> Any:
        return self.__dict__["_source"]

    @classmethod
    def _declared(cls) -> Any:
        """Return the class that the user declared."""
        return cls.__bases__[1]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that only some collections have, such as ``append``."""
        source = self.__dict__.get("_source")
        if source is None or name in type(self).__expected_keys__:  # type: ignore[attr-defined]
            return object.__getattribute__(self, name)
        try:
            return getattr(source, name)
        except AttributeError:
            msg = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(msg) from None

    def __getitem__(self, index: object) -> Any:
        """Return the entry at a key, or the typed collection at an index."""
        result = self._source[index]
        is_entry = isinstance(index, str) or _rust.unravel_key_to_tuple(index)
        return result if is_entry else _outside(self, result)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind(0))

    def __copy__(self) -> Any:
        return self.clone(recurse=False)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        # Instances of the declared class are pickled like this by both packages.
        state = {
            name: value for name, value in vars(self).items() if name != "_last_op"
        }
        return copyreg.__newobj__, (self._declared(),), state  # type: ignore[attr-defined]

    def _child_type(self) -> Any:
        return self._source._child_type()

    def _stack_all(self, tds: Sequence[CollectionProtocol], dim: int) -> Any:
        joined = _rust.stack([_dense(td) for td in tds], dim)
        return self._declared()._from_plain(joined)

    def _cat_all(self, tds: Sequence[CollectionProtocol], dim: int) -> Any:
        joined = _rust.cat([_dense(td) for td in tds], dim)
        return self._declared()._from_plain(joined)


def _inside(value: object) -> Any:
    return value._source if isinstance(value, Linked) else value


def _dense(value: object) -> Any:
    return value._source._as_dense() if isinstance(value, Linked) else value


def _wrapped(this: Any, result: CollectionProtocol) -> Any:
    declared = this._declared()
    return result if type(result) is declared else declared._from_plain(result)


_outside = results("_source", _wrapped)


def _is_wrapped(name: str, member: object) -> bool:
    """Return whether results of a method or property are of the declared class."""
    if isinstance(member, property):
        return name in ("data", "grad")
    is_public = not name.startswith("_") or name.endswith("__")
    return name in _WALKS or (is_public and name not in _ENTRIES)


def _delegate() -> None:
    """Give :class:`Linked` the methods of dense collections, called on the source."""
    members: dict[str, Any] = dict.fromkeys(_WALKS)
    members |= dict.fromkeys(_STATE, property(fset=lambda _this, _value: None))
    members |= dict(members_of(TensorDict.__mro__[:-1]))
    delegated = {name: member for name, member in members.items() if name not in _OWN}
    bare = {name for name, member in delegated.items() if not _is_wrapped(name, member)}
    delegate(Linked, delegated.items(), "_source", _inside, _outside, bare)


_delegate()


def default_of(typed: Any, name: str) -> Any:
    """Return the default of a field that is not set.

    Raises:
        AttributeError: the field has no default.
    """
    defaults = type(typed).__field_defaults__
    if name not in defaults:
        raise AttributeError(MSG_UNSET.format(type(typed).__name__, name))
    return defaults[name]


def _reader(name: str) -> Callable[..., Any]:
    def read(self: Any) -> Any:
        entry = self._source._get_entry(name, NO_DEFAULT)
        return default_of(self, name) if entry is NO_DEFAULT else entry

    return read


def _writer(name: str) -> Callable[..., Any]:
    def write(self: Any, value: object) -> None:
        self._source[name] = value

    return write


@functools.cache
def linked(cls: Any) -> Any:
    """Return the subclass of a typed class for instances over other collections."""
    names = ("__module__", "__qualname__", "__doc__")
    body = {name: getattr(cls, name) for name in names}
    for name in cls.__expected_keys__:
        body[name] = property(_reader(name), _writer(name))
    linked_class = type(cls)(cls.__name__, (Linked, cls), body)
    classes.announce(linked_class, "collection", cls)
    return linked_class
