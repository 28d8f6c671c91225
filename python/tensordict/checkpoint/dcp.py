"""Storage of ``torch.distributed.checkpoint`` as safetensors, and its directories read.

``dcp.save(state, storage_writer=Writer(path))`` writes a safetensors file for each rank and
``metadata.json``; ``dcp.load(state, storage_reader=Reader(path))`` reads it, with any
number of ranks. :class:`CollectionState` keeps all that a collection holds.
:func:`read_directory` reads what torch's own writer has written, without
running its pickles.
"""

from __future__ import annotations

import io
import os
import pickle
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
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
from tensordict.checkpoint.one_file import load as load_file
from tensordict.checkpoint.one_file import save as save_file
from tensordict.checkpoint.stateful import CollectionState
from tensordict.storage.encoding import Decoder, Encoder
from tensordict.storage.layouts.safetensors import planned
from tensordict.storage.locations import local, scheme_of

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import (
        LoadPlan,
        LoadPlanner,
        SavePlan,
        SavePlanner,
    )

__all__ = ["CollectionState", "Reader", "Writer", "read_directory"]

METADATA = "metadata.safetensors"
DCP_METADATA = ".metadata"

MSG_REFUSED = "it names {}.{}, which is not part of the metadata of a checkpoint"
MSG_OUTSIDE = "'{}' names the file {!r}, which is not in its directory."


class Writer(StorageWriter):
    """Writes what ``torch.distributed.checkpoint`` saves: a safetensors file for each rank.

    Each file appears at once, and the metadata last, which rank 0 writes when all have
    theirs.

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
        """Begin a save, in another directory if one is named."""
        if checkpoint_id:
            self.path = Path(local(checkpoint_id)).absolute()

    def set_up_storage_writer(
        self, is_coordinator: bool, *args: object, **kwargs: object
    ) -> None:
        """Take what torch says of this rank, of which nothing is needed."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Make the directory."""
        self.path.mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give each rank a file, with a name that no older save has."""
        import dataclasses

        save = uuid.uuid4().hex[:8]
        return [
            dataclasses.replace(plan, storage_data=f"rank-{rank:05}-{save}.safetensors")
            for rank, plan in enumerate(plans)
        ]

    def write_data(
        self, plan: SavePlan, planner: SavePlanner
    ) -> Future[list[WriteResult]]:
        """Write the tensors and values of this rank as one file."""
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
            self.num_threads,
            self.durable,
            True,
            _rust.SaveProgress(),
            False,
        )
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the metadata, and delete the files of an older save."""
        tensors: dict[str, Any] = {}
        for name, about in metadata.state_dict_metadata.items():
            if isinstance(about, TensorStorageMetadata):
                chunks = [[chunk.offsets, chunk.sizes] for chunk in about.chunks]
                tensors[name] = [about.properties.dtype, about.size, chunks]
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
        """Return whether a name is that of a directory: whatever has no scheme."""
        return scheme_of(checkpoint_id) is None


class Reader(StorageReader):
    """Reads what a :class:`Writer` has written, with any number of ranks.

    Args:
        path: the directory.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path: Path = Path(local(path))
        self._places: dict[MetadataIndex, dict[str, Any]] = {}
        self._files: dict[str, dict[str, torch.Tensor]] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a load, from another directory if one is named."""
        self._files = {}
        if checkpoint_id:
            self.path = Path(local(checkpoint_id))

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """The metadata of the checkpoint."""
        content = load_file(self.path / METADATA)
        described: dict[str, Any] = {}
        for name, about in content["tensors"].items():
            if about is None:
                described[name] = BytesStorageMetadata()
                continue
            dtype, size, chunks = about
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
        """Take the metadata that the coordinator has read."""
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Leave the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Leave the plans as they are."""
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
        """Copy the parts that this rank needs."""
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
        """Return whether a directory of this name was written by a :class:`Writer`."""
        return Path(checkpoint_id, METADATA).is_file()


# Steps of torch's own writer ----------------------------------------------------------

_METADATA_CLASSES = (
    *(BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex),
    *(StorageMeta, TensorProperties, TensorStorageMetadata, _StorageInfo),
    *(dcp_metadata._MEM_FORMAT_ENCODING, torch.Size),
)
_ALLOWED: dict[tuple[str, str], Any] = {
    (cls.__module__, cls.__qualname__): cls for cls in _METADATA_CLASSES
}


class _MetadataReader(pickle.Unpickler):
    """Reads the classes that metadata is made of, and knows no other name."""

    def find_class(self, module: str, name: str) -> Any:
        known = _ALLOWED.get((module, name))
        if known is not None:
            return known
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("torch.serialization", "_get_layout"):
            return torch.serialization._get_layout
        if module == "collections" and name == "OrderedDict":
            return dict
        if module.startswith("pathlib") and name in ("PosixPath", "Path"):
            # The place where it was saved says nothing here.
            return _as_path
        raise pickle.UnpicklingError(MSG_REFUSED.format(module, name))


def _as_path(*parts: str) -> str:
    return os.path.join("", *parts)  # noqa: PTH118 (a text is asked for)


def read_directory(path: str | Path) -> dict[str, Any]:
    """The states of a directory of ``torch.distributed.checkpoint``, nested as they were.

    Raises:
        RuntimeError: a pickle asks for more than tensors and plain data.
    """
    path = Path(local(path))
    try:
        with (path / DCP_METADATA).open("rb") as file:
            metadata = _MetadataReader(file).load()
    except pickle.UnpicklingError as error:
        raise RuntimeError(f"'{path / DCP_METADATA}' is refused: {error}.") from None
    found: dict[str, Any] = {}
    for name, about in metadata.state_dict_metadata.items():
        if isinstance(about, TensorStorageMetadata):
            whole = torch.empty(about.size, dtype=about.properties.dtype)
            for number, chunk in enumerate(about.chunks):
                index = MetadataIndex(name, chunk.offsets, number)
                part = _stored(path, metadata.storage_data[index])
                place = whole
                for dim, (start, length) in enumerate(
                    zip(chunk.offsets, chunk.sizes, strict=True)
                ):
                    place = place.narrow(dim, start, length)
                place.copy_(part)
            found[name] = whole
        else:
            found[name] = _stored(path, metadata.storage_data[MetadataIndex(name)])
    return _unflattened(found, metadata.planner_data or {})


def _stored(path: Path, info: _StorageInfo) -> Any:
    if Path(info.relative_path).name != info.relative_path:
        raise RuntimeError(MSG_OUTSIDE.format(path, info.relative_path))
    if info.transform_descriptors:
        raise RuntimeError(
            f"'{path}' is transformed by {list(info.transform_descriptors)}: read it with "
            "torch.distributed.checkpoint."
        )
    with (path / info.relative_path).open("rb") as file:
        file.seek(info.offset)
        content = io.BytesIO(file.read(info.length))
    try:
        return torch.load(content, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        text = str(error).partition("\n")[0]
        raise RuntimeError(
            f"'{path / info.relative_path}' is refused: {text}"
        ) from error


def _unflattened(flat: dict[str, Any], paths: dict[str, Any]) -> dict[str, Any]:
    """Values nested by the paths of their names; lists come back as lists."""
    root: dict[Any, Any] = {}
    for name, value in flat.items():
        *parents, last = paths.get(name, (name,))
        level = root
        for parent in parents:
            level = level.setdefault(parent, {})
        level[last] = value
    nested: dict[str, Any] = _with_lists(root)
    return nested


def _with_lists(value: object) -> Any:
    if not isinstance(value, dict):
        return value
    made = {key: _with_lists(item) for key, item in value.items()}
    if {"state", "param_groups"} <= value.keys():
        # The keys of the state of an optimizer are numbers, of which paths have the text.
        made["state"] = {
            int(key) if str(key).isdecimal() else key: _with_lists(item)
            for key, item in value["state"].items()
        }
    if made and list(made) == list(range(len(made))):
        return list(made.values())
    return made
