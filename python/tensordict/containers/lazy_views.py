"""Views of a collection with other batch dims: shape operations in lazy mode.

Under ``set_lazy_legacy(True)`` the operations ``permute``, ``view``, ``transpose``,
``squeeze`` and ``unsqueeze`` leave the leaves unchanged and return a view. The view
applies the operation to an entry when it is read, and the inverse to an entry when it
is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch

from tensordict import _rust
from tensordict.containers.collection import TensorDictBase
from tensordict.containers.dense import TensorDict
from tensordict.containers.source_view import SourceView
from tensordict.primitives import classes
from tensordict.primitives import options as options_primitives
from tensordict.primitives.checks import is_branch
from tensordict.primitives.dims import remember
from tensordict.primitives.errors import locked_error
from tensordict.primitives.operations import MOVES_DIMS, ONLY_VIEWS
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.storage.lazy_views import load_view, plan_view, saved_view
from tensordict.storage.take_loaded import load_into

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict._rust import SavedTensors
    from tensordict.primitives.protocol import BatchIndex, NestedKeyLike
    from tensordict.storage.paths import SavedPath

__all__ = [
    "VIEW_TYPES",
    "_CustomOpTensorDict",
    "_PermutedTensorDict",
    "_SqueezedTensorDict",
    "_TransposedTensorDict",
    "_UnsqueezedTensorDict",
    "_ViewedTensorDict",
    "lazy_view",
]

MSG_NAMES = "Names of a lazy tensordict cannot be modified. Call to_tensordict() first."
MSG_VIEW = "Cannot call `view` on a lazy tensordict. Call `reshape` instead."
MSG_SHAPE = (
    "Cannot call `{}` on a lazy tensordict. Make it dense before calling this method by "
    "calling `to_tensordict`."
)
MSG_DIM = "Incompatible dim {} for tensordict with shape {}."
MSG_TO = "Cannot {} {}.to()."
SHAPE_TAIL = 1


class _CustomOpTensorDict(SourceView, TensorDictBase):  # type: ignore[misc]
    """A view of a collection through an operation on its batch dims.

    Args:
        source: the collection.
        custom_op: the operation.
        inv_op: the operation that reverses it.
        custom_op_kwargs: the arguments of ``custom_op``.
        inv_op_kwargs: the arguments of ``inv_op``.
        batch_size: the batch size of the view. Default: computed.
    """

    _is_dense: ClassVar[bool] = False
    _msg_names = MSG_NAMES

    def __init__(
        self,
        source: CollectionProtocol,
        custom_op: str,
        inv_op: str,
        custom_op_kwargs: dict[str, Any] | None = None,
        inv_op_kwargs: dict[str, Any] | None = None,
        batch_size: Any = None,
    ) -> None:
        self._source: Any = source
        self.custom_op = custom_op
        self.inv_op = inv_op
        self.custom_op_kwargs = custom_op_kwargs or {}
        self.inv_op_kwargs = inv_op_kwargs or {}
        if batch_size is None:
            batch_size = self._apply(source.empty()).batch_size
        self._batch_size = torch.Size(batch_size)

    @classmethod
    def _seen_through(
        cls, source: CollectionProtocol, op: str, kwargs: dict[str, Any]
    ) -> Self:
        """Make the view of ``source`` through one of the operations of this module."""
        back = {"size": source.batch_size} if op in ONLY_VIEWS else kwargs
        return cls(source, op, _VIEWS[op].inverse, kwargs, back)

    def _of_source(self, source: CollectionProtocol) -> Self:
        """Make the same view of another collection of the same batch size."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.__dict__.pop("_last_op", None)
        copy._source = source
        return copy

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state, also one of the published tensordict 0.15."""
        self.__dict__.update(state)
        if self._batch_size is None:
            self._batch_size = self._apply(self._source.empty()).batch_size

    # The operation and its inverse ---------------------------------------------------

    def _apply(self, td: object) -> Any:
        """Apply the operation to a collection with the batch size of the source."""
        if isinstance(td, _CustomOpTensorDict):
            td = td._shown()
        return _VIEWS[self.custom_op].show(td, self.custom_op_kwargs)

    def _undone(self, key: str, value: object) -> Any:
        """Apply the inverse operation to an entry of the view."""
        held = _rust.new(TensorDict, {key: value}, self._batch_size, None, None)
        return _VIEWS[self.custom_op].undo(self, held)._tensordict[key]

    def _shown(self) -> Any:
        """Return the source with the operation applied, its leaves as views."""
        return self._apply(self._source)

    # State, which the source holds ----------------------------------------------------

    @property
    def _device(self) -> torch.device | None:
        return self._source.device

    @_device.setter
    def _device(self, value: torch.device | None) -> None:
        self._source._device = value

    @property
    def _td_dim_names(self) -> list[str | None] | None:  # type: ignore[override]
        if not self._source._has_names():
            return None
        return self._apply(self._source.empty())._td_dim_names

    @property
    def _is_locked(self) -> bool:
        return self._source.is_locked

    @_is_locked.setter
    def _is_locked(self, value: bool) -> None:
        if not value:
            return
        _rust.lock_tree(self._source)

    @property
    def _is_memmap(self) -> bool:  # type: ignore[override]
        return self._source._is_memmap

    @property
    def _is_shared(self) -> bool:  # type: ignore[override]
        return self._source._is_shared

    def _lock_tree(self, parents: tuple[Any, ...] = ()) -> None:
        _rust.lock_tree(self._source, parents)

    def _clear_device(self) -> None:
        self._source._clear_device()

    def _children(self) -> list[Any]:
        return [self._source]

    # Reading --------------------------------------------------------------------------

    def _entries(self) -> dict[str, Any]:
        if options_primitives.lazy_legacy():
            return {
                key: self._seen(key, value)
                for key, value in list(self._source._entries().items())
            }
        return dict(self._shown()._entries())

    def _get_entry(self, key: str, default: object) -> Any:
        value = self._source._get_entry(key, NO_DEFAULT)
        return default if value is NO_DEFAULT else self._seen(key, value)

    def _seen(self, key: str, value: object) -> Any:
        source = self._source
        if is_branch(value) and options_primitives.lazy_legacy():
            return lazy_view(value, self.custom_op, self.custom_op_kwargs)
        held = _rust.new(TensorDict, {key: value}, source.batch_size, None, None)
        return self._apply(held)._tensordict[key]

    def _sample_entries(self) -> dict[str, Any]:
        return self._source._sample_entries()

    def _index(self, index: BatchIndex) -> Any:
        if _rust.index_plan(self._batch_size, index) is None:
            return self
        return _rust.index(self._shown(), index)

    def _get_index(self, index: Any) -> Any:
        return self._index(index)

    def _as_plain(self) -> Any:
        return self._shown()

    def _replace_content(self, result: CollectionProtocol) -> Self:
        # Others refer to the source, so its batch size has to stay.
        self._resize_batch(result.batch_size)
        if self.is_locked:
            raise locked_error(self)
        for key, value in list(result._entries().items()):
            self._set_entry(key, value)
        return self

    # Writing --------------------------------------------------------------------------

    def _set_entry(self, key: str, value: object) -> None:
        self._source._set_entry(key, self._undone(key, value))

    def _hang(self, key: str, value: object) -> None:
        self._source._hang(key, self._undone(key, value))

    def _set_path(
        self,
        path: tuple[str, ...],
        value: object,
        inplace: bool | None,
        non_blocking: bool,
        validated: bool,
        ignore_lock: bool,
    ) -> None:
        child = self._source._get_entry(path[0], None)
        if len(path) > 1 and isinstance(child, CollectionProtocol):
            # Reading makes a new collection, so the write goes to the stored one.
            view = lazy_view(child, self.custom_op, self.custom_op_kwargs)
            view._set_path(
                path[1:], value, inplace, non_blocking, validated, ignore_lock
            )
            return
        super()._set_path(path, value, inplace, non_blocking, validated, ignore_lock)

    def _del_entry(self, key: str) -> None:
        self._source._del_entry(key)

    def _write_into(
        self, key: str, present: object, value: object, non_blocking: bool
    ) -> None:
        value = _rust.validate(self, key, value, non_blocking)
        stored = self._source._get_entry(key, NO_DEFAULT)
        value = self._undone(key, value)
        if isinstance(stored, torch.Tensor):
            value = _strided_as(value, stored)
        self._source._write_into(key, stored, value, non_blocking)

    def _set_index(self, index: object, value: object) -> None:
        plain = self._shown()
        if self.is_locked:
            plain.lock_()
        plain._set_index(index, value)
        for key, entry in list(plain._entries().items()):
            if self._source._get_entry(key, NO_DEFAULT) is NO_DEFAULT:
                self._set_entry(key, entry)

    def del_(self, key: NestedKeyLike) -> Self:
        """Remove an entry of the source."""
        self._source.del_(key)
        return self

    def rename_key_(
        self, old_key: NestedKeyLike, new_key: NestedKeyLike, safe: bool = False
    ) -> Self:
        """Rename an entry of the source."""
        self._source.rename_key_(old_key, new_key, safe=safe)
        return self

    # Walking --------------------------------------------------------------------------

    def _refuse(self, op: object) -> None:
        if options_primitives.lazy_legacy():
            return
        if op in ONLY_VIEWS:
            raise RuntimeError(MSG_VIEW)
        if op in MOVES_DIMS:
            raise RuntimeError(MSG_SHAPE.format(op))

    def _leaves(self, out: list[Any]) -> None:
        _rust.leaves(self._shown(), out)

    def _clone_structure(self) -> Self:
        return self._of_source(_rust.clone_structure(self._source))

    # Methods that a view does differently ---------------------------------------------

    def squeeze(self, *args: object, **kwargs: object) -> Any:
        """Remove batch dims of size 1, in lazy mode only."""
        dim = args[0] if args else kwargs.get("dim")
        ndim = len(self._batch_size)
        if isinstance(dim, int) and -ndim <= dim < ndim and self._batch_size[dim] != 1:
            return remember(self, self, "squeeze", args, kwargs)
        if isinstance(dim, int) and not -ndim <= dim < ndim:
            raise IndexError(MSG_DIM.format(dim, self._batch_size))
        if not options_primitives.lazy_legacy():
            raise RuntimeError(MSG_SHAPE.format("squeeze"))
        return super().squeeze(*args, **kwargs)

    def permute(self, *args: object, **kwargs: object) -> Self:
        """Reorder the batch dims, in lazy mode only."""
        if not options_primitives.lazy_legacy():
            raise RuntimeError(MSG_SHAPE.format("permute"))
        return super().permute(*args, **kwargs)

    def unflatten(self, *args: object, **kwargs: object) -> Any:
        """Split one batch dim into several, in an ordinary collection."""
        result = self._shown().unflatten(*args, **kwargs)
        return remember(self, result, "unflatten", args, kwargs)

    def split_keys(self, *args: Any, **kwargs: Any) -> Any:
        """Split entries off by keys into ordinary collections; the rest is a view."""
        if kwargs.get("inplace"):
            return super().split_keys(*args, **kwargs)
        parts = _rust.clone_structure(self._shown()).split_keys(*args, **kwargs)
        rest = self._source.split_keys(*args, **kwargs)[-1]
        return (*parts[:-1], self._of_source(rest))

    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Return the same view of the source with its entries nested."""
        nested = self._source.unflatten_keys(separator, inplace)
        return self if inplace else self._of_source(nested)

    def empty(self, recurse: bool = False, **kwargs: Any) -> Any:
        """Return an ordinary collection without leaves. See ``TensorDict.empty``."""
        if recurse:
            # The nested collections of the source have other batch dims.
            return self._shown().empty(True, **kwargs)
        return super().empty(**kwargs)

    def contiguous(self, **kwargs: object) -> Any:
        """Return an ordinary collection of contiguous leaves."""
        return self._shown().contiguous(**kwargs)

    def is_contiguous(self) -> bool:
        """Return whether all leaves are contiguous with the operation applied."""
        return self._shown().is_contiguous()

    def to(self, *args: object, **kwargs: object) -> Any:
        """Return the same view of the source, moved. See ``TensorDict.to``.

        Raises:
            TypeError: ``batch_size`` or ``inplace`` is given.
        """
        name = type(self).__name__
        if kwargs.get("batch_size") is not None:
            raise TypeError(MSG_TO.format("pass batch-size to", name))
        if kwargs.get("inplace"):
            raise TypeError(MSG_TO.format("use inplace=True with", name))
        result = self._of_source(self._source.to(*args, **kwargs))
        return remember(self, result, "to", args, kwargs)

    def cpu(self, **kwargs: object) -> Self:
        """Return the same view of the source, moved to the CPU."""
        return self._of_source(self._source.cpu(**kwargs))

    def cuda(self, device: Any = None, **kwargs: object) -> Self:
        """Return the same view of the source, moved to a GPU."""
        return self._of_source(self._source.cuda(device, **kwargs))

    def entry_class(self, key: NestedKeyLike) -> type:
        """Return the type of the source's entry at a nested key."""
        return self._source.entry_class(key)

    # Files ----------------------------------------------------------------------------

    def share_memory_(self) -> Self:
        """Move the source to shared memory."""
        self._source.share_memory_()
        return self

    def _save_plan(self, plan: object, level: int) -> None:
        plan_view(self, plan, level)

    def _saved(self, leaves: SavedTensors, directory: object, inplace: bool) -> Any:
        return saved_view(self, leaves, directory, inplace)

    def _unlock_saved(self) -> Self:
        self._source._unlock_saved()
        return self

    @classmethod
    def _load_tree(cls, directory: SavedPath, options: object) -> Any:
        return load_view(cls, directory, options)

    def _take_loaded(self, loaded: object) -> Self:
        other = loaded if not isinstance(loaded, type(self)) else loaded._source
        load_into(self._source, other)
        return self

    def detach_(self) -> Self:
        """Detach the source in place."""
        self._source.detach_()
        return self

    # Printing -------------------------------------------------------------------------

    def __repr__(self) -> str:
        source = "\n\t".join(repr(self._source).split("\n"))
        items = self.custom_op_kwargs.items()
        kwargs = ", ".join(f"{name}={value}" for name, value in items)
        return (
            f"{type(self).__name__}(\n\tsource={source}, "
            f"\n\top={self.custom_op}({kwargs}))"
        )


class _PermutedTensorDict(_CustomOpTensorDict):
    """A collection with its batch dims in another order."""


class _TransposedTensorDict(_CustomOpTensorDict):
    """A collection with two of its batch dims swapped."""


class _ViewedTensorDict(_CustomOpTensorDict):
    """A collection with its elements in another batch shape."""


class _SqueezedTensorDict(_CustomOpTensorDict):
    """A collection without a batch dim of size 1."""


class _UnsqueezedTensorDict(_CustomOpTensorDict):
    """A collection with one more batch dim of size 1."""


Kwargs = dict[str, Any]


def _permuted(td: CollectionProtocol, kwargs: Kwargs) -> CollectionProtocol:
    return _rust.permute(td, kwargs["dims"], ("permute", (), kwargs))


def _transposed(td: CollectionProtocol, kwargs: Kwargs) -> CollectionProtocol:
    dims = kwargs["dim0"], kwargs["dim1"]
    return _rust.transpose(td, *dims, ("transpose", (), kwargs))


def _unsqueezed(td: CollectionProtocol, kwargs: Kwargs) -> CollectionProtocol:
    return _rust.unsqueeze(td, kwargs["dim"], ("unsqueeze", (), kwargs))


def _squeezed(td: CollectionProtocol, kwargs: Kwargs) -> CollectionProtocol:
    return _rust.squeeze(td, kwargs["dim"], ("squeeze", (), kwargs))


def _viewed(td: CollectionProtocol, kwargs: Kwargs) -> CollectionProtocol:
    size = torch.Size(kwargs["size"])
    return _rust.map_leaves(td, "view", (size,), size, None, SHAPE_TAIL, True, -1)


def _permuted_back(
    view: _CustomOpTensorDict, td: CollectionProtocol
) -> CollectionProtocol:
    order = _order(view.custom_op_kwargs)
    back = [order.index(dim) for dim in range(len(order))]
    return _rust.permute(td, back, ("permute", (), view.inv_op_kwargs))


def _transposed_back(
    view: _CustomOpTensorDict, td: CollectionProtocol
) -> CollectionProtocol:
    return _transposed(td, view.inv_op_kwargs)


def _reshaped_back(view: _CustomOpTensorDict, td: object) -> Any:
    size = view._source.batch_size
    return _rust.map_leaves(td, "reshape", (size,), size, None, SHAPE_TAIL, False, -1)


def _order(kwargs: Kwargs) -> list[int]:
    """Return the dims of a permutation, counted from the front."""
    return [dim % len(kwargs["dims"]) for dim in kwargs["dims"]]


def _cancels_permute(view: _CustomOpTensorDict, kwargs: Kwargs) -> bool:
    first, then = _order(view.custom_op_kwargs), _order(kwargs)
    return [first[dim] for dim in then] == list(range(len(first)))


def _cancels_transpose(view: _CustomOpTensorDict, kwargs: Kwargs) -> bool:
    return set(kwargs.values()) == set(view.inv_op_kwargs.values())


def _cancels_by_arguments(view: _CustomOpTensorDict, kwargs: Kwargs) -> bool:
    return view.inv_op_kwargs == kwargs


class _Viewing(NamedTuple):
    """The functions and class that implement one lazy operation.

    Attributes:
        cls: the class of the view.
        inverse: the name of the operation that reverses it.
        show: a function that applies the operation to a source.
        undo: a function that applies the inverse to a collection shaped like the view.
        cancels: whether the inverse operation with these arguments leads back to the
            source.
    """

    cls: type[_CustomOpTensorDict]
    inverse: str
    show: Callable[[Any, Kwargs], Any]
    undo: Callable[[_CustomOpTensorDict, Any], Any] = _reshaped_back
    cancels: Callable[[_CustomOpTensorDict, Kwargs], bool] = _cancels_by_arguments


_VIEWS = {
    "permute": _Viewing(
        _PermutedTensorDict, "permute", _permuted, _permuted_back, _cancels_permute
    ),
    "transpose": _Viewing(
        _TransposedTensorDict,
        "transpose",
        _transposed,
        _transposed_back,
        _cancels_transpose,
    ),
    "view": _Viewing(_ViewedTensorDict, "view", _viewed),
    "squeeze": _Viewing(_SqueezedTensorDict, "unsqueeze", _squeezed),
    "unsqueeze": _Viewing(_UnsqueezedTensorDict, "squeeze", _unsqueezed),
}


@classes.provided
def lazy_view(source: CollectionProtocol, op: str, kwargs: dict[str, Any]) -> Any:
    """Return the view of ``source`` through ``op``, or its own source if that cancels.

    Args:
        source: a collection.
        op: one of the operations of this module.
        kwargs: the arguments of ``op``, with dims counted from the front.
    """
    if (
        isinstance(source, _CustomOpTensorDict)
        and source.inv_op == op
        and _VIEWS[op].cancels(source, kwargs)
    ):
        return source._source
    return _VIEWS[op].cls._seen_through(source, op, kwargs)


def _strided_as(value: object, stored: torch.Tensor) -> Any:
    """Return ``value`` with the strides of ``held`` at dims of size 1.

    An operation in place writes an entry to itself. If such a stride differs, although
    it has no effect, torch takes the two tensors for overlapping ones and refuses the
    copy.
    """
    if (
        not isinstance(value, torch.Tensor)
        or value.shape != stored.shape
        or 1 not in stored.shape
        or value.is_nested
        or stored.is_nested
    ):
        return value
    pairs = zip(stored.shape, stored.stride(), value.stride(), strict=True)
    return value.as_strided(
        value.shape,
        [held_step if size == 1 else step for size, held_step, step in pairs],
    )


VIEW_TYPES: tuple[type[_CustomOpTensorDict], ...] = (
    _CustomOpTensorDict,
    *(viewing.cls for viewing in _VIEWS.values()),
)
"""All classes of views."""

for _class in VIEW_TYPES:
    _class.__module__ = "tensordict._lazy"
