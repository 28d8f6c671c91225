"""Collections in the batches of :class:`torch.utils.data.DataLoader`."""

from __future__ import annotations

from typing import Any

from torch.utils.data._utils.collate import default_collate_fn_map

from tensordict.containers.collection import TensorCollection
from tensordict.functional import collate

__all__ = ["install"]


def _collate_collections(batch: Any, **_: object) -> Any:
    """The samples stacked along a new first dim, lazily where they differ in shape."""
    if isinstance(batch, TensorCollection):
        # A data loader over a collection takes all rows of a batch with one index.
        return batch
    # Parts of samples come as tuples.
    return collate(list(batch))


def install() -> None:
    """Teach the default collate function of torch about collections."""
    default_collate_fn_map[TensorCollection] = _collate_collections
