"""Directories of ``torch.distributed.checkpoint``, a tensor of which is in memory at a time."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItemType
from torch.utils import _pytree

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed.checkpoint.planner import WriteItem

    from tensordict.checkpoint.lazy_state import LazyTensors

__all__ = ["write_dcp"]


class _Planner(DefaultSavePlanner):
    """Reads a tensor when it is written.

    Args:
        tensors: what the tensors of the state stand for.
    """

    def __init__(self, tensors: LazyTensors) -> None:
        super().__init__()
        self.tensors = tensors

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        """Return the values of a tensor, or the bytes of anything else."""
        if write_item.type != WriteItemType.BYTE_IO:
            return self.tensors.read([object])[0]
        whole = _pytree.tree_map_only(
            torch.Tensor, lambda each: self.tensors.read([each])[0], object
        )
        return super().transform_object(write_item, whole)


def write_dcp(
    state: dict[str, Any], tensors: LazyTensors, folder: Path, *, alone: bool
) -> None:
    """Write a state, of which each rank writes a share.

    Args:
        state: the state, the same on all ranks.
        tensors: what its tensors stand for.
        folder: where to.
        alone: whether this process has no partners.
    """
    with warnings.catch_warnings():
        # That there are no ranks is known.
        warnings.filterwarnings("ignore", message="torch.distributed is")
        dcp.save(
            state,
            storage_writer=dcp.FileSystemWriter(folder, sync_files=False),
            planner=_Planner(tensors),
            no_dist=alone,
        )
