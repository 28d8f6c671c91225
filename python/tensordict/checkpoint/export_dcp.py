"""Write directories of ``torch.distributed.checkpoint``, one tensor at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.utils import _pytree

from tensordict.checkpoint.distributed import COULD_NOT_EXPORT, run_together

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

    from tensordict.checkpoint.distributed import Ranks
    from tensordict.checkpoint.lazy_state import LazyTensors

__all__ = ["write_dcp"]


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

    The ranks exchange plans and results through their own group calls, which name a rank
    that fails or ends.

    Args:
        state: the state, the same on all ranks.
        tensors: the reader of its tensors.
        folder: the directory.
        group: the ranks that write together; None if there is one process.

    Raises:
        RuntimeError: a file of the step is damaged, or another rank failed.
        OSError: a file could not be written.
    """
    rank = 0 if group is None else group.rank
    planner, writer = _Planner(tensors), _Writer(folder, sync_files=False)

    def plan() -> SavePlan:
        planner.set_up_planner(
            state_dict=state,
            storage_meta=writer.storage_meta(),
            is_coordinator=rank == 0,
        )
        writer.set_up_storage_writer(rank == 0)
        return writer.prepare_local_plan(planner.create_local_plan())

    local_plan = run_together(plan, group, COULD_NOT_EXPORT)
    local_plans = [local_plan] if group is None else group.gather(local_plan)
    # Every rank makes the same global plan, so only results are exchanged after this.
    plans, metadata = planner.create_global_plan(local_plans)
    plans = writer.prepare_global_plan(plans)

    def write() -> list[WriteResult]:
        return writer.write_data(planner.finish_plan(plans[rank]), planner).wait()

    results = run_together(write, group, COULD_NOT_EXPORT)
    all_results = [results] if group is None else group.gather(results)
    if rank == 0:
        writer.finish(metadata, all_results)
