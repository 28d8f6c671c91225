"""Copies of a tensordict, and new tensordicts of the same structure."""

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
from tensordict.primitives.errors import MSG_BAD_KEY, locked_error
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol, _NoDefault
from tensordict.primitives.special import mapped

if TYPE_CHECKING:
    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["CopyingOps", "replacements"]

SHAPE_TAIL = 1
"""Makes :func:`_rust.map_leaves` append the leaf's feature dims to a shape argument."""

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
    """Copies of a tensordict, and new tensordicts of the same structure."""

    # Copies ----------------------------------------------------------------------

    def clone(self, recurse: bool = True, **kwargs: object) -> Self:
        """Copy this tensordict.

        The copy is unlocked, and its nested tensordicts are new.

        Args:
            recurse: copy the leaves too, as :meth:`torch.Tensor.clone` does (gradients
                flow through). If False, the copy shares the leaves.
            **kwargs: not allowed.

        Returns:
            A tensordict of the same type, batch size, device and names. With
            ``recurse``, a copy of a view is a plain tensordict.

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
        """Copy the structure and share the leaves, as ``clone(recurse=False)``.

        Examples:
            >>> td = TensorDict(a=torch.zeros(3), batch_size=[3])
            >>> td.copy()["a"] is td["a"]
            True
        """
        return self.clone(False)

    def __copy__(self) -> Self:
        """Make new tensordicts around the same leaves, for :func:`copy.copy`."""
        return self.clone(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Clone every leaf, for :func:`copy.deepcopy`; gradients flow through."""
        return self.clone()

    # Empty and new tensordicts ---------------------------------------------------

    def empty(
        self,
        recurse: bool = False,
        *,
        batch_size: Sequence[int] | None = None,
        device: torch.device | str | int | _NoDefault | None = NO_DEFAULT,
        names: Sequence[str | None] | _NoDefault | None = NO_DEFAULT,
    ) -> Self:
        """Return a tensordict like this one without leaves, unlocked.

        Args:
            recurse: keep the nested tensordicts, empty too.
            batch_size: another batch size. Nested tensordicts keep theirs.
            device: another device, or None for no device.
            names: other names, or None for no names. Default: the names of the batch
                dimensions that remain.

        Raises:
            RuntimeError: ``recurse`` is True, and ``batch_size`` is not a prefix of the
                batch size of a nested tensordict that contains entries.
            ValueError: the number of names is not the number of batch dimensions.

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
                # The sample may come from a larger tensordict, so read the entry here.
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
        """Return the type of dense tensordicts that are made from this one."""
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
        """Return a tensordict with these keys and another batch size, full of zeros.

        Leaves go from ``[*B, *F]`` to ``[*size, *F]``, as with
        :meth:`torch.Tensor.new_zeros`. Names are kept if the number of batch dimensions
        is the same.

        Args:
            *size: the new batch size, as numbers or one sequence.
            dtype: the dtype of all leaves. Default: each leaf keeps its dtype.
            device: the device of all leaves. Default: each leaf keeps its device.
            requires_grad: whether the new leaves require grad.
            layout: the torch layout of the new leaves.
            pin_memory: allocate the new leaves in pinned memory.
            empty_lazy: for a lazy stack, return a lazy stack of empty members.

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
        """Return a tensordict with these keys and another batch size, full of ones.

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
        """Return a tensordict with these keys and another batch size, uninitialized.

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
        """Return a tensordict with these keys and another batch size, full of a value.

        Takes the arguments of :meth:`new_zeros`, but the batch size is one argument,
        and the number ``fill_value`` follows it.

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
        # If the number of dims changes, no new dim can take an old name.
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
        """Return a tensordict with these keys whose leaves are copies of ``data``.

        Args:
            data: a number, sequence, array or tensor; its shape becomes the batch size
                and the shape of every leaf. Or a tensordict with an entry for each
                leaf; its batch size becomes the batch size of the result.
            dtype: the dtype of all leaves. Default: the dtype of the present leaf.
            device: the device of all leaves. Default: the device of the present leaf.
            requires_grad: whether the new leaves require grad.
            pin_memory: allocate the new leaves in pinned memory.

        Raises:
            KeyError: ``data`` is a tensordict that lacks an entry of this one.

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
        """Replace each leaf by the result of ``op``; set all batch sizes to ``size``."""
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
        """Return a copy that shares the leaves, with some entries replaced.

        Args:
            *args: one mapping or tensordict of new entries. As in :meth:`update`, the
                entries of nested mappings are merged.
            **kwargs: new entries by name; they come after those of the mapping.

        Returns:
            A new tensordict; this tensordict if there is nothing to replace.

        Raises:
            RuntimeError: more than one positional argument was passed, or it is no
                mapping; or an entry does not have the batch size as its leading
                dimensions.

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
        """Return a dense tensordict that shares the leaves."""
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
        """Put an empty tensordict at ``key``, replacing an entry there.

        Missing levels are created. The new tensordict has the batch size, device, names
        and type of the tensordict that contains it.

        Raises:
            IndexError: ``key`` is no nested key.
            RuntimeError: the tensordict that takes the new entry is locked.

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
            # Look at a sample of the entry: the leaves of a ragged stack cannot be
            # read.
            if not isinstance(parent._sample_entry(part), CollectionProtocol):
                break
            parent = parent._get_entry(part, None)
            depth += 1
        if parent.is_locked:
            raise locked_error(parent)
        nested = parent.empty()
        for part in reversed(path[depth + 1 :]):
            outer = nested.empty()
            outer._set_entry(part, nested)
            nested = outer
        _rust.set_entry(parent, path[depth], nested)
        return self


def _options(
    dtype: object,
    device: object,
    requires_grad: bool,
    layout: object,
    pin_memory: object,
) -> dict[str, Any]:
    """Return the arguments of a torch factory that differ from its defaults."""
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
    """Set the device attribute of new tensordicts whose leaves are already there."""
    device = None if device is None else torch.device(device)
    for collection in _rust.containers(td):
        collection._device = device


def replacements(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the new entries that the arguments of ``replace`` name.

    A single piece of non-tensor data is returned as it is.

    Raises:
        RuntimeError: there is more than one argument, or it is no mapping.
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
