"""Find the parts of each tensor of a step in its files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from tensordict.checkpoint.distributed import rank_file
from tensordict.checkpoint.headers import read_header
from tensordict.checkpoint.ranges import ElsewhereError, Grid, Source, Stored
from tensordict.checkpoint.steps import read_meta
from tensordict.storage.encoding import dtype_of
from tensordict.storage.sharded import is_sharded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tensordict.checkpoint.reading import StepFiles
    from tensordict.storage.sharded import Box

__all__ = [
    "ItemFiles",
    "StepParts",
    "fields_in",
    "keyed",
    "missing_parts",
    "part_name",
]

MSG_PART = "'{}' is damaged: parts of the tensor {!r} are missing."
MSG_OTHER_RANK = (
    "'{}' was saved with shared=False and has only the parts of the ranks {}. This is rank "
    "{}, whose part is elsewhere. Nothing was changed. Restore on the ranks that saved it."
)
MSG_ELSEWHERE = (
    "'{}' lacks a part of the tensor {!r}, which is elsewhere: in the folder of rank {}, since "
    "it was saved with shared=False. Nothing was changed. Restore on the ranks that saved it."
)
MSG_MISSING = "'{}' is damaged: the tensor {!r} is missing."


class StepParts:
    """The descriptions of a step by rank, each read when it is needed.

    Args:
        files: the files of the step.
        meta: the content of ``meta.json``, which rank 0 wrote.
        rank: the rank whose part is read in any case.
    """

    def __init__(
        self, files: StepFiles, meta: Mapping[str, Any], rank: int = 0
    ) -> None:
        self.files = files
        self.meta = meta
        self.rank = rank
        self.world: int = meta.get("world", 1)
        self.ranks: list[int] | None = meta.get("ranks")
        """With ``shared=False``, the ranks by index: the first ``world`` have parts here."""
        self._known: dict[int, Mapping[str, Any]] = {0: meta}
        self._headers: dict[tuple[int, str], dict[str, Source]] = {}
        self._grids: dict[int, Grid] = {}

    def place_of(self, rank: int | None) -> int:
        """Return the index of a rank's part, or of the part that it takes instead.

        Args:
            rank: the rank in its group; None if there is one process.

        Raises:
            ElsewhereError: the part is in another folder.
        """
        if self.ranks is None:
            return rank if rank is not None and rank < self.world else 0
        if rank is None:
            return 0
        here = self.ranks[: self.world]
        if rank not in here:
            text = MSG_OTHER_RANK.format(self.files.directory, here, rank)
            raise ElsewhereError(text)
        return here.index(rank)

    def refuse_elsewhere(self, place: int, name: str) -> None:
        """Raise an error if a part of a tensor is in another folder.

        Raises:
            ElsewhereError: the part is in the folder of another rank.
        """
        if self.ranks is not None and place >= self.world:
            rank = self.ranks[place]
            raise ElsewhereError(MSG_ELSEWHERE.format(self.files.directory, name, rank))

    def of_rank(self, rank: int) -> Mapping[str, Any]:
        """Return the description that a rank wrote of its part."""
        if rank not in self._known:
            self._known[rank] = read_meta(self.files.root, rank_file(rank))
        return self._known[rank]

    def grid(self, number: int) -> Grid:
        """Return the grid with this index."""
        if number not in self._grids:
            found = self.meta["grids"][number]
            boxes = [(tuple(offsets), tuple(sizes)) for offsets, sizes, _ in found]
            self._grids[number] = Grid(boxes, [rank for *_, rank in found])
        return self._grids[number]

    def tensors(self, rank: int, item: str) -> dict[str, Source]:
        """Return the tensors of an item that a rank wrote, each as a complete tensor."""
        if (rank, item) not in self._headers:
            description = self.of_rank(rank)["items"].get(item, {"files": []})
            self._headers[rank, item] = {
                name: Source(
                    path,
                    name,
                    f"torch.{dtype.removeprefix('torch.')}",
                    shape,
                    whole(shape),
                )
                for path, digest in self.files.digests(description)
                for name, dtype, shape in read_header(path, digest)
            }
        return self._headers[rank, item]


def whole(shape: Sequence[int]) -> Box:
    """Return the box of a complete tensor."""
    return (0,) * len(shape), tuple(shape)


class ItemFiles:
    """The tensors of an item of a step.

    Args:
        parts: the descriptions of the step.
        item: the name of the item.
        metadata: the description of the item.
        rank: the rank that wrote the description.
    """

    def __init__(
        self, parts: StepParts, item: str, metadata: Mapping[str, Any], rank: int
    ) -> None:
        self.parts = parts
        self.item = item
        self.metadata = metadata
        self.rank = rank
        self.directory: Path = parts.files.directory

    def stored(self, name: str) -> Stored:
        """Return a tensor by its name in the step.

        Raises:
            RuntimeError: the tensor or a part of it is missing.
        """
        number = self.metadata.get("parts", {}).get(name)
        if number is not None:
            # The dtype is in the file of any part. Prefer a file that is read in any
            # case.
            grid = self.parts.grid(number)
            near = grid.of_rank.get(self.parts.rank) or [
                part for part, rank in enumerate(grid.ranks) if rank < self.parts.world
            ]
            first = self._part(name, number, near[0] if near else 0)
            shape = grid.shape()
            return self._divided(name, dtype_of_file(first.dtype), shape, number)
        source = self.parts.tensors(self.rank, self.item).get(name)
        if source is None:
            raise RuntimeError(MSG_MISSING.format(self.directory, name))
        dtype = dtype_of_file(source.dtype)
        return Stored.of(name, dtype, tuple(source.shape), [source], [self.rank])

    def of_fields(self, fields: Mapping[str, Any]) -> Stored:
        """Return the tensor to which the JSON of an ``Encoder`` refers."""
        if fields["$"] == "sharded":
            shape: tuple[int, ...] = tuple(fields["shape"])
            key, dtype = fields["key"], dtype_of(fields["dtype"])
            number = self.metadata.get("parts", {}).get(key)
            if number is not None:
                return self._divided(key, dtype, shape, number)
            found = Stored.of(key, dtype, shape, self._sources(key, shape))
            return self._checked(found)
        found = self.stored(fields["name"])
        if "dtype" not in fields:
            return found
        # The tensor is stored as bytes, and such tensors are never divided.
        shape = tuple(fields["shape"])
        source = found.find(0)._replace(box=whole(shape))
        dtype, ranks = dtype_of(fields["dtype"]), found.grid.ranks
        return Stored.of(found.name, dtype, shape, [source], ranks)

    def _divided(
        self, name: str, dtype: torch.dtype, shape: Sequence[int], number: int
    ) -> Stored:
        def find(part: int) -> Source:
            return self._part(name, number, part)

        grid = self.parts.grid(number)
        return self._checked(Stored(name, dtype, tuple(shape), grid, find))

    def _checked(self, stored: Stored) -> Stored:
        if stored.grid.count != math.prod(stored.shape):
            raise RuntimeError(MSG_PART.format(self.directory, stored.name))
        return stored

    def _part(self, name: str, number: int, part: int) -> Source:
        """Return the source of a part of a grid.

        Raises:
            RuntimeError: the part is missing.
        """
        grid = self.parts.grid(number)
        box = grid.boxes[part]
        key = name if len(grid.boxes) == 1 else part_name(name, box[0])
        self.parts.refuse_elsewhere(grid.ranks[part], name)
        source = self.parts.tensors(grid.ranks[part], self.item).get(key)
        if source is None:
            raise RuntimeError(MSG_PART.format(self.directory, name))
        return source._replace(box=box)

    def _sources(self, key: str, shape: tuple[int, ...]) -> list[Source]:
        """Return the parts of a tensor that the ranks describe, each box once."""
        sources: dict[Any, Source] = {}
        for rank in range(self.parts.world):
            description = self.parts.of_rank(rank)["items"].get(self.item, {})
            shard = description.get("shards", {}).get(key)
            if shard is None:
                continue
            box = tuple(shard["offsets"]), tuple(shard["sizes"])
            source = self.parts.tensors(rank, self.item).get(shard["name"])
            if source is not None:
                sources.setdefault(box, source._replace(box=box))
        if not sources and 0 not in shape:
            raise RuntimeError(MSG_PART.format(self.directory, key))
        return list(sources.values())

    def names(self) -> list[str]:
        """Return the names of the tensors that are not part of ``DTensor`` values."""
        sharded = {fields["key"] for fields in fields_in(self.metadata, "sharded")}
        parts = self.metadata.get("parts", {})
        own_tensors = self.parts.tensors(self.rank, self.item)
        shards = {shard["name"] for shard in self.metadata.get("shards", {}).values()}
        part_names = set()
        for name, number in parts.items():
            grid = self.parts.grid(number)
            for part in grid.of_rank.get(self.rank, ()):
                is_one = len(grid.boxes) == 1
                offsets = grid.boxes[part][0]
                part_names.add(name if is_one else part_name(name, offsets))
        plain = [
            name
            for name in own_tensors
            if name not in shards and name not in part_names
        ]
        return plain + [name for name in parts if name not in sharded]


def missing_parts(files: StepFiles, meta: Mapping[str, Any]) -> list[str]:
    """Return one line for each tensor of which the step lacks parts."""
    parts = StepParts(files, meta)
    lines = []
    for rank in range(parts.world):
        for name, metadata in parts.of_rank(rank)["items"].items():
            item = ItemFiles(parts, name, metadata, rank)
            wanted = [*fields_in(metadata, "sharded")]
            known = {fields["key"] for fields in wanted}
            names = metadata.get("parts", {}).keys() - known
            wanted += [{"$": "tensor", "name": name} for name in sorted(names)]
            for fields in wanted:
                try:
                    stored = item.of_fields(fields)
                    for part, rank in enumerate(stored.grid.ranks):
                        if rank < parts.world:
                            stored.find(part)
                except ElsewhereError:
                    continue
                except RuntimeError as error:
                    lines.append(str(error))
    return lines


def part_name(name: str, offsets: Sequence[int]) -> str:
    """Return the name in a file of the part of a tensor with these offsets."""
    return f"{name}@{','.join(map(str, offsets))}"


def dtype_of_file(name: str) -> torch.dtype:
    """Return the dtype of a name, with or without ``torch.``."""
    dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return dtype


def fields_in(value: object, kind: str) -> Iterator[dict[str, Any]]:
    """Yield all objects of a kind in the JSON of an ``Encoder``."""
    if isinstance(value, dict):
        if value.get("$") == kind:
            yield value
        for inner in value.values():
            yield from fields_in(inner, kind)
    elif isinstance(value, list):
        for inner in value:
            yield from fields_in(inner, kind)


def keyed(value: object, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the ``DTensor`` values of a state, by the keys of an ``Encoder``."""
    if is_sharded(value):
        return {".".join(path) or "value": value}
    found: dict[str, Any] = {}
    if isinstance(value, dict):
        for key, inner in value.items():
            found |= keyed(inner, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            found |= keyed(inner, (*path, str(number)))
    return found
