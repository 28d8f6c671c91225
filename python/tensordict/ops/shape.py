"""Changes of the batch size that keep all elements: views, permutations, expansions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast
from weakref import ref

import numpy as np
import torch

from tensordict import _rust
from tensordict._rust import map_leaves, permute, view_shape
from tensordict.ops.rearranging import RearrangingOps
from tensordict.ops.splitting import SplittingOps
from tensordict.primitives import classes
from tensordict.primitives import options as options_primitives
from tensordict.primitives.common import MSG_BATCH_MISMATCH, as_size
from tensordict.primitives.dim_numbers import batch_dim
from tensordict.primitives.dims import remember
from tensordict.primitives.protocol import NO_DEFAULT, CollectionProtocol
from tensordict.primitives.special import fits, mapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict.containers.collection import TensorCollection

__all__ = ["ShapeOps"]

MSG_EXPAND_NDIM = (
    "the number of sizes provided ({}) must be greater or equal to the number of "
    "dimensions in the TensorDict ({})"
)
MSG_EXPAND_SHAPE = (
    "Incompatible expanded shape: The expanded shape length at non-singleton dimension "
    "should be same as the original length. target_shape = {}, existing_shape = {}"
)
MSG_EXPAND_LEADING = (
    "The expanded size of the tensor ({}) isn't allowed in a leading, non-existing "
    "dimension {}"
)
MSG_UNFLATTEN = (
    "unflatten: Provided sizes {} don't multiply up to the size of dim {} ({}) in the "
    "input tensor"
)
MSG_DIMS_ARGUMENTS = (
    "Either the kwarg `dims`, a single shape argument or a sequence of integers can be "
    "passed. Got args={} and kwargs={}."
)
MSG_EXPAND_TYPE = (
    "expand() takes numbers, or one sequence of numbers: the shape is {!r}."
)
MSG_SHAPE_ARGUMENTS = (
    "Either the kwarg `size`, a single shape argument or a sequence of integers can be "
    "passed. Got args={} and kwargs={}."
)

NO_TAIL, SHAPE_TAIL = 0, 1


class ShapeOps(SplittingOps, RearrangingOps):
    """Changes of the batch size that keep all elements.

    Each method changes the batch dimensions ``[*B]`` only; the feature dimensions
    ``*F`` of a leaf stay behind them. The result of a locked tensordict is locked. The
    leaves of the result are views if torch gives a view. Most of these methods work in
    a ``with``
    statement: at its end, changes of the result are written back.
    """

    # Any shape -------------------------------------------------------------------

    def view(
        self,
        *shape: int | Sequence[int] | torch.dtype,
        size: list[int] | tuple[int, ...] | torch.Size | None = None,
        batch_size: torch.Size | None = None,
    ) -> Self:
        """View every leaf with another batch size, as :meth:`torch.Tensor.view`.

        Leaves go from ``[*B, *F]`` to ``[*shape, *F]``. Names are dropped. If the shape
        is the present one, this tensordict itself is returned.

        Args:
            *shape: the new batch size, as numbers or one sequence; -1 is inferred. Or a
                dtype to view the leaves as.
            size: the new batch size as a keyword.
            batch_size: with a dtype, the batch size of the result and of its nested
                tensordicts. Default: the present ones. Not used with a shape.

        Raises:
            RuntimeError: the number of elements differs, or a leaf cannot be viewed in
                this shape: use :meth:`reshape`.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(4, 6, 5)}, batch_size=[4, 6])
            >>> td.view(-1).batch_size
            torch.Size([24])
            >>> td.view(2, 12)["a"].shape
            torch.Size([2, 12, 5])
        """
        # An attribute costs less to compile than a property.
        old = self._batch_size if self._is_dense else self.batch_size
        asked: Any = shape
        if size and not (len(shape) == 1 and isinstance(shape[0], torch.dtype)):
            asked = size
        new = view_shape(old, asked)
        if new is None:
            (dtype,) = cast("tuple[torch.dtype]", shape)
            if batch_size is None:
                return self._view_dtype(dtype)
            viewed = _viewed_as(self, dtype, as_size(batch_size))
            return remember(self, viewed, "view", shape, {})
        result = self
        if new != old:
            if options_primitives._lazy_legacy:
                result = _lazily(self, "view", {"size": new})
            else:
                result = map_leaves(
                    self, "view", (new,), new, None, SHAPE_TAIL, True, -1
                )
                if self._is_locked and (self._is_memmap or self._is_shared):
                    _rust.keep_storage(self, result)
        kwargs: dict[str, Any] = {}
        if size is not None or not shape:
            given = {"size": size, "batch_size": batch_size}
            kwargs = {name: each for name, each in given.items() if each is not None}
        result._last_op = ("view", shape, kwargs, ref(self))
        return result

    def _view_dtype(self, dtype: torch.dtype) -> Self:
        result = map_leaves(self, "view", (dtype,), None, True, NO_TAIL, False, -1)
        _check_leading(result)
        return remember(self, result, "view", (dtype,), {})

    def reshape(self, *args: object, **kwargs: object) -> Self:
        """Reshape every leaf to another batch size, copying only if needed.

        As :meth:`torch.Tensor.reshape`. Leaves go from ``[*B, *F]`` to ``[*shape,
        *F]``. Names are dropped. If the shape is the present one, this tensordict
        itself is returned.

        Args:
            *args: the new batch size, as numbers or one sequence; -1 is inferred.
            **kwargs: ``size``, the new batch size as a keyword, and ``inplace``: store
                the new leaves in this tensordict and return it.

        Raises:
            RuntimeError: the number of elements differs; or ``inplace`` is True and the
                tensordict is locked.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(4, 6)}, batch_size=[4, 6])
            >>> td.permute(1, 0).reshape(-1).batch_size
            torch.Size([24])
        """
        # An attribute costs less to compile than a property.
        old = self._batch_size if self._is_dense else self.batch_size
        inplace = bool(kwargs) and kwargs.pop("inplace", False)
        new = view_shape(old, _shape_argument(args, kwargs) if kwargs else args)
        if new == old:
            return self
        if new is None:
            raise TypeError(MSG_SHAPE_ARGUMENTS.format(args, kwargs))
        result = map_leaves(self, "reshape", (new,), new, None, SHAPE_TAIL, True, -1)
        return self._replace_content(result) if inplace else result

    # Order of dims ---------------------------------------------------------------

    def permute(self, *args: object, **kwargs: object) -> Self:
        """Reorder the batch dimensions, as :meth:`torch.Tensor.permute`.

        Leaves are views, and names are reordered. If the order is the present one, this
        tensordict itself is returned.

        Args:
            *args: for each new place the old dimension, as numbers or one sequence.
                Trailing dimensions that stay in place can be left out.
            **kwargs: ``dims``, the order as a keyword.

        Raises:
            ValueError: the dimensions are no permutation of the batch dimensions.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 4, 5)}, [3, 4], names=["x", "y"])
            >>> td.permute(1, 0)["a"].shape
            torch.Size([4, 3, 5])
            >>> td.permute(1, 0).names
            ['y', 'x']
        """
        if kwargs and (args or len(kwargs) > 1 or "dims" not in kwargs):
            raise TypeError(MSG_DIMS_ARGUMENTS.format(args, kwargs))
        if args:
            is_one = len(args) != 1 or isinstance(args[0], (int, str, float))
            dims = args if is_one else args[0]
        else:
            dims = kwargs.get("dims", ())
        if options_primitives._lazy_legacy:
            return _permuted_lazily(self, dims)
        return permute(self, dims, ("permute", args, kwargs))

    def transpose(self, dim0: int, dim1: int) -> Self:
        """Swap two batch dimensions, as :meth:`torch.Tensor.transpose`.

        Leaves are views, and names are swapped. If both dimensions are the same, this
        tensordict itself is returned.

        Raises:
            ValueError: a dimension is no batch dimension.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 4, 5)}, batch_size=[3, 4])
            >>> td.transpose(0, 1)["a"].shape
            torch.Size([4, 3, 5])
        """
        if options_primitives._lazy_legacy:
            return _transposed_lazily(self, dim0, dim1)
        return _rust.transpose(self, dim0, dim1, ("transpose", (dim0, dim1), {}))

    def swapaxes(self, axis0: int, axis1: int) -> Self:
        """Swap two batch dimensions: see :meth:`transpose`."""
        if options_primitives._lazy_legacy:
            return _transposed_lazily(self, axis0, axis1)
        return _rust.transpose(self, axis0, axis1, ("swapaxes", (axis0, axis1), {}))

    swapdims = swapaxes

    def movedim(
        self, source: int | tuple[int, ...], destination: int | tuple[int, ...]
    ) -> Self:
        """Move batch dimensions to other places, as :meth:`torch.Tensor.movedim`.

        Raises:
            IndexError: a dimension is no batch dimension.
            RuntimeError: a dimension is passed twice.
            ValueError: the numbers of sources and destinations differ.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(2, 3, 4)}, batch_size=[2, 3, 4])
            >>> td.movedim(0, 2).batch_size
            torch.Size([3, 4, 2])
        """
        call: Any = ("movedim", (source, destination), {})
        return _rust.movedim(self, source, destination, call)

    moveaxis = movedim

    # Dims of size one ------------------------------------------------------------

    def squeeze(self, *args: Any, **kwargs: Any) -> Self:
        """Remove batch dimensions of size 1, as :meth:`torch.Tensor.squeeze`.

        Args:
            *args: ``dim``, the dimension to remove. Default: all dimensions of size 1.
                If its size is not 1, this tensordict itself is returned.
            **kwargs: ``dim`` as a keyword.

        Raises:
            IndexError: ``dim`` is no batch dimension.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(1, 3, 1)}, batch_size=[1, 3, 1])
            >>> td.squeeze().batch_size
            torch.Size([3])
            >>> td.squeeze(0).batch_size
            torch.Size([3, 1])
        """
        dim = (
            args[0] if len(args) == 1 and not kwargs else _optional_dim(*args, **kwargs)
        )
        if options_primitives._lazy_legacy:
            return _squeezed_lazily(self, dim)
        return _rust.squeeze(self, dim, ("squeeze", args, kwargs))

    def unsqueeze(self, *args: Any, **kwargs: Any) -> Self:
        """Add a batch dimension of size 1, as :meth:`torch.Tensor.unsqueeze`.

        Args:
            *args: ``dim``, the place of the new dimension, from ``-ndim - 1`` to
                ``ndim``.
            **kwargs: ``dim`` as a keyword.

        Raises:
            RuntimeError: ``dim`` is out of range.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 4)}, batch_size=[3])
            >>> td.unsqueeze(-1)["a"].shape
            torch.Size([3, 1, 4])
        """
        dim = args[0] if len(args) == 1 and not kwargs else _one_dim(*args, **kwargs)
        if options_primitives._lazy_legacy:
            return _unsqueezed_lazily(self, dim)
        return _rust.unsqueeze(self, dim, ("unsqueeze", args, kwargs))

    def atleast_1d(self) -> Self:
        """Add a leading batch dimension of size 1 if there is no batch dimension."""
        if options_primitives._lazy_legacy:
            return _led_lazily(self, 1)
        return _rust.at_least(self, 1, ("atleast_1d", (), {}))

    def atleast_2d(self) -> Self:
        """Add leading batch dimensions of size 1 until there are 2."""
        if options_primitives._lazy_legacy:
            return _led_lazily(self, 2)
        return _rust.at_least(self, 2, ("atleast_2d", (), {}))

    def atleast_3d(self) -> Self:
        """Add leading batch dimensions of size 1 until there are 3.

        Examples:
            >>> TensorDict({"a": torch.zeros(3)}, batch_size=[3]).atleast_3d().shape
            torch.Size([1, 1, 3])
        """
        if options_primitives._lazy_legacy:
            return _led_lazily(self, 3)
        return _rust.at_least(self, 3, ("atleast_3d", (), {}))

    # Broadcasting ----------------------------------------------------------------

    def expand(self, *args: object, **kwargs: object) -> Self:
        """Expand batch dimensions of size 1 and add leading ones, without a copy.

        As :meth:`torch.Tensor.expand`. All leaves are views.

        Args:
            *args: the new batch size, as numbers or one sequence; -1 keeps a dimension.
            **kwargs: ``size``, the new batch size as a keyword.

        Raises:
            RuntimeError: the batch size does not broadcast to the new one.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3, 5)}, batch_size=[3])
            >>> td.expand(2, 3)["a"].shape
            torch.Size([2, 3, 5])
        """
        return self._expanded(_shape_argument(args, kwargs), True)

    def expand_as(self, other: TensorCollection | torch.Tensor) -> Self:
        """Expand to the shape of a tensor, or each leaf to a leaf of a tensordict.

        Raises:
            KeyError: ``other`` is a tensordict that lacks an entry of this one.
            RuntimeError: a shape does not broadcast.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(3)}, batch_size=[3])
            >>> td.expand_as(torch.zeros(2, 3)).batch_size
            torch.Size([2, 3])
        """
        if not isinstance(other, CollectionProtocol):
            if not isinstance(other, torch.Tensor):
                msg = f"expand_as() takes a tensor or a tensordict, got a {type(other).__name__}."
                raise TypeError(msg)
            return self._expanded(other.shape, True)
        # Call the engine directly: `apply` would double the cost.
        result = _rust.apply_nest(
            self, torch.Tensor.expand_as, (other,), other.batch_size, NO_DEFAULT, None,
            NO_DEFAULT, False, False, False, None, True,
        )  # fmt: skip
        return cast("Self", result)

    def broadcast_to(self, shape: tuple[int, ...]) -> Self:
        """Expand to ``shape`` and drop names, as :func:`torch.broadcast_to`."""
        return self._expanded(tuple(shape), False)

    def _expanded(self, shape: Sequence[int], keep_names: bool) -> Self:
        batch_size = self.batch_size
        ndim = len(batch_size)
        extra = len(shape) - ndim
        if extra < 0:
            raise RuntimeError(MSG_EXPAND_NDIM.format(len(shape), ndim))
        sizes = list(shape)
        for at, length in enumerate(sizes):
            if at < extra:
                if isinstance(length, str):
                    raise TypeError(MSG_EXPAND_TYPE.format(shape))
                if length < 0:
                    raise RuntimeError(MSG_EXPAND_LEADING.format(length, at))
            elif length == -1:
                sizes[at] = batch_size[at - extra]
            elif length != batch_size[at - extra] and batch_size[at - extra] != 1:
                if isinstance(length, str):
                    raise TypeError(MSG_EXPAND_TYPE.format(shape))
                raise RuntimeError(MSG_EXPAND_SHAPE.format(shape, batch_size))
        size = torch.Size(sizes)
        names = (*[-1] * extra, *range(ndim)) if keep_names else None
        # The operation's name tells non-tensor data whether names are kept.
        op = "expand" if keep_names else "broadcast_to"
        return map_leaves(self, op, (size,), size, names, SHAPE_TAIL, True, -1)

    def _broadcast(self, shape: torch.Size) -> Self:
        """Expand this operand to the shape that another operand needs."""
        return self.expand(shape)

    # Joining and splitting dims --------------------------------------------------

    def flatten(
        self,
        start_dim: int | None = None,
        end_dim: int | None = None,
        *,
        inplace: bool = False,
    ) -> Self:
        """Join the batch dimensions from ``start_dim`` to ``end_dim`` into one.

        As :meth:`torch.Tensor.flatten`. The joined dimension has no name.

        Args:
            start_dim: the first dimension. Default: 0.
            end_dim: the last dimension. Default: the last batch dimension.
            inplace: store the new leaves in this tensordict and return it.

        Raises:
            IndexError: a dimension is no batch dimension.
            RuntimeError: ``inplace`` is True and the tensordict is locked.
            ValueError: ``end_dim`` comes before ``start_dim``.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(2, 3, 4, 5)}, batch_size=[2, 3, 4])
            >>> td.flatten(0, 1)["a"].shape
            torch.Size([6, 4, 5])
        """
        result = _rust.flatten(
            self,
            0 if start_dim is None else start_dim,
            -1 if end_dim is None else end_dim,
            ("flatten", (start_dim, end_dim), {}),
        )
        if inplace:
            result = self._replace_content(result)
            return remember(self, result, "flatten", (start_dim, end_dim), {})
        return result

    def unflatten(
        self, dim: int, unflattened_size: Sequence[int], *, inplace: bool = False
    ) -> Self:
        """Split a batch dimension into several, as :meth:`torch.Tensor.unflatten`.

        A new dimension keeps the name only if it is as long as the old one.

        Args:
            dim: the dimension to split.
            unflattened_size: the sizes of the new dimensions; one -1 is inferred.
            inplace: store the new leaves in this tensordict and return it.

        Raises:
            IndexError: ``dim`` is no batch dimension.
            RuntimeError: the product of the sizes is not the size of the dimension; or
                ``inplace`` is True and the tensordict is locked.

        Examples:
            >>> td = TensorDict({"a": torch.zeros(6, 5)}, batch_size=[6])
            >>> td.unflatten(0, (2, -1))["a"].shape
            torch.Size([2, 3, 5])
        """
        batch_size = self.batch_size
        at = batch_dim(dim, batch_size)
        sizes = list(unflattened_size)
        # Slicing a list is several times faster than slicing a ``torch.Size``.
        dims = list(batch_size)
        try:
            new: Any = view_shape(torch.Size((dims[at],)), torch.Size(sizes))
        except RuntimeError:
            raise RuntimeError(MSG_UNFLATTEN.format(sizes, at, dims[at])) from None
        split = [at if length == dims[at] != 1 else -1 for length in new]
        names = (*range(at), *split, *range(at + 1, len(dims)))
        dims[at : at + 1] = new
        size = torch.Size(dims)
        result = map_leaves(self, "view", (size,), size, names, SHAPE_TAIL, True, -1)
        if inplace:
            result = self._replace_content(result)
        return remember(self, result, "unflatten", (dim, unflattened_size), {})


def _shape_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the shape of a call ``f(2, 3)``, ``f((2, 3))`` or ``f(size=(2, 3))``."""
    if not kwargs:
        is_number = len(args) != 1 or isinstance(args[0], (int, np.integer))
        return args if is_number else args[0]
    if not args and len(kwargs) == 1 and "size" in kwargs:
        return kwargs["size"]
    raise TypeError(MSG_SHAPE_ARGUMENTS.format(args, kwargs))


def _one_dim(dim: int) -> int:
    """Return the argument of ``f(dim)`` or ``f(dim=dim)``; the call checks its name."""
    return dim


def _optional_dim(dim: int | None = None) -> int | None:
    """Return an optional dim argument: see :func:`_one_dim`."""
    return dim


def _viewed_as(td: Any, dtype: torch.dtype, size: torch.Size) -> Any:
    """View all leaves as a dtype, in tensordicts of batch size ``size``."""
    stack = td._lazy_stack()
    if stack is not None:
        dim, members = stack.stack_dim, stack.tensordicts
        if size[dim : dim + 1] == (len(members),):
            rest = torch.Size([*size[:dim], *size[dim + 1 :]])
            return td._like([_viewed_as(each, dtype, rest) for each in members])
    if not td._is_dense:
        td = td._as_dense()
    entries: dict[str, Any] = {}
    for key, value in list(td._entries().items()):
        nested: Any = value
        if not isinstance(value, CollectionProtocol):
            leaf = mapped(value, "view", (dtype,), size)
            if not fits(leaf, size):
                raise RuntimeError(MSG_BATCH_MISMATCH.format(size, leaf.shape, key))
            entries[key] = leaf
        else:
            entries[key] = nested.view(dtype, batch_size=size)
    names = td._td_dim_names
    if names is not None:
        names = [*names, *[None] * len(size)][: len(size)]
    return _rust.new(type(td), entries, size, td._device, names)


def _check_leading(td: CollectionProtocol) -> None:
    """Raise an error if a leaf does not have the batch size as its leading dims."""
    size = td.batch_size
    for key, value in list(td._entries().items()):
        if isinstance(value, CollectionProtocol):
            _check_leading(value)
        elif not fits(value, size):
            raise RuntimeError(MSG_BATCH_MISMATCH.format(size, value.shape, key))


# Lazy mode. Each function checks the operation on a tensordict without entries first.
# --


def _lazily(td: CollectionProtocol, op: str, kwargs: dict[str, Any]) -> Any:
    result = classes.lazy_view(td, op, kwargs)
    return remember(td, result, op, (), kwargs)


def _permuted_lazily(td: CollectionProtocol, dims: Any) -> Any:
    structure = _rust.new(td._plain_type, {}, td.batch_size, None, None)
    call: Any = ("permute", (), {"dims": dims})
    try:
        if _rust.permute(structure, dims, call) is structure:
            return td
    except ValueError as error:
        # torch would check the leaves here, but a lazy view reads no leaf.
        ndim = len(td.batch_size)
        is_far = len(dims) == ndim and not all(-ndim <= dim < ndim for dim in dims)
        raise (IndexError if is_far else RuntimeError)(str(error)) from None
    return _lazily(td, "permute", {"dims": list(dims)})


def _transposed_lazily(td: CollectionProtocol, dim0: int, dim1: int) -> Any:
    structure = _rust.new(td._plain_type, {}, td.batch_size, None, None)
    call: Any = ("transpose", (dim0, dim1), {})
    if _rust.transpose(structure, dim0, dim1, call) is structure:
        return td
    ndim = len(td.batch_size)
    return _lazily(td, "transpose", {"dim0": dim0 % ndim, "dim1": dim1 % ndim})


def _unsqueezed_lazily(td: CollectionProtocol, dim: int) -> Any:
    structure = _rust.new(td._plain_type, {}, td.batch_size, None, None)
    _rust.unsqueeze(structure, dim, ("unsqueeze", (dim,), {}))
    return _lazily(td, "unsqueeze", {"dim": dim % (len(td.batch_size) + 1)})


def _led_lazily(td: CollectionProtocol, ndim: int) -> Any:
    while len(td.batch_size) < ndim:
        td = _unsqueezed_lazily(td, 0)
    return td


def _squeezed_lazily(td: CollectionProtocol, dim: int | None) -> Any:
    size = td.batch_size
    if dim is None:
        dims = [at for at, length in enumerate(size) if length == 1]
        for at in reversed(dims):
            td = _squeezed_lazily(td, at)
        return td
    structure = _rust.new(td._plain_type, {}, size, None, None)
    if _rust.squeeze(structure, dim, ("squeeze", (dim,), {})) is structure:
        return td
    return _lazily(td, "squeeze", {"dim": dim % len(size)})
