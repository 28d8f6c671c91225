"""A tensor that all rows of a collection share: it has no batch dims.

Pickles refer to the class as ``tensordict._unbatched.UnbatchedTensor``.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal, Self

import torch

from tensordict.primitives.arrays import as_tensor
from tensordict.primitives.special import EntryKind, check_fits, results_as_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Unbatched", "UnbatchedTensor"]

_NO_DIMS = torch.Size([])
_BARE = torch._C.DisableTorchFunctionSubclass


class UnbatchedTensor(torch.Tensor):
    """A tensor that a collection stores without batch dims, whatever its batch size.

    All rows of the collection share the tensor, so its shape need not begin with the
    batch size. Operations that change the batch size (an index, a view, a reduction, a
    stack) return the same data, shared with the original. Operations that change values
    (arithmetic, `to`, `apply`) change it like any leaf. Outside of a collection it is
    an ordinary tensor, and the tensors that torch computes from it are unbatched too.

    A collection stores a new wrapper around the same data, with the collection's batch
    size.

    Args:
        data (torch.Tensor): the data, which is shared. Other data is converted to a
            tensor.
        batch_size (sequence of int, optional): the batch size of the collection that
            holds the tensor. The collection sets it when it stores the tensor. Default:
            the batch size of ``data`` if that is an unbatched tensor, otherwise ``[]``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, UnbatchedTensor
        >>> td = TensorDict(
        ...     {"x": torch.zeros(3, 2), "scale": UnbatchedTensor(torch.ones(4))},
        ...     batch_size=[3],
        ... )
        >>> td["scale"].batch_size
        torch.Size([3])
        >>> td[0]["scale"]
        UnbatchedTensor(tensor([1., 1., 1., 1.]))
        >>> td[0]["scale"].batch_size
        torch.Size([])
    """

    # A class default; `_wrap` sets the attribute on the instance.
    _batch_size: torch.Size = _NO_DIMS

    def __new__(cls, data: object, batch_size: Sequence[int] | None = None) -> Self:
        """Make a wrapper around ``data``."""
        if not isinstance(data, torch.Tensor):
            data = as_tensor(data)
        if batch_size is None:
            size = data._batch_size if isinstance(data, cls) else _NO_DIMS
        else:
            size = torch.Size(batch_size)
        wrapper: Self = _wrap(data, size)
        return wrapper

    @property
    def batch_size(self) -> torch.Size:
        """The batch size of the collection that holds this tensor."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, size: Sequence[int]) -> None:
        self._batch_size = torch.Size(size)

    @property
    def _data(self) -> torch.Tensor:
        """The data as a plain tensor that shares memory."""
        return _bare(self)

    def _with_batch_size(self, size: torch.Size) -> Self:
        """Return the same data with the batch size ``size``."""
        return _wrap(self, size)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call torch, and make the tensors in its result unbatched."""
        kwargs = kwargs or {}
        with _BARE():
            result = func(*args, **kwargs)
        if func in torch.overrides.get_default_nowrap_functions():
            return result
        if isinstance(result, torch.Tensor):
            # Most calls return one tensor, which needs no closer look.
            if kwargs.get("out") is not None or type(result) is not torch.Tensor:
                return result
            return _wrap(result, _batch_size_of((args, kwargs)))
        if not isinstance(result, (list, tuple)):
            return result
        if args and isinstance(args[0], (list, tuple)) and len(args[0]) == len(result):
            items = results_as_sources(result, args[0])
        else:
            size = _batch_size_of((args, kwargs))
            items = [
                _wrap(item, size) if type(item) is torch.Tensor else item
                for item in result
            ]
        if type(result) in (list, tuple):
            return type(result)(items)
        # A named tuple of torch, such as `torch.return_types.max`.
        return type(result)(items)

    def copy(self) -> Self:
        """Return a copy: :meth:`torch.Tensor.clone`."""
        copied: Any = self.clone()
        return copied

    def detach_(self) -> Self:
        """Detach this tensor in place: see :meth:`torch.Tensor.detach_`."""
        # The wrapper is a view of the data, and torch refuses to detach views in place.
        # A leaf of the graph is detached by clearing `requires_grad`.
        detached: Any = (
            self.requires_grad_(False) if self.is_leaf else super().detach_()
        )
        return detached

    def item(self) -> Any:
        """Return the value of the only element, as a Python number."""
        return self._data.item()

    def tolist(self) -> list[Any]:
        """Return the values as nested lists of Python numbers."""
        return self._data.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return the data as an array: see :meth:`torch.Tensor.numpy`."""
        return self._data.numpy(force=force)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy of the data, with the same batch size."""
        if id(self) in memo:
            return memo[id(self)]
        copied = type(self)(deepcopy(self._data, memo), self._batch_size)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Pickle the data and the batch size."""
        return type(self), (self._data, self._batch_size)

    def __repr__(  # type: ignore[override]
        self, *, tensor_contents: object = None
    ) -> str:
        """Return the text of the data, with the name of the class."""
        return f"{type(self).__name__}({self._data!r})"

    def __str__(self) -> str:
        """Return the text of the data."""
        return str(self._data)

    def __format__(self, spec: str) -> str:
        """Format the data by ``spec``."""
        return format(self._data, spec)


def _wrap(data: torch.Tensor, size: torch.Size) -> Any:
    """Return an unbatched tensor that shares the memory of ``data``."""
    with _BARE():
        # Dynamo knows the class by this name only, not as the value of a variable.
        wrapper = data.as_subclass(UnbatchedTensor)
    wrapper._batch_size = size
    return wrapper


def _bare(data: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor that shares the memory of an unbatched tensor."""
    with _BARE():
        return data.as_subclass(torch.Tensor)


def _batch_size_of(arguments: object) -> torch.Size:
    """Return the first non-empty batch size of unbatched tensors among arguments."""
    if isinstance(arguments, UnbatchedTensor):
        return arguments._batch_size
    if isinstance(arguments, dict):
        arguments = list(arguments.values())
    elif not isinstance(arguments, (list, tuple)):
        return _NO_DIMS
    for item in arguments:
        size = _batch_size_of(item)
        if size:
            return size
    return _NO_DIMS


class Unbatched(EntryKind):
    """The kind of :class:`UnbatchedTensor`: all rows share the data."""

    name = "unbatched"
    cls: type[torch.Tensor] | None = UnbatchedTensor
    is_shared = True
    in_files: Literal["tensor", "state", "refused"] = "refused"

    def leading_shape(self, entry: Any) -> None:
        """Return None: no dim is a batch dim, so any batch size fits."""
        return

    def fits(self, entry: Any, size: torch.Size) -> bool:
        """Return True: any batch size fits."""
        _ = entry, size
        return True

    def resized(self, entry: Any, size: torch.Size) -> Any:
        """Return the same data with the batch size ``size``."""
        return entry._with_batch_size(size)

    def at(self, entry: Any, index: Any, size: torch.Size) -> Any:
        """Return the same data: an index of rows does not apply to it."""
        return entry._with_batch_size(size)

    def check_write(
        self, entry: Any, value: Any, index: Any, size: torch.Size, k: int
    ) -> None:
        """Raise an error if ``value`` cannot be written into all of the data."""
        _ = index, size, k
        check_fits(value, entry, _NO_DIMS, 0)

    def write_at(self, entry: Any, index: Any, value: Any) -> None:
        """Write a value into all of the data, which all rows share."""
        _ = index
        entry[...] = value

    def split(
        self,
        entry: Any,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        sizes: Sequence[torch.Size],
    ) -> Sequence[Any]:
        """Return all of the data for each part."""
        _ = op, args
        return [entry._with_batch_size(size) for size in sizes]

    def joined(
        self,
        group: Sequence[Any],
        dim: int,
        size: torch.Size | None,
        join: Callable[..., Any],
    ) -> Any:
        """Keep the first entry's data if all are unbatched, else join as tensors.

        Raises:
            RuntimeError: all entries are unbatched and their shapes differ.
        """
        are_unbatched = [isinstance(item, UnbatchedTensor) for item in group]
        if not all(are_unbatched):
            tensors = [
                item._data if isinstance(item, UnbatchedTensor) else item
                for item in group
            ]
            return join(tensors, dim)
        first = group[0]
        for item in group:
            if item.shape != first.shape:
                msg = (
                    f"the shapes {item.shape} and {first.shape} of a shared tensor "
                    "differ."
                )
                raise RuntimeError(msg)
        if size is None:
            old_size = first._batch_size
            size = torch.Size([*old_size[:dim], len(group), *old_size[dim:]])
        return first._with_batch_size(size)

    def like(self, entry: Any, result: Any) -> UnbatchedTensor:
        """Make a plain result unbatched, with the batch size of its source."""
        return _wrap(result, entry._batch_size)

    def plain(self, entry: Any) -> torch.Tensor:
        """Return the data as a plain tensor."""
        return _bare(entry)

    def of_plain(self, data: torch.Tensor, size: torch.Size) -> UnbatchedTensor:
        """Make data unbatched, with the batch size ``size``."""
        return UnbatchedTensor(data, size)


UnbatchedTensor.__module__ = "tensordict._unbatched"
