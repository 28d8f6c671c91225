"""Random containers, and a description of results that two implementations must share."""

from __future__ import annotations

import sys
from typing import Any

import torch
from hypothesis import strategies as st

from tensordict import TensorDict
from tensordict.primitives import (
    lock as lock_primitives,
)
from tensordict.primitives import (
    map_leaves as map_leaves_primitives,
)
from tensordict.primitives import (
    split as split_primitives,
)
from tensordict.primitives import (
    tree as tree_primitives,
)
from tensordict.primitives.lock import LOCK_STATE
from tensordict.primitives.protocol import CollectionProtocol

KEYS = ("a", "b", "c", "n", "m")


class SubTensorDict(TensorDict):
    """A user's subclass: dense, with a type of its own."""


class Wrapped(CollectionProtocol):
    """A container that is not dense: it holds another one and does what that one does."""

    def __init__(self, inner: TensorDict) -> None:
        self._inner = inner

    @property
    def batch_size(self):
        return self._inner.batch_size

    @property
    def device(self):
        return self._inner.device

    @property
    def is_locked(self):
        return self._inner.is_locked

    def keys(self):
        return self._inner._entries().keys()

    def is_empty(self):
        return not tree_primitives.leaves(self._inner)

    def _has_names(self):
        return self._inner._td_dim_names is not None

    @property
    def names(self):
        return self._inner.names

    def _entries(self):
        return self._inner._entries()

    def _get_entry(self, key, default):
        return self._inner._get_entry(key, default)

    def _del_entry(self, key):
        self._inner._del_entry(key)

    def _set_entry(self, key, value):
        self._inner._set_entry(key, value)

    def _writes_through(self):
        return False

    def _map_leaves(self, *args):
        return Wrapped(map_leaves_primitives.map_leaves(self._inner, *args))

    def _split_leaves(self, *args):
        return [
            Wrapped(part) for part in split_primitives.split_leaves(self._inner, *args)
        ]

    def _leaves(self, out):
        tree_primitives.leaves(self._inner, out)

    def _rebuild(self, values, lock):
        return Wrapped(tree_primitives.rebuild(self._inner, values, True, lock))

    def _clone_structure(self):
        return Wrapped(tree_primitives.clone_structure(self._inner))

    def _lock_tree(self, parents):
        lock_primitives.lock_tree(self._inner, parents)
        self._is_locked = True

    def _index(self, index):
        from tensordict.primitives import index as index_primitives

        return Wrapped(index_primitives.index(self._inner, index))


@st.composite
def leaf(draw: st.DrawFn, batch: tuple[int, ...]) -> torch.Tensor:
    extra = draw(st.sampled_from([(), (1,), (2,), (2, 3)]))
    shape = (*batch, *extra)
    dtype = draw(st.sampled_from([torch.float32, torch.int64]))
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    if draw(st.integers(0, 9)) == 0:
        return torch.nn.Parameter(tensor.float())
    return tensor


@st.composite
def containers(
    draw: st.DrawFn,
    batch: tuple[int, ...] | None = None,
    depth: int = 2,
    foreign: bool = True,
    names: bool = True,
) -> Any:
    """A container: nested, empty, named, of a subclass, or not dense."""
    if batch is None:
        batch = draw(st.sampled_from([(), (3,), (1,), (2, 3), (0, 2), (4, 1, 2)]))
    entries: dict[str, Any] = {}
    for key in draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=4)):
        if key in "nm" and depth:
            longer = draw(st.sampled_from([(), (2,)]))
            nested = containers((*batch, *longer), depth - 1, foreign, names)
            entries[key] = draw(nested)
        else:
            entries[key] = draw(leaf(batch))
    cls = draw(st.sampled_from([TensorDict, TensorDict, SubTensorDict]))
    own_names = None
    if names and batch and draw(st.booleans()):
        own_names = [f"d{dim}" if dim % 2 == 0 else None for dim in range(len(batch))]
    device = draw(st.sampled_from([None, torch.device("cpu")]))
    td = tree_primitives.new(cls, entries, torch.Size(batch), device, own_names)
    if foreign and depth < 2 and draw(st.integers(0, 4)) == 0:
        return Wrapped(td)
    return td


def copy_tree(td: Any) -> Any:
    """New containers with the same leaves, and the same locks."""
    result = tree_primitives.clone_structure(td)
    if td._is_locked:
        lock_primitives.lock_tree(result)
    return result


def _own_attributes(td: Any) -> set[str]:
    """The attributes in the instance dictionary of ``td``.

    Where an older torch compiles, twins write the class's value instead of deleting it.
    """
    own = vars(td)
    if "tensordict.compile.older_dynamo" not in sys.modules:
        return set(own)
    cls = type(td)
    return {n for n in own if n not in LOCK_STATE or own[n] != getattr(cls, n)}


def describe(value: Any, known: dict[int, str]) -> Any:
    """A description of a result that is equal for equal results.

    ``known`` names the objects that existed before: results that share them say so.
    """
    if id(value) in known:
        return ("known", known[id(value)])
    if isinstance(value, Wrapped):
        return ("wrapped", describe(value._inner, known))
    if isinstance(value, CollectionProtocol):
        return (
            type(value),
            type(value._batch_size),
            tuple(value._batch_size),
            value._device,
            type(value._td_dim_names),
            value._td_dim_names,
            value._is_locked,
            len(value._lock_parents_weakrefs),
            sorted(_own_attributes(value)),
            [(key, describe(item, known)) for key, item in value._tensordict.items()],
        )
    if isinstance(value, torch.Tensor):
        base = known.get(value.untyped_storage().data_ptr()) if value.numel() else None
        shape = (tuple(value.shape), value.stride(), value.dtype)
        return (type(value), shape, base, value.tolist())
    if isinstance(value, (list, tuple)):
        return (type(value), [describe(item, known) for item in value])
    return value


def known_objects(td: Any, known: dict[int, str] | None = None, path: str = "") -> Any:
    """The containers and leaves of ``td``, and the storages of its leaves, by identity."""
    known = {} if known is None else known
    known[id(td)] = path or "root"
    for key, value in td._entries().items():
        where = f"{path}.{key}"
        if isinstance(value, CollectionProtocol):
            known_objects(value, known, where)
        else:
            known[id(value)] = where
            if value.numel():
                known.setdefault(
                    value.untyped_storage().data_ptr(), f"storage of {where}"
                )
    return known


def outcome(function: Any, *args: Any, known: dict[int, str]) -> Any:
    """Describe what a call gives or raises."""
    try:
        result = function(*args)
    except Exception as error:  # noqa: BLE001
        return ("raised", type(error), str(error))
    return ("gave", describe(result, known))
