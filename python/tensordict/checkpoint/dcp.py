"""Storage classes for ``torch.distributed.checkpoint`` that use safetensors files.

``dcp.save(state, storage_writer=Writer(path))`` writes one safetensors file for each
rank and ``metadata.safetensors``. ``dcp.load(state, storage_reader=Reader(path))``
reads them with any number of ranks. :class:`CollectionState` adapts a tensordict for
both. :func:`~tensordict.checkpoint.dcp_directory.read_directory` reads directories that
torch's own writer wrote, without running their pickles.
"""

from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import (
    StorageReader,
    StorageWriter,
    WriteResult,
)
from torch.futures import Future

from tensordict import _rust
from tensordict.checkpoint.dcp_directory import MSG_OUTSIDE, read_directory
from tensordict.checkpoint.one_file import load as load_file
from tensordict.checkpoint.one_file import save as save_file
from tensordict.checkpoint.stateful import CollectionState
from tensordict.storage.encoding import Decoder, Encoder
from tensordict.storage.layouts.safetensors import planned
from tensordict.storage.locations import local, scheme_of

if TYPE_CHECKING:
    import os

    from torch.distributed.checkpoint.planner import (
        LoadPlan,
        LoadPlanner,
        SavePlan,
        SavePlanner,
    )

__all__ = ["CollectionState", "Reader", "Writer", "read_directory"]

METADATA = "metadata.safetensors"


class Writer(StorageWriter):
    """A DCP storage writer: one safetensors file for each rank.

    Each file appears atomically. Rank 0 writes the metadata last, after all ranks have
    written their files.

    Args:
        path: the directory.
        durable: whether files are on the disk when the save returns.
        num_threads: the most threads of each rank.
    """

    def __init__(
        self, path: str | Path, *, durable: bool = False, num_threads: int = 0
    ) -> None:
        super().__init__()
        self.path: Path = Path(local(path)).absolute()
        self.durable = durable
        self.num_threads = num_threads
        self._save: str = ""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a save, into ``checkpoint_id`` if it is given."""
        if checkpoint_id:
            self.path = Path(local(checkpoint_id)).absolute()

    def set_up_storage_writer(
        self, is_coordinator: bool, *args: object, **kwargs: object
    ) -> None:
        """Do nothing: this writer needs no information about the rank."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Create the directory, and return the plan as it is."""
        self.path.mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Assign each rank a file, under a name that no older save uses."""
        import dataclasses

        save = uuid.uuid4().hex[:8]
        return [
            dataclasses.replace(plan, storage_data=f"rank-{rank:05}-{save}.safetensors")
            for rank, plan in enumerate(plans)
        ]

    def write_data(
        self, plan: SavePlan, planner: SavePlanner
    ) -> Future[list[WriteResult]]:
        """Write the tensors and bytes of this rank as one file."""
        name: str = plan.storage_data
        encoder = Encoder(name)
        results = []
        for item in plan.items:
            data: Any = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                content = bytearray(data.getbuffer())
                tensor = torch.frombuffer(content or bytearray(1), dtype=torch.uint8)
                tensor = tensor[: len(content)]
            else:
                tensor = data.detach()
            key = item.index.fqn
            if item.index.offset is not None and any(item.index.offset):
                key += "@" + ",".join(map(str, item.index.offset))
            fields = encoder.take(tensor, key)
            info = {"file": name, **fields}
            results.append(
                WriteResult(item.index, tensor.numel() * tensor.element_size(), info)
            )
        files: list[Any] = [(str(self.path / name), None, planned(encoder.tensors), [])]
        _rust.write_safetensors(
            files,
            None,
            None,
            (self.num_threads, self.durable, True),
            _rust.SaveProgress(),
            False,
        )
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the metadata, then delete the files of an older save."""
        tensors: dict[str, Any] = {}
        for name, tensor_metadata in metadata.state_dict_metadata.items():
            if isinstance(tensor_metadata, TensorStorageMetadata):
                chunks = [
                    [chunk.offsets, chunk.sizes] for chunk in tensor_metadata.chunks
                ]
                tensors[name] = [
                    tensor_metadata.properties.dtype,
                    tensor_metadata.size,
                    chunks,
                ]
            else:
                tensors[name] = None
        places = [
            [
                result.index.fqn,
                result.index.offset,
                result.index.index,
                result.storage_data,
            ]
            for rank in results
            for result in rank
        ]
        content = {"tensors": tensors, "places": places, "plan": metadata.planner_data}
        save_file(self.path / METADATA, content, durable=self.durable)
        files = {place[3]["file"] for place in places}
        for old in self.path.glob("rank-*.safetensors"):
            if old.name not in files:
                old.unlink()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether ``checkpoint_id`` is a directory, not a URL."""
        return scheme_of(checkpoint_id) is None


class Reader(StorageReader):
    """A storage reader for directories of a :class:`Writer`, with any number of ranks.

    Args:
        path: the directory.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path: Path = Path(local(path))
        self._places: dict[MetadataIndex, dict[str, Any]] = {}
        self._files: dict[str, dict[str, torch.Tensor]] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a load, from ``checkpoint_id`` if it is given."""
        self._files = {}
        if checkpoint_id:
            self.path = Path(local(checkpoint_id))

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """Read the metadata of the checkpoint."""
        content = load_file(self.path / METADATA)
        described: dict[str, Any] = {}
        for name, tensor_metadata in content["tensors"].items():
            if tensor_metadata is None:
                described[name] = BytesStorageMetadata()
                continue
            dtype, size, chunks = tensor_metadata
            described[name] = TensorStorageMetadata(
                TensorProperties(dtype=dtype),
                size,
                [ChunkStorageMetadata(offsets, sizes) for offsets, sizes in chunks],
            )
        places = {
            MetadataIndex(name, offset, index): info
            for name, offset, index, info in content["places"]
        }
        return Metadata(described, content["plan"], places, StorageMeta())

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: object, **kwargs: object
    ) -> None:
        """Take the metadata that the coordinator read."""
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def _tensor(self, info: dict[str, Any]) -> torch.Tensor:
        name = info["file"]
        if name not in self._files:
            if Path(name).name != name:
                raise RuntimeError(MSG_OUTSIDE.format(self.path, name))
            place = str(self.path / name)
            self._files[name] = _rust.read_safetensors(place, "r")[1]
        return Decoder(self._files[name], self.path).taken(info)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy the parts that this rank needs into its tensors."""
        for item in plan.items:
            tensor = self._tensor(self._places[item.storage_index])
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(tensor.numpy().tobytes()))
                continue
            for dim, (start, length) in enumerate(
                zip(item.storage_offsets, item.lengths, strict=True)
            ):
                tensor = tensor.narrow(dim, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(tensor)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether a :class:`Writer` wrote the directory ``checkpoint_id``."""
        return Path(checkpoint_id, METADATA).is_file()
