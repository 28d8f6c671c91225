"""A tensorclass that describes a tensor without its values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from tensordict.primitives import classes
from tensordict.tensorclass.base import TensorClass

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TensorAttrs"]


@classes.provided
class TensorAttrs(TensorClass):
    """The device, dtype and shape of a tensor: a leaf of ``td.attrs()``.

    Examples:
        >>> attrs = TensorAttrs.from_tensor(torch.zeros(3, 4))
        >>> attrs.tgt_shape, attrs.tgt_dtype
        (torch.Size([3, 4]), torch.float32)
    """

    tgt_device: Any = None
    tgt_dtype: Any = None
    tgt_shape: Any = None

    @classmethod
    def from_tensor(
        cls, tensor: object, *, fields: Sequence[str] = ("device", "dtype", "shape")
    ) -> Self:
        """Make the attributes of a tensor.

        Args:
            tensor: the tensor.
            fields: the attributes to set. The others are None.

        Raises:
            AttributeError: ``tensor`` is not a tensor.
        """
        attrs = cls()
        for name in ("device", "dtype", "shape"):
            if name in fields:
                attrs._tensordict.set_non_tensor(f"tgt_{name}", getattr(tensor, name))
        return attrs


TensorAttrs.__module__ = "tensordict.tensorclass"
