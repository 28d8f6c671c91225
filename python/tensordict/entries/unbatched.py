"""A tensor that the elements of a collection share: it has no batch dims.

Pickles name the class as ``tensordict._unbatched.UnbatchedTensor``.
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
    """A tensor that an entry of a collection holds whole, whatever the batch size.

    All elements of the collection share it, so its shape need not begin with the batch
    size. What changes the batch size (an index, a view, a reduction, a stack) leaves the
    data as it is, shared with the original; what changes values (arithmetic, `to`,
    `apply`) changes it as any leaf. On its own it is an ordinary tensor, and what torch
    makes of it is unbatched, too.

    A collection stores a wrapper of its own around the same data, with the collection's
    batch size.

    Args:
        data (torch.Tensor): the data, shared; anything else is made a tensor.
        batch_size (sequence of int, optional): that of the collection it belongs to,
            which sets it when the tensor is stored. Defaults to that of ``data`` where
            it is unbatched already, otherwise to no dims.

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

    # Set on the instance wherever it is not this.
    _batch_size: torch.Size = _NO_DIMS

    def __new__(cls, data: object, batch_size: Sequence[int] | None = None) -> Self:
        """The wrapper around ``data``."""
        if not isinstance(data, torch.Tensor):
            data = as_tensor(data)
        if batch_size is None:
            size = data._batch_size if isinstance(data, cls) else _NO_DIMS
        else:
            size = torch.Size(batch_size)
        made: Self = _wrap(data, size)
        return made

    @property
    def batch_size(self) -> torch.Size:
        """The batch size of the collection that this belongs to."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, size: Sequence[int]) -> None:
        self._batch_size = torch.Size(size)

    @property
    def _data(self) -> torch.Tensor:
        """The data as a plain tensor, shared."""
        return _bare(self)

    def _with_batch_size(self, size: torch.Size) -> Self:
        """The same data in a collection of batch size ``size``."""
        return _wrap(self, size)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call torch, and make the tensors among its results unbatched."""
        kwargs = kwargs or {}
        with _BARE():
            result = func(*args, **kwargs)
        if func in torch.overrides.get_default_nowrap_functions():
            return result
        if isinstance(result, torch.Tensor):
            # The result of most calls: it need not be looked at more closely.
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
        # A result of torch with names for its items.
        return type(result)(items)

    def copy(self) -> Self:
        """A copy: :meth:`torch.Tensor.clone`."""
        copied: Any = self.clone()
        return copied

    def detach_(self) -> Self:
        """Take it out of the graph, in place: see :meth:`torch.Tensor.detach_`."""
        # It is a view of the data, and torch detaches none: a leaf is detached as it is.
        detached: Any = (
            self.requires_grad_(False) if self.is_leaf else super().detach_()
        )
        return detached

    def item(self) -> Any:
        """The value of the only element, as a Python number."""
        return self._data.item()

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        return self._data.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """The data as an array: see :meth:`torch.Tensor.numpy`."""
        return self._data.numpy(force=force)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy of the data, with the same batch size."""
        if id(self) in memo:
            return memo[id(self)]
        made = type(self)(deepcopy(self._data, memo), self._batch_size)
        memo[id(self)] = made
        return made

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Pickle the data and the batch size."""
        return type(self), (self._data, self._batch_size)

    def __repr__(  # type: ignore[override]
        self, *, tensor_contents: object = None
    ) -> str:
        """The data's text in the name of the class."""
        return f"{type(self).__name__}({self._data!r})"

    def __str__(self) -> str:
        """The data's text."""
        return str(self._data)

    def __format__(self, spec: str) -> str:
        """The data as ``spec`` says."""
        return format(self._data, spec)


def _wrap(data: torch.Tensor, size: torch.Size) -> Any:
    """An unbatched alias of a tensor."""
    with _BARE():
        # Dynamo knows the class by its name alone, not as the type of something.
        made = data.as_subclass(UnbatchedTensor)
    made._batch_size = size
    return made


def _bare(data: torch.Tensor) -> torch.Tensor:
    """A plain alias of an unbatched tensor."""
    with _BARE():
        return data.as_subclass(torch.Tensor)


def _batch_size_of(arguments: object) -> torch.Size:
    """The first batch size with dims of the unbatched tensors in nested sequences."""
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
    """The kind of :class:`UnbatchedTensor`: all elements share it, whatever their number."""

    name = "unbatched"
    cls: type[torch.Tensor] | None = UnbatchedTensor
    is_shared = True
    in_files: Literal["tensor", "state", "refused"] = "refused"

    def leading_shape(self, entry: Any) -> None:
        """No dim is a batch dim: any batch size fits."""
        return

    def fits(self, entry: Any, size: torch.Size) -> bool:
        """Any batch size fits."""
        _ = entry, size
        return True

    def resized(self, entry: Any, size: torch.Size) -> Any:
        """Give the same data in a collection of batch size ``size``."""
        return entry._with_batch_size(size)

    def at(self, entry: Any, index: Any, size: torch.Size) -> Any:
        """Give the same data: an index of the elements is none of it."""
        return entry._with_batch_size(size)

    def check_write(
        self, entry: Any, value: Any, index: Any, size: torch.Size, k: int
    ) -> None:
        """Raise where ``value`` cannot be written into all of the data."""
        _ = index, size, k
        check_fits(value, entry, _NO_DIMS, 0)

    def write_at(self, entry: Any, index: Any, value: Any) -> None:
        """Write a value into all of the data, which all elements share."""
        _ = index
        entry[...] = value

    def split(
        self,
        entry: Any,
        op: str | Callable[..., Any],
        args: tuple[Any, ...],
        sizes: Sequence[torch.Size],
    ) -> Sequence[Any]:
        """Give all of the data to each part."""
        _ = op, args
        return [entry._with_batch_size(size) for size in sizes]

    def joined(
        self,
        group: Sequence[Any],
        dim: int,
        size: torch.Size | None,
        join: Callable[..., Any],
    ) -> Any:
        """Keep the data of the first if all are unbatched; join them as tensors if not.

        Raises:
            RuntimeError: the shapes of those that are shared differ.
        """
        whole = [isinstance(item, UnbatchedTensor) for item in group]
        if not all(whole):
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
            own = first._batch_size
            size = torch.Size([*own[:dim], len(group), *own[dim:]])
        return first._with_batch_size(size)

    def like(self, entry: Any, result: Any) -> Any:
        """Make a plain result unbatched, with the batch size of its source."""
        return _wrap(result, entry._batch_size)

    def plain(self, entry: Any) -> torch.Tensor:
        """Give the data as a plain tensor."""
        return _bare(entry)

    def of_plain(self, data: torch.Tensor, size: torch.Size) -> Any:
        """Make data unbatched, in a collection of batch size ``size``."""
        return UnbatchedTensor(data, size)


UnbatchedTensor.__module__ = "tensordict._unbatched"
