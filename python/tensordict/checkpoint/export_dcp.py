"""Write directories of ``torch.distributed.checkpoint``, one tensor at a time."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.utils import _pytree

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

    from tensordict.checkpoint.distributed import Ranks
    from tensordict.checkpoint.lazy_state import LazyTensors

__all__ = ["write_dcp"]

MSG_OTHER = "Rank {} could not export: {}"


class _Planner(DefaultSavePlanner):
    """A save planner that reads each tensor when it is written.

    Args:
        tensors: the reader of the state's tensors.
    """

    def __init__(self, tensors: LazyTensors) -> None:
        super().__init__()
        self.tensors = tensors

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        """Return the values of a tensor, or the bytes of another object."""
        if write_item.type != WriteItemType.BYTE_IO:
            return self.tensors.read([object])[0]
        value = _pytree.tree_map_only(
            torch.Tensor,
            lambda meta_tensor: self.tensors.read([meta_tensor])[0],
            object,
        )
        return super().transform_object(write_item, value)


class _Writer(FileSystemWriter):
    """A storage writer of one file that releases each tensor after it is written."""

    def write_data(
        self, plan: SavePlan, planner: SavePlanner
    ) -> Future[list[WriteResult]]:
        """Write the items, one at a time."""
        name = f"{plan.storage_data.prefix}0.distcp"
        results = []
        with (Path(self.path) / name).open("wb") as file:
            for item in plan.items:
                start = file.tell()
                data: Any = planner.resolve_data(item)
                if item.type == WriteItemType.BYTE_IO:
                    file.write(data.getbuffer())
                else:
                    torch.save(_alone(data), file)
                length = file.tell() - start
                info = _StorageInfo(name, start, length)
                results.append(WriteResult(item.index, length, info))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that fills its storage, since ``torch.save`` writes all of it."""
    own_bytes = tensor.numel() * tensor.element_size()
    return tensor if tensor.untyped_storage().nbytes() == own_bytes else tensor.clone()


def write_dcp(
    state: dict[str, Any], tensors: LazyTensors, folder: Path, group: Ranks | None
) -> None:
    """Write a state; each rank writes a part.

    A rank raises its own error, or else an error about the lowest rank that failed.

    Args:
        state: the state, the same on all ranks.
        tensors: the reader of its tensors.
        folder: the directory.
        group: the ranks that write together; None if there is one process.

    Raises:
        RuntimeError: a file of the step is damaged, or another rank failed.
        OSError: a file could not be written.
    """
    try:
        _save(state, tensors, folder, group)
    except CheckpointException as error:
        # CheckpointException is no Exception, and contains the errors of all ranks.
        own_rank = 0 if group is None else group.rank
        if own_rank in error.failures:
            raise error.failures[own_rank][0] from None
        rank, (cause, _) = min(error.failures.items(), key=lambda pair: pair[0])
        raise RuntimeError(MSG_OTHER.format(rank, cause)) from None


def _save(
    state: dict[str, Any], tensors: LazyTensors, folder: Path, group: Ranks | None
) -> None:
    with warnings.catch_warnings():
        # torch warns that there are no ranks.
        warnings.filterwarnings("ignore", message="torch.distributed is")
        save(
            state,
            storage_writer=_Writer(folder, sync_files=False),
            planner=_Planner(tensors),
            process_group=None if group is None else group.group,
            no_dist=group is None,
        )
