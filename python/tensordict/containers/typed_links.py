"""Typed collections over a lazy stack, a view or another collection that is not dense.

A typed collection has its entries in a dictionary, which it can share with a dense one
alone. Over any other collection it is one of the classes that :func:`linked` makes: a
subclass of the declared one whose methods are those of the collection, its ``_source``.
"""

from __future__ import annotations

import copyreg
import functools
import types
from typing import TYPE_CHECKING, Any

from tensordict import _rust
from tensordict.containers.dense import TensorDict
from tensordict.ops.display import DisplayOps
from tensordict.primitives import classes
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Linked", "default_of", "linked"]

MSG_UNSET = "{!r} has field {!r} declared but not set"

_OWN = frozenset(
    [
        "__class__",
        "__class_getitem__",
        "__copy__",
        "__deepcopy__",
        "__del__",
        "__delattr__",
        "__dir__",
        "__doc__",
        "__getattr__",
        "__getattribute__",
        "__getstate__",
        "__hash__",
        "__init__",
        "__init_subclass__",
        "__new__",
        "__reduce__",
        "__reduce_ex__",
        "__repr__",
        "__setattr__",
        "__setstate__",
        "__str__",
        "__subclasshook__",
        "__torch_function__",
        "_child_type",
        "_repr_html_",
        "_stack_all",
        "_stack_lazily",
        "_cat_all",
    ]
)
"""The attributes that the class has itself, for making, printing, pickling and joining
instances."""

_ENTRIES = frozenset(
    [
        "entry_class",
        "get",
        "get_at",
        "get_non_tensor",
        "items",
        "keys",
        "non_tensor_items",
        "pop",
        "popitem",
        "setdefault",
        "to_lazystack",
        "to_tensordict",
        "values",
        "sum",
        "mean",
        "prod",
        "std",
        "var",
        "nansum",
        "nanmean",
        "quantile",
        "amax",
        "amin",
        "max",
        "min",
        "cummax",
        "cummin",
        "__eq__",
        "__ne__",
        "__lt__",
        "__le__",
        "__gt__",
        "__ge__",
    ]
)
"""Public methods whose collections are entries, or have none of the declared values."""

_WALKS = frozenset(
    [
        "_apply_nest",
        "_as_plain",
        "_clone_structure",
        "_fast_apply",
        "_get_index",
        "_get_sub_tensordict",
        "_index",
        "_like",
        "_map_leaves",
        "_new_tensors_from",
        "_rebuild",
        "_refined",
        "_remade",
        "_resized",
        "_split_leaves",
        "_with_entries",
    ]
)
"""Methods of the protocol that give a collection like this one, or several."""


class Linked:
    """A typed collection over another one, which does all that is done to it.

    Its methods are set below, from those of the dense collection.
    """

    _is_dense = False

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the user: what pickles name, and programs compare."""
        return self._declared()

    @property
    def _source(self) -> Any:
        return self.__dict__["_source"]

    @classmethod
    def _declared(cls) -> Any:
        """The class of the user, which has the declaration."""
        return cls.__bases__[1]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that only some collections have, as ``append``."""
        source = self.__dict__.get("_source")
        if source is None or name in type(self).__expected_keys__:  # type: ignore[attr-defined]
            return object.__getattribute__(self, name)
        try:
            return getattr(source, name)
        except AttributeError:
            msg = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(msg) from None

    def __getitem__(self, index: object) -> Any:
        """An entry, or this at an index of the batch dims."""
        found = self._source[index]
        is_entry = isinstance(index, str) or _rust.unravel_key_to_tuple(index)
        return found if is_entry else _outside(self, found)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind(0))

    def __copy__(self) -> Any:
        return self.clone(recurse=False)

    def __reduce_ex__(self, protocol: object) -> Any:
        # The declared class itself is pickled so, by ours and by the published release.
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


def _outside(this: Any, result: CollectionProtocol) -> Any:
    """Convert the result of a method of the source to that of the typed collection."""
    if result is this._source:
        return this
    if isinstance(result, CollectionProtocol):
        if result._is_non_tensor or type(result) is this._declared():
            return result
        return this._declared()._from_plain(result)
    if type(result) in (list, tuple) and result:
        return type(result)(_outside(this, item) for item in result)
    return result


def _delegated(name: str, function: Callable[..., Any] | None) -> Any:
    wraps = name in _WALKS or (name not in _ENTRIES and _is_public(name))

    def method(self: Any, *args: object, **kwargs: object) -> Any:
        given = [_inside(value) for value in args]
        kwargs = {key: _inside(value) for key, value in kwargs.items()}
        result = getattr(self._source, name)(*given, **kwargs)
        return _outside(self, result) if wraps else result

    return method if function is None else functools.wraps(function)(method)


def _delegated_property(name: str, own: object) -> property:
    def read(self: Any) -> Any:
        value = getattr(self._source, name)
        return _outside(self, value) if name in ("data", "grad") else value

    def write(self: Any, value: object) -> None:
        setattr(self._source, name, _inside(value))

    return property(read, write, doc=getattr(own, "__doc__", None))


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name.endswith("__")


def _delegate() -> None:
    """Give :class:`Linked` what dense collections have, from the source."""
    of_text = {name for name in vars(DisplayOps) if name.startswith("_repr")}
    for base in TensorDict.__mro__[:-1]:
        for name, member in list(vars(base).items()):
            if name in vars(Linked) or name in _OWN or name in of_text:
                continue
            if isinstance(member, types.FunctionType) and name != "__getitem__":
                setattr(Linked, name, _delegated(name, member))
            elif isinstance(member, property):
                setattr(Linked, name, _delegated_property(name, member))
    # Dense collections have no need of some.
    for name in _WALKS - vars(Linked).keys():
        setattr(Linked, name, _delegated(name, None))
    for name in _STATE:
        setattr(Linked, name, _delegated_property(name, None))


_STATE = (
    *("_batch_size", "_device", "_td_dim_names", "_is_locked", "_is_memmap"),
    *(
        "_is_shared",
        "_memmap_prefix",
        "_has_exclusive_keys",
        "_consolidated",
        "_lock_parents_weakrefs",
    ),
)
_delegate()


def default_of(typed: Any, name: str) -> Any:
    """The default of a field that is not set.

    Raises:
        AttributeError: there is none.
    """
    defaults = type(typed).__field_defaults__
    if name not in defaults:
        raise AttributeError(MSG_UNSET.format(type(typed).__name__, name))
    return defaults[name]


def _reader(name: str) -> Any:
    def read(self: Any) -> Any:
        found = self._source._get_entry(name, NO_DEFAULT)
        return default_of(self, name) if found is NO_DEFAULT else found

    return read


def _writer(name: str) -> Any:
    def write(self: Any, value: object) -> None:
        self._source[name] = value

    return write


@functools.cache
def linked(cls: Any) -> Any:
    """The subclass of a typed class whose instances are over other collections."""
    names = ("__module__", "__qualname__", "__doc__")
    body = {name: getattr(cls, name) for name in names}
    for name in cls.__expected_keys__:
        body[name] = property(_reader(name), _writer(name))
    made = type(cls)(cls.__name__, (Linked, cls), body)
    classes.announce(made, "collection", cls)
    return made
