"""Copies of a collection, and new collections of the same structure."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from tensordict import _rust
from tensordict._rust import clone_structure, map_leaves
from tensordict.primitives import classes
from tensordict.primitives.checks import holds_values
from tensordict.primitives.common import MSG_BAD_KEY
from tensordict.primitives.errors import locked_error
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol, _NoDefault
from tensordict.primitives.special import mapped

if TYPE_CHECKING:
    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["CopyingOps", "replacements"]

SHAPE_TAIL = 1
"""Tells :func:`_rust.map_leaves` to append the leaf's own dims to a shape argument."""

MSG_EMPTY_SIZE = (
    "empty(recurse=True) cannot give the batch size {} to the entry {!r}, whose batch "
    "size {} does not start with it."
)
MSG_EMPTY_NAMES = (
    "the length of the dimension names must equate the tensordict batch_dims attribute. "
    "Got {} for batch_dims {}."
)
MSG_REPLACE_ARGUMENTS = (
    "Only a single argument containing a dictionary-like structure of entries to replace "
    "can be passed to replace. Received {} arguments instead."
)
MSG_REPLACE_TYPE = "Cannot use object type {} to update values in tensordict."


class CopyingOps(CollectionProtocol):
    """Copies of a collection, and new collections of the same structure."""

    # Copies ----------------------------------------------------------------------

    def clone(self, recurse: bool = True, **kwargs: object) -> Self:
        """Copy this tensordict.

        The copy is never locked, and its nested tensordicts are new ones.

        Args:
            recurse: whether the leaves are copied too, as :meth:`torch.Tensor.clone`
                does it (gradients flow through). If false the copy shares them.
            **kwargs: refused.

        Returns:
            A collection of the same type, batch size, device and names. A copy of a
            view of another collection is a plain one when its leaves are copied.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3), n={"b": torch.ones(3)}, batch_size=[3])
            >>> td.clone()["a"] is td["a"]
            False
            >>> td.clone(False)["a"] is td["a"], td.clone(False)["n"] is td["n"]
            (True, False)
        """
        if kwargs:
            msg = f"clone() got an unexpected keyword argument {next(iter(kwargs))!r}"
            raise TypeError(msg)
        if recurse:
            return map_leaves(self, "clone")
        return clone_structure(self)

    def copy(self) -> Self:
        """Copy the structure and share the leaves: ``clone(recurse=False)``.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3), batch_size=[3])
            >>> td.copy()["a"] is td["a"]
            True
        """
        return self.clone(False)

    def __copy__(self) -> Self:
        """:func:`copy.copy`: new collections around the same leaves."""
        return self.clone(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """:func:`copy.deepcopy`: every leaf is cloned, so gradients flow through."""
        return self.clone()

    # Empty ones and new ones -----------------------------------------------------

    def empty(
        self,
        recurse: bool = False,
        *,
        batch_size: Sequence[int] | None = None,
        device: torch.device | str | int | _NoDefault | None = NO_DEFAULT,
        names: Sequence[str | None] | _NoDefault | None = NO_DEFAULT,
    ) -> Self:
        """A collection like this one without any leaf; it is not locked.

        Args:
            recurse: whether the nested tensordicts are kept, empty too.
            batch_size: another batch size. Nested tensordicts keep theirs.
            device: another device, or None for none.
            names: other names, or None for none. Default: the names of the dims kept.

        Raises:
            RuntimeError: ``recurse`` is true and ``batch_size`` is not a prefix of the
                batch size of a nested tensordict that holds entries.
            ValueError: there is not one name per batch dim.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3), n={"b": torch.ones(3)}, batch_size=[3])
            >>> td.empty().batch_size
            torch.Size([3])
            >>> list(td.empty(recurse=True).keys(True))
            ['n']
        """
        old_names = self._td_dim_names
        if (
            names is NO_DEFAULT
            and batch_size is None
            and device is NO_DEFAULT
            and not recurse
        ):
            return _rust.new(
                self._dense_type(),
                {},
                self.batch_size,
                self.device,
                None if old_names is None else list(old_names),
            )
        size = self.batch_size if batch_size is None else torch.Size(batch_size)
        new_names: list[str | None] | None
        if names is NO_DEFAULT:
            new_names = None if old_names is None else list(old_names)
            if new_names is not None and len(new_names) != len(size):
                new_names = [*new_names, *([None] * len(size))][: len(size)]
        elif names is None:
            new_names = None
        else:
            new_names = list(names)
            if len(new_names) != len(size):
                raise ValueError(MSG_EMPTY_NAMES.format(new_names, len(size)))
        if device is NO_DEFAULT:
            device = self.device
        elif device is not None:
            device = torch.device(device)
        result: Any = _rust.new(self._dense_type(), {}, size, device, new_names)
        if not recurse:
            return result
        for key, value in list(self._sample_entries().items()):
            if not isinstance(value, CollectionProtocol):
                continue
            if value._is_non_tensor:
                # The sample may belong to a larger collection: the entry is read here.
                value = self._get_entry(key, value)
            inner = value.batch_size
            if inner[: len(size)] != size:
                if size[: len(inner)] != inner:
                    raise RuntimeError(MSG_EMPTY_SIZE.format(size, key, inner))
                inner = size
            inner_names: Any = names
            if names is not NO_DEFAULT and names is not None:
                rest = value._td_dim_names
                rest = [None] * len(inner) if rest is None else rest
                inner_names = [*new_names, *rest[len(size) :]]  # type: ignore[misc]
            result._set_entry(
                key,
                value.empty(True, batch_size=inner, device=device, names=inner_names),
            )
        return result

    def _dense_type(self) -> type:
        """The type of the dense collections made from this one."""
        if self._is_dense:
            return type(self)
        return classes.TensorDict

    def new_zeros(
        self,
        *size: object,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | _NoDefault | None = NO_DEFAULT,
        requires_grad: bool = False,
        layout: torch.layout = torch.strided,
        pin_memory: bool | None = None,
        empty_lazy: bool = False,
    ) -> Self:
        """A collection of this structure and another batch size, filled with zeros.

        Leaves go from ``[*B, *F]`` to ``[*size, *F]``, as :meth:`torch.Tensor.new_zeros`
        makes them. Names stay where there are as many batch dims.

        Args:
            *size: the new batch size, as numbers or one sequence.
            dtype: the dtype of all leaves. Default: each keeps its own.
            device: the device of all leaves. Default: each stays on its own.
            requires_grad: whether the leaves require gradients.
            layout: the layout of the leaves.
            pin_memory: whether the leaves are in pinned memory.
            empty_lazy: whether a lazy stack gives one of members without tensors.

        Examples:
            >>> td = TensorDict(a=torch.ones(3, 4), batch_size=[3])
            >>> td.new_zeros(2, 5)["a"].shape
            torch.Size([2, 5, 4])
        """
        options = _options(dtype, device, requires_grad, layout, pin_memory)
        return self._new_leaves("new_zeros", size, (), options, device, empty_lazy)

    def new_ones(
        self,
        *size: object,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | _NoDefault | None = NO_DEFAULT,
        requires_grad: bool = False,
        layout: torch.layout = torch.strided,
        pin_memory: bool | None = None,
        empty_lazy: bool = False,
    ) -> Self:
        """A collection of this structure and another batch size, filled with ones.

        Takes the same arguments as :meth:`new_zeros`.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3, 2), batch_size=[3])
            >>> td.new_ones(1)["a"]
            tensor([[1., 1.]])
        """
        options = _options(dtype, device, requires_grad, layout, pin_memory)
        return self._new_leaves("new_ones", size, (), options, device, empty_lazy)

    def new_empty(
        self,
        *size: object,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | _NoDefault | None = NO_DEFAULT,
        requires_grad: bool = False,
        layout: torch.layout = torch.strided,
        pin_memory: bool | None = None,
        empty_lazy: bool = False,
    ) -> Self:
        """A collection of this structure and another batch size, not initialised.

        Takes the same arguments as :meth:`new_zeros`.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3, 2), batch_size=[3])
            >>> td.new_empty(7)["a"].shape
            torch.Size([7, 2])
        """
        options = _options(dtype, device, requires_grad, layout, pin_memory)
        return self._new_leaves("new_empty", size, (), options, device, empty_lazy)

    def new_full(
        self,
        size: object,
        fill_value: object,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | _NoDefault | None = NO_DEFAULT,
        requires_grad: bool = False,
        layout: torch.layout = torch.strided,
        pin_memory: bool | None = None,
        empty_lazy: bool = False,
    ) -> Self:
        """A collection of this structure and another batch size, filled with a value.

        Takes the same arguments as :meth:`new_zeros`, the batch size as one argument,
        and ``fill_value``, a number.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3, 2), batch_size=[3])
            >>> td.new_full([1], 2.0)["a"]
            tensor([[2., 2.]])
        """
        options = _options(dtype, device, requires_grad, layout, pin_memory)
        return self._new_leaves(
            "new_full", (size,), (fill_value,), options, device, empty_lazy
        )

    def _new_leaves(
        self,
        method: str,
        size: tuple[Any, ...],
        args: tuple[Any, ...],
        options: dict[str, Any],
        device: torch.device | str | int | None,
        empty_lazy: bool = False,
    ) -> Self:
        if len(size) == 1 and not isinstance(size[0], (int, np.integer, torch.SymInt)):
            size = tuple(size[0])
        prefix = torch.Size([int(n) if isinstance(n, np.integer) else n for n in size])

        if options:
            op: Any = functools.partial(getattr(torch.Tensor, method), **options)
        else:
            op = method
        # With another number of dims, none is known to be one of those with a name.
        ndim = len(prefix)
        dims = tuple(range(ndim)) if ndim == len(self.batch_size) else (-1,) * ndim
        result = map_leaves(self, op, (prefix, *args), prefix, dims, SHAPE_TAIL)
        if device is not NO_DEFAULT:
            _set_device(result, device)
        return result

    def new_tensor(
        self,
        data: Any,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | _NoDefault | None = NO_DEFAULT,
        requires_grad: bool = False,
        pin_memory: bool | None = None,
    ) -> Self:
        """A collection of this structure whose leaves are copies of ``data``.

        Args:
            data: a number, a sequence, an array or a tensor, whose shape is the batch
                size and the shape of every leaf of the result; or a collection with an
                entry for each leaf, whose batch size is that of the result.
            dtype: the dtype of all leaves. Default: that of the leaf of this tensordict.
            device: the device of all leaves. Default: that of the leaf.
            requires_grad: whether the leaves require gradients.
            pin_memory: whether the leaves are in pinned memory.

        Raises:
            KeyError: ``data`` is a collection that lacks an entry of this one.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3, 2), batch_size=[3])
            >>> td.new_tensor([1, 2])["a"]
            tensor([1., 2.])
        """
        options = _options(dtype, device, requires_grad, torch.strided, pin_memory)
        if isinstance(data, CollectionProtocol):
            result = self._new_tensors_from(data, options)
            _set_device(result, data.device if device is NO_DEFAULT else device)
            return result
        size = data.shape if isinstance(data, torch.Tensor) else np.shape(data)

        def op(leaf: torch.Tensor) -> torch.Tensor:
            return leaf.new_tensor(data, **options)

        prefix = torch.Size(size)
        result = self._resized(op, prefix)
        if device is NO_DEFAULT:
            device = self.device
            if device is None:
                found = _rust.leaves(result)
                device = found[0].device if found else torch.device("cpu")
        _set_device(result, device)
        return result

    def _resized(self, op: Any, size: torch.Size) -> Self:
        """The leaves that ``op`` gives, all collections of one batch size, no names."""
        entries = {}
        for key, value in list(self._entries().items()):
            if isinstance(value, CollectionProtocol):
                entries[key] = value._resized(op, size)
            else:
                entries[key] = mapped(value, op, (), size)
        return _rust.new(self._dense_type(), entries, size, None, None)

    def _new_tensors_from(self, data: Any, options: dict[str, Any]) -> Self:
        entries = {}
        for key, value in list(self._entries().items()):
            source = _rust.get(data, key)
            if isinstance(value, CollectionProtocol):
                entries[key] = value._new_tensors_from(source, options)
            else:
                op = functools.partial(torch.Tensor.new_tensor, data=source, **options)
                entries[key] = mapped(value, op, (), data.batch_size)
        return _rust.new(self._dense_type(), entries, data.batch_size, None, None)

    # Variations ------------------------------------------------------------------

    def replace(self, *args: object, **kwargs: object) -> Self:
        """A copy that shares the leaves, with some entries exchanged.

        Args:
            *args: one mapping or collection of new entries. As in :meth:`update`, the
                entries of nested mappings are merged.
            **kwargs: new entries by name, after those of the mapping.

        Returns:
            A new collection; this one where there is nothing to replace.

        Raises:
            RuntimeError: there is more than one mapping, or it is none, or an entry
                does not have the batch size as its leading dims.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3), b=torch.zeros(3), batch_size=[3])
            >>> new = td.replace(a=torch.ones(3))
            >>> new["a"], new["b"] is td["b"]
            (tensor([1., 1., 1.]), True)
        """
        changes = replacements(args, kwargs)
        if not changes:
            return self
        result = clone_structure(self)
        if not result._is_dense and self._writes_through():
            # A view's copy is a view of the same parent: writing the new entries into
            # it would write into the parent.
            result = self._as_plain()
        result.update(changes)
        return result

    def _as_plain(self) -> Any:
        """A dense collection with the same leaves, not copied."""
        entries = {}
        for key, value in list(self.items()):
            if isinstance(value, CollectionProtocol):
                value = value._as_plain()
            entries[key] = value
        names = self._td_dim_names
        return _rust.new(
            self._dense_type(),
            entries,
            self.batch_size,
            self.device,
            None if names is None else list(names),
        )

    def create_nested(self, key: NestedKeyLike) -> Self:
        """Put an empty collection at ``key``, in place of what is there.

        The tensordicts on the way are made where they are missing. The new one has the
        batch size, device, names and type of the one that holds it.

        Raises:
            IndexError: ``key`` is no nested key.
            RuntimeError: the tensordict that is written to is locked.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3), batch_size=[3])
            >>> td.create_nested(("n", "m"))["n", "m"].batch_size
            torch.Size([3])
        """
        path = _rust.unravel_key_to_tuple(key)
        if not path:
            if self.is_locked:
                raise locked_error(self)
            raise IndexError(MSG_BAD_KEY.format(key))
        parent: Any = self
        depth = 0
        for part in path[:-1]:
            # Replaced entries are not read: the leaves of a ragged stack cannot be.
            if not isinstance(parent._sample_entry(part), CollectionProtocol):
                break
            parent = parent._get_entry(part, None)
            depth += 1
        if parent.is_locked:
            raise locked_error(parent)
        made = parent.empty()
        for part in reversed(path[depth + 1 :]):
            outer = made.empty()
            outer._set_entry(part, made)
            made = outer
        _rust.set_entry(parent, path[depth], made)
        return self


def _options(
    dtype: object,
    device: object,
    requires_grad: bool,
    layout: object,
    pin_memory: object,
) -> dict[str, Any]:
    """The arguments of a torch factory that are not its defaults."""
    options = {}
    if dtype is not None:
        options["dtype"] = dtype
    if device is not NO_DEFAULT and device is not None:
        options["device"] = device
    if requires_grad:
        options["requires_grad"] = True
    if layout is not torch.strided:
        options["layout"] = layout
    if pin_memory:
        options["pin_memory"] = True
    return options


def _set_device(
    td: CollectionProtocol, device: torch.device | str | int | None
) -> None:
    """Write the device of new collections whose leaves are there already."""
    device = None if device is None else torch.device(device)
    for collection in _rust.containers(td):
        collection._device = device


def replacements(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The new entries that the arguments of ``replace`` name; a lone value as it is.

    Raises:
        RuntimeError: there is more than one mapping, or it is none.
    """
    if len(args) > 1:
        raise RuntimeError(MSG_REPLACE_ARGUMENTS.format(len(args)))
    changes: dict[Any, Any] = {}
    for source in args:
        if not isinstance(source, (Mapping, CollectionProtocol)):
            raise RuntimeError(MSG_REPLACE_TYPE.format(type(source)))
        if holds_values(source):
            return source
        if isinstance(source, CollectionProtocol) and source.is_empty() and not kwargs:
            return {}
        changes.update(source.items())
    changes.update(kwargs)
    return changes
