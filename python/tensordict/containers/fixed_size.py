"""A base class for collections whose batch size cannot be changed, such as views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    import torch

__all__ = ["FixedSize"]

MSG_BATCH_SIZE = (
    "Received a new batch size {} with an existing batch_size {} in a lazy TD. "
    "Modifying the batch size of a lazy representation of a tensordict is not "
    "permitted. Consider instantiating the tensordict first by calling `td = "
    "td.to_tensordict()` before resetting the batch size."
)


class FixedSize(CollectionProtocol):
    """A collection whose batch size cannot be changed."""

    @property
    def batch_size(self) -> torch.Size:
        """The batch size, -1 where members differ in size. It cannot be changed."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: object) -> None:
        if not isinstance(value, (list, tuple)) or tuple(value) != self._batch_size:
            raise RuntimeError(MSG_BATCH_SIZE.format(value, self._batch_size))

    def _resize_batch(self, size: torch.Size) -> None:
        if size != self._batch_size:
            raise RuntimeError(MSG_BATCH_SIZE.format(size, self._batch_size))
