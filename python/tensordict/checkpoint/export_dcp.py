"""Directories of ``torch.distributed.checkpoint``, a tensor of which is in memory at a time."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save
from torch.utils import _pytree

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed.checkpoint.planner import WriteItem

    from tensordict.checkpoint.distributed import Ranks
    from tensordict.checkpoint.lazy_state import LazyTensors

__all__ = ["write_dcp"]

MSG_OTHER = "Rank {} could not export: {}"


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
    state: dict[str, Any], tensors: LazyTensors, folder: Path, group: Ranks | None
) -> None:
    """Write a state, of which each rank writes a share.

    What a rank meets is raised there, and the others raise what they are told.

    Args:
        state: the state, the same on all ranks.
        tensors: what its tensors stand for.
        folder: where to.
        group: the ranks that write it together; None for a process alone.

    Raises:
        RuntimeError: a file of the step is damaged, or another rank has an error.
        OSError: it could not be written.
    """
    try:
        _save(state, tensors, folder, group)
    except CheckpointException as error:
        # It is no Exception, and has those of all ranks.
        own = 0 if group is None else group.rank
        if own in error.failures:
            raise error.failures[own][0] from None
        rank, (cause, _) = min(error.failures.items(), key=lambda pair: pair[0])
        raise RuntimeError(MSG_OTHER.format(rank, cause)) from None


def _save(
    state: dict[str, Any], tensors: LazyTensors, folder: Path, group: Ranks | None
) -> None:
    with warnings.catch_warnings():
        # That there are no ranks is known.
        warnings.filterwarnings("ignore", message="torch.distributed is")
        save(
            state,
            storage_writer=FileSystemWriter(folder, sync_files=False),
            planner=_Planner(tensors),
            process_group=None if group is None else group.group,
            no_dist=group is None,
        )
