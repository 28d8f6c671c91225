"""Pickles that tensordict 0.15 reads, and reading those that it wrote.

A dense collection is pickled as a call of :func:`_make_td` with its class and its
instance dictionary, less what belongs to this process: write-back of a ``with`` block,
caches, and the weak references of locks. A locked collection is locked again on load.

Everything here has ``tensordict._reductions`` or ``tensordict.utils`` as its module:
pickles name it there.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tensordict import _rust
from tensordict.storage import out_of_band
from tensordict.storage.tensors import arena, processes

if TYPE_CHECKING:
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
"""The names in an instance dictionary, of ours or of tensordict 0.15, that are not
restored."""

_ALWAYS = ["_tensordict", "_batch_size", "_device", "_td_dim_names"]
"""The state of a dense collection, nothing of which belongs to this process."""

_OF_A_COLLECTION = frozenset(
    {*_ALWAYS, "_is_locked", "_is_memmap", "_is_shared", "_memmap_prefix"}
)
"""The attributes that a dense collection has for itself; a program has set all
others."""

_TOLD_BY_MEMBERS = ("_is_memmap", "_is_shared")
"""The attributes that a collection that is not dense reads off its members."""

_INSTALLED: set[type] = set()
"""The collections that are pickled as a call of :func:`_make_td`."""

_StringOnlyDict = dict
"""The dictionary class that pickles of some releases name for ``_tensordict``."""


class _LockedSchema(NamedTuple):
    """The lock as the pickles of tensordict 0.15 have it; ignored on load."""

    keys: tuple[str, ...]


_LockedSchema.__module__ = "tensordict.utils"


def state_of(td: CollectionProtocol) -> dict[str, Any]:
    """The part of the instance dictionary that outlives the process."""
    state = td.__dict__.copy()
    if len(state) > len(_ALWAYS):
        for name in _OF_THIS_PROCESS.intersection(state):
            del state[name]
        if not td._is_dense:
            # The release cannot set these.
            for name in _TOLD_BY_MEMBERS:
                state.pop(name, None)
    return state


def typed_state_of(td: CollectionProtocol, plain_type: Any) -> dict[str, Any]:
    """The state of a collection with declared keys: a plain one, as ``_source``.

    tensordict 0.15 has it so. Attributes that a program has set stand beside it.
    """
    state = state_of(td)
    source = plain_type.__new__(plain_type)
    inside = {name: state.pop(name) for name in _OF_A_COLLECTION.intersection(state)}
    # In the order of `new`, which `_make_td` knows.
    source.__dict__.update({name: inside.pop(name) for name in _ALWAYS}, **inside)
    return {"_source": source, **state}


def restore_typed(td: Any, state: dict[str, Any]) -> None:
    """Fill a collection with declared keys from the state of a pickle."""
    if "_source" not in state:
        restore(td, state)
        return
    made = type(td).from_tensordict(state["_source"], check=False)
    if not made._is_dense:
        td.__class__ = type(made)
    td.__dict__ = made.__dict__
    for name, value in state.items():
        if name != "_source" and name not in _OF_THIS_PROCESS:
            object.__setattr__(td, name, value)


def restore(td: CollectionProtocol, state: dict[str, Any]) -> None:
    """Fill an instance from the state of a pickle, ours or one of tensordict 0.15."""
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
    """A collection of type ``cls`` from a pickle's state."""
    # Most states are these four attributes, in the order of `new`.
    if cls in _INSTALLED and [*state] == _ALWAYS and state["_td_dim_names"] is None:
        return _rust.new(cls, *state.values())
    td = cls.__new__(cls)
    td.__setstate__(state)
    return td


def _rebuild_tensordict_files_consolidated(
    metadata: dict[str, Any], storage: torch.Tensor
) -> Any:
    """A consolidated collection of its description and its buffer."""
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
    """Reduce a collection for another process: all leaves in one shared memory.

    As torch does with a tensor, this moves the leaves there: both processes then see what
    either writes. Where that would take most of the descriptors of a process, since the
    leaves are parts of many tensors, a copy is sent.
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
    """Let a batch of a worker take no descriptor, unless it says that it is shared."""
    if not data._is_shared:
        processes.leave_descriptors(_rust.leaves(data))


def _reduce_part(part: Any) -> tuple[Any, ...]:
    """Reduce what shows a file for another process, as its entries where they are sent."""
    data = part._data_to_send()
    if data is not None:
        return _reduce_to_process(data)
    return part.__reduce_ex__(2)


def _reduce_ex(data: Any, protocol: Any) -> tuple[Any, ...]:
    """``__reduce_ex__`` of the collections that are installed.

    From protocol 5 on, the bytes of leaves are buffers, which a pickler may leave out of
    the pickle (:mod:`~tensordict.storage.out_of_band`).
    """
    if type(data) not in _INSTALLED:
        # A subclass may have `__reduce__` or `__getstate__` of its own.
        found: Any = object.__reduce_ex__(data, protocol)
        return found
    make, arguments = _reduce_td(data)
    if protocol >= 5:
        arguments = out_of_band.with_buffers(arguments)
    return make, arguments


for _target in (_make_td, _reduce_td, _rebuild_tensordict_files_consolidated):
    _target.__module__ = "tensordict._reductions"


def install(*classes: type) -> None:
    """Let collections be pickled by :func:`_reduce_td`.

    Subclasses are not: they go through ``__getstate__`` and ``__setstate__`` by
    themselves, and may override both.
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
    """Let what shows a file go to other processes as ``_data_to_send`` says."""
    ForkingPickler.register(cls, _reduce_part)


def allow(*named: Any) -> None:
    """Let ``torch.load(weights_only=True)`` read pickles that name these.

    Args:
        named: classes and functions, or pairs of one and the name that pickles have
            for it.
    """
    torch.serialization.add_safe_globals(list(named))
