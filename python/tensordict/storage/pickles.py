"""Pickles in the format of tensordict 0.15, written and read.

A dense collection is pickled as a call of :func:`_make_td` with its class and its instance
dictionary. The dictionary lacks the state of this process: the write-back of a ``with`` block,
caches, and the weak references of locks. A locked collection is locked again when it is loaded.

The functions here have the module ``tensordict._reductions`` or ``tensordict.utils``, because
pickles name them there.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict import _rust
from tensordict.storage import out_of_band
from tensordict.storage.tensors import arena, processes

if TYPE_CHECKING:
    from tensordict.containers.collection import TensorCollection
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["install", "send_as_data", "state_of"]

_OF_THIS_PROCESS = frozenset(
    {
        "_cache",
        "_consolidated",
        "_key_tree",
        "_last_op",
        "_last_op_queue",
        "_lock_parents_weakrefs",
        "__lock_parents_weakrefs",
        "_locked_schema",
    }
)
"""The attributes of this package and of tensordict 0.15 that are not restored."""

_ALWAYS = ["_tensordict", "_batch_size", "_device", "_td_dim_names"]
"""The attributes that the pickle of every dense collection holds."""

_OF_A_COLLECTION = frozenset(
    {*_ALWAYS, "_is_locked", "_is_memmap", "_is_shared", "_memmap_prefix"}
)
"""The attributes of a dense collection. Other attributes were set by a program."""

_TOLD_BY_MEMBERS = ("_is_memmap", "_is_shared")
"""The attributes that a lazy stack or view computes from its members."""

_INSTALLED: set[type] = set()
"""The collections that are pickled as a call of :func:`_make_td`."""

_StringOnlyDict = dict
"""The class of ``_tensordict`` in pickles of some versions."""


class _LockedSchema(NamedTuple):
    """The lock in pickles of tensordict 0.15. It is ignored when loading."""

    keys: tuple[str, ...]


_LockedSchema.__module__ = "tensordict.utils"


def state_of(td: CollectionProtocol) -> dict[str, Any]:
    """Return the part of the instance dictionary that other processes can use."""
    state = td.__dict__.copy()
    if len(state) > len(_ALWAYS):
        for name in _OF_THIS_PROCESS.intersection(state):
            del state[name]
        if not td._is_dense:
            # The published package cannot set these.
            for name in _TOLD_BY_MEMBERS:
                state.pop(name, None)
    return state


def typed_state_of(td: CollectionProtocol, plain_type: Any) -> dict[str, Any]:
    """Return the state of a collection with declared keys, as tensordict 0.15 writes it.

    ``_source`` is a plain collection. Attributes that a program has set are beside it.
    """
    state = state_of(td)
    source = plain_type.__new__(plain_type)
    attributes = {
        name: state.pop(name) for name in _OF_A_COLLECTION.intersection(state)
    }
    # In the order of the arguments of `_rust.new`, for the short way of `_make_td`.
    ordered = {name: attributes.pop(name) for name in _ALWAYS}
    source.__dict__.update(ordered, **attributes)
    return {"_source": source, **state}


def restore_typed(td: Any, state: dict[str, Any]) -> None:
    """Fill a collection with declared keys from the state of a pickle."""
    if "_source" not in state:
        restore(td, state)
        return
    restored = type(td).from_tensordict(state["_source"], check=False)
    if not restored._is_dense:
        td.__class__ = type(restored)
    td.__dict__ = restored.__dict__
    for name, value in state.items():
        if name != "_source" and name not in _OF_THIS_PROCESS:
            object.__setattr__(td, name, value)


def restore(td: CollectionProtocol, state: dict[str, Any]) -> None:
    """Fill an instance from the state of a pickle, also of tensordict 0.15."""
    state = {k: v for k, v in state.items() if k not in _OF_THIS_PROCESS}
    locked = state.pop("_is_locked", False)
    if td._is_dense:
        state.setdefault("_td_dim_names", None)
    names = state.get("_td_dim_names")
    if names is not None and all(name is None for name in names):
        state["_td_dim_names"] = None
    for name, value in state.items():
        object.__setattr__(td, name, value)
    if locked:
        td.lock_()


def _make_td(cls: Any, state: dict[str, Any]) -> Any:
    """Return a collection of type ``cls`` from the state of a pickle."""
    # Most states hold these four attributes only, in the order of `_rust.new`'s arguments.
    if cls in _INSTALLED and [*state] == _ALWAYS and state["_td_dim_names"] is None:
        return _rust.new(cls, *state.values())
    td = cls.__new__(cls)
    td.__setstate__(state)
    return td


def _rebuild_tensordict_files_consolidated(
    metadata: dict[str, Any], storage: torch.Tensor
) -> TensorCollection:
    """Return a consolidated collection from its description and its buffer."""
    from tensordict.storage.layouts import consolidated

    return consolidated.rebuild(metadata, storage)


def _reduce_td(data: Any) -> tuple[Any, ...]:
    """Pickle a dense collection."""
    if data._consolidated is not None:
        from tensordict.storage import describing
        from tensordict.storage.layouts import consolidated

        state = consolidated.state_of(data)
        if state is not None:
            metadata = describing.as_pickled(state["metadata"])
            arguments = metadata, state["storage"]
            return _rebuild_tensordict_files_consolidated, arguments
    return _make_td, (type(data), data.__getstate__())


def _reduce_to_process(data: Any) -> tuple[Any, ...]:
    """Reduce a collection for another process, and move its leaves to shared memory.

    As with tensors in torch, both processes then see each other's writes. If the leaves are
    views of too many storages, each of which would need a descriptor, a copy is sent.
    """
    if data._consolidated is not None:
        _leave_descriptors(data)
        return _reduce_td(data)
    if not arena.share(_rust.leaves(data), arena.max_descriptors()):
        is_locked = data.is_locked
        data = data.clone()
        arena.share(_rust.leaves(data))
        if is_locked:
            data.lock_()
    _leave_descriptors(data)
    return _reduce_td(data)


def _leave_descriptors(data: Any) -> None:
    """Let the leaves of a batch from a worker take no descriptor, unless it is shared."""
    if not data._is_shared:
        processes.leave_descriptors(_rust.leaves(data))


def _reduce_part(part: Any) -> tuple[Any, ...]:
    """Reduce a view of a file for another process: as its entries, or as the file."""
    data = part._data_to_send()
    if data is not None:
        return _reduce_to_process(data)
    return part.__reduce_ex__(2)


def _reduce_ex(data: Any, protocol: Any) -> tuple[Any, ...]:
    """``__reduce_ex__`` of the installed classes.

    From protocol 5 on, the bytes of leaves are buffers, which a pickler may transfer outside
    of the pickle (:mod:`~tensordict.storage.out_of_band`).
    """
    if type(data) not in _INSTALLED:
        # A subclass may override `__reduce__` or `__getstate__`.
        found: Any = object.__reduce_ex__(data, protocol)
        return found
    make, arguments = _reduce_td(data)
    if protocol >= 5:
        arguments = out_of_band.with_buffers(arguments)
    return make, arguments


for _target in (_make_td, _reduce_td, _rebuild_tensordict_files_consolidated):
    _target.__module__ = "tensordict._reductions"


def install(*classes: type) -> None:
    """Let classes of collections be pickled by :func:`_reduce_td`.

    Subclasses are not included: they use ``__getstate__`` and ``__setstate__``, and may override
    both.
    """
    _INSTALLED.update(classes)
    for cls in classes:
        cls.__reduce_ex__ = _reduce_ex  # type: ignore[assignment,method-assign]
        ForkingPickler.register(cls, _reduce_to_process)
    allow(
        *classes,
        _make_td,
        _rebuild_tensordict_files_consolidated,
        _LockedSchema,
        (dict, "tensordict.utils._StringOnlyDict"),
    )


def send_as_data(cls: type) -> None:
    """Let views of files be sent to other processes as ``_data_to_send`` returns them."""
    ForkingPickler.register(cls, _reduce_part)


def allow(*named: Any) -> None:
    """Let ``torch.load(weights_only=True)`` read pickles that name these objects.

    Args:
        named: classes and functions, or pairs of an object and its name in pickles.
    """
    torch.serialization.add_safe_globals(list(named))
