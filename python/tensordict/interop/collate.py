"""Tensordicts in the batches of :class:`torch.utils.data.DataLoader`."""

from __future__ import annotations

from typing import Any

from torch.utils.data._utils.collate import default_collate_fn_map

from tensordict.containers.collection import TensorCollection
from tensordict.functional import collate

__all__ = ["install"]


def _collate_collections(batch: Any, **_: object) -> Any:
    """Stack samples along a new first dim, lazily if they differ in shape."""
    if isinstance(batch, TensorCollection):
        # A loader over a tensordict indexes all rows at once: `batch` is complete.
        return batch
    # The parts of tuple samples come as a tuple.
    return collate(list(batch))


def install() -> None:
    """Register tensordicts with the default collate function of torch."""
    default_collate_fn_map[TensorCollection] = _collate_collections
