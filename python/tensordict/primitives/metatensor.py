"""Metadata of a tensor without values: an entry of a lazy stack, not yet stacked."""

from __future__ import annotations

from typing import Any

import torch

from tensordict.primitives.special import is_shared_class

__all__ = ["MetaTensor", "merged_shape"]


def merged_shape(shapes: list[torch.Size], dim: int | None) -> torch.Size:
    """Return the shape of a stack along ``dim``, with -1 where the members differ.

    Shapes of different lengths give ``[-1]``. If ``dim`` is None, the shapes are merged
    and no dim is added.
    """
    first = shapes[0]
    merged: list[int] = list(first)
    for shape in shapes:
        if shape == first:
            continue
        if len(shape) != len(first):
            return torch.Size([-1])
        for at, length in enumerate(shape):
            if length != merged[at]:
                merged[at] = -1
    if dim is not None:
        merged.insert(dim, len(shapes))
    return torch.Size(merged)


class MetaTensor:
    """The shape, dtype and device of a tensor, without its values.

    A dim in which the members of a lazy stack differ is -1.

    Args:
        shape: the shape, or a tensor whose metadata is copied.
        device: the device.
        dtype: the dtype.
        requires_grad: whether the tensor requires grad.

    Examples:
        >>> MetaTensor(torch.zeros(2, 3))
        MetaTensor(shape=torch.Size([2, 3]), device=cpu, dtype=torch.float32)
        >>> MetaTensor(torch.zeros(2, 3)).shape
        torch.Size([2, 3])
    """

    is_nested = False

    shape: torch.Size
    device: torch.device
    dtype: torch.dtype
    requires_grad: bool

    def __init__(
        self,
        *shape: Any,
        device: Any = None,
        dtype: Any = None,
        requires_grad: bool = False,
    ) -> None:
        if len(shape) == 1 and isinstance(shape[0], (torch.Tensor, MetaTensor)):
            tensor: Any = shape[0]
            self.shape = tensor.shape
            self.device = tensor.device if device is None else torch.device(device)
            self.dtype = tensor.dtype if dtype is None else dtype
            self.requires_grad = tensor.requires_grad
            is_meta = isinstance(tensor, MetaTensor)
            self._class: type = tensor._class if is_meta else type(tensor)
            return
        if len(shape) == 1 and not isinstance(shape[0], int):
            shape = tuple(shape[0])
        self.shape = torch.Size(shape)
        self.device = torch.device("cpu" if device is None else device)
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        self.requires_grad = requires_grad
        self._class = torch.Tensor

    @classmethod
    def _of_stack(cls, values: list[Any], dim: int) -> MetaTensor:
        """Make the metadata of the stack of ``values``, tensors or metadata."""
        meta = cls(values[0])
        for value in values:
            if value.dtype != meta.dtype:
                meta.dtype = torch.promote_types(meta.dtype, value.dtype)
        if not is_shared_class(meta._class):
            meta.shape = merged_shape([value.shape for value in values], dim)
        return meta

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    def dim(self) -> int:
        """Return the number of dims."""
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of elements, at least 1 for a shape without dims."""
        return self.shape.numel()

    def is_shared(self) -> bool:
        """Return False: a tensor that is not yet stacked is not in shared memory."""
        return False

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(shape={self.shape}, device={self.device}, "
            f"dtype={self.dtype})"
        )
