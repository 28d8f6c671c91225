"""Make a collection of a save in an object store."""

from __future__ import annotations

import bisect
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from tensordict import _rust
from tensordict.containers.lazy.column_stack import ColumnStack
from tensordict.containers.lazy.columns import Columns
from tensordict.containers.lazy.ragged_column import RaggedColumn
from tensordict.containers.lazy.stack import LazyStackedTensorDict
from tensordict.containers.nontensor.cells import EncodedCells
from tensordict.containers.remote.collection import shown_as
from tensordict.containers.remote.taking import RemoteCells, remote_leaves, take
from tensordict.containers.view import _SubTensorDict
from tensordict.primitives import special
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage import layouts
from tensordict.storage.remote.outline import MSG_SAVE, outlined
from tensordict.storage.remote.reading import read_range
from tensordict.storage.remote.tensor import READ_LIMIT, RemoteTensor

if TYPE_CHECKING:
    from tensordict.storage.layouts import LoadOptions
    from tensordict.storage.remote.cache import BlockCache
    from tensordict.storage.remote.outline import Outline
    from tensordict.storage.remote.place import Place

__all__ = ["load_remote"]

MSG_MODE: Final = "A save at {url} cannot be written to: mode='r+' is for local files."
MSG_VERIFY: Final = (
    "verify=True reads all of {url}: load a copy with download=True, which is verified."
)


def load_remote(
    place: Place,
    options: LoadOptions,
    *,
    cache: BlockCache | None = None,
    read_limit: int | None = None,
) -> Any:
    """Make a collection of a save, of which only the metadata is read.

    Args:
        place: where the save is.
        options: the arguments of the load.
        cache: where blocks are kept that were read.
        read_limit: the most bytes that are read without being asked for as rows.

    Raises:
        FileNotFoundError: there is no save.
        ValueError: the arguments are for files of this machine.
    """
    if options.mode == "r+":
        raise ValueError(MSG_MODE.format(url=place))
    if options.verify:
        raise ValueError(MSG_VERIFY.format(url=place))
    limit = READ_LIMIT if read_limit is None else read_limit
    device = options.device
    with outlined(place, cache) as outline:
        of_outline = options._replace(
            mode="r", device=device if not options.has_values else None
        )
        try:
            layout = next(
                (each for each in layouts.LAYOUTS[:-1] if each.matches(outline.path)),
                layouts.ARCHIVE,
            )
            loaded = layout.load(outline.path, of_outline, None)
        except (ValueError, RuntimeError, KeyError, OSError) as error:
            raise _of_place(error, outline) from error
        if not options.has_values:
            return loaded
        template = _Template(outline, limit).of(loaded)
        del loaded
    if next(remote_leaves(template), None) is None:
        return template
    if options.is_moved:
        return take(template).to(device)
    return shown_as(template, limit)


def _of_place(error: Exception, outline: Outline) -> Exception:
    """Let the error of a load name the save, and not the file of the outline."""
    text = str(error.args[-1] if isinstance(error, KeyError) else error)
    named = text.replace(str(outline.folder), str(outline.place))
    if isinstance(error, OSError):
        return type(error)(error.errno, MSG_SAVE.format(url=outline.place, error=named))
    if named == text:
        named = MSG_SAVE.format(url=outline.place, error=text)
    return (
        type(error)(named)
        if type(error) in (ValueError, RuntimeError, KeyError)
        else ValueError(named)
    )


class _Mappings:
    """The files of an outline that are mapped into the memory of this process."""

    def __init__(self, outline: Outline) -> None:
        folder = os.path.realpath(outline.folder)
        found = []
        with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if folder not in line:
                    continue
                addresses, _, offset, _, _, path = line.rstrip("\n").split(maxsplit=5)
                start, stop = (int(part, 16) for part in addresses.split("-"))
                source = outline.objects.get(os.path.relpath(path, folder))
                if source is not None:
                    found.append((start, stop, int(offset, 16), source))
        self._found = sorted(found, key=lambda mapping: mapping[0])
        self._starts = [mapping[0] for mapping in self._found]

    def place_of(self, address: int) -> tuple[Any, Any] | None:
        """Return the object that an address is of, and the offset in it; or None."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        start, stop, offset, source = self._found[at]
        return (source, offset + address - start) if address < stop else None


class _Template:
    """Replaces tensors over the holes of an outline by remote tensors."""

    def __init__(self, outline: Outline, limit: int) -> None:
        self.outline = outline
        self.limit = limit
        self._mappings = _Mappings(outline)

    def of(self, value: Any) -> Any:
        """Return a value with remote tensors."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if not isinstance(value, CollectionProtocol):
            return value
        if value._is_non_tensor:
            return self._values(value)
        if isinstance(value, ColumnStack):
            return ColumnStack.of_columns(self._columns(value._columns))
        if isinstance(value, LazyStackedTensorDict):
            members = [self.of(member) for member in value.tensordicts]
            if not members:
                return value
            return LazyStackedTensorDict._of(
                members, value.stack_dim, value._td_dim_name
            )
        if isinstance(value, _SubTensorDict):
            return type(value)(self.of(value._source), value.idx)
        if not value._is_dense:
            inner = self.of(value._tensordict)
            return type(value)._from_tensordict(inner)  # type: ignore[attr-defined]
        entries = {key: self.of(item) for key, item in value._tensordict.items()}
        names = value._td_dim_names
        names = None if names is None else list(names)
        return _rust.new(type(value), entries, value._batch_size, value._device, names)

    def _tensor(self, value: torch.Tensor) -> torch.Tensor | RemoteTensor:
        kind = special.kind_of(value)
        if kind is not None and kind.in_files == "state":
            self._read(list(kind.state(value).values()))
            return value.clone()
        if not special.is_strided(value):
            return self._whole(value)
        found = self._source(value)
        if found is None or not value.is_contiguous():
            return value.detach().clone().as_subclass(torch.Tensor)
        source, offset = found
        return RemoteTensor.of(source, offset, value.shape, value.dtype, self.limit)

    def _source(self, value: torch.Tensor) -> tuple[Any, Any] | None:
        """Return the object and the offset of a tensor over a file of the outline."""
        if not value.numel():
            return None
        return self._mappings.place_of(value.data_ptr())

    def _whole(self, value: torch.Tensor) -> torch.Tensor:
        """Read a nested tensor, whose rows no index tells."""
        plain = value.as_subclass(torch.Tensor)
        parts = [plain.values()] if plain.layout == torch.strided else []
        if plain.layout == torch.jagged:
            found = (
                getattr(value, f"_{name}", None)
                for name in ("values", "offsets", "lengths")
            )
            parts = [part for part in found if part is not None]
        self._read(parts)
        return plain.clone()

    def _read(self, parts: list[torch.Tensor]) -> None:
        """Read the bytes of tensors over holes of the outline."""
        for part in parts:
            place = self._source(part)
            if place is not None:
                source, offset = place
                stop = offset + part.numel() * part.element_size()
                file = self.outline.folder / next(
                    name
                    for name, each in self.outline.objects.items()
                    if each is source
                )
                with file.open("r+b") as opened:
                    opened.seek(offset)
                    opened.write(read_range(source, offset, stop))

    def _values(self, value: Any) -> Any:
        """Return non-tensor data that is read from an object instead of a file."""
        cells = getattr(value, "_cells", None)
        if not isinstance(cells, EncodedCells):
            return value
        made: Any = RemoteCells(self._ragged(cells.column), cells.rows)
        return type(value)._of_cells(made, value.batch_size, value.device)

    def _columns(self, columns: Columns) -> Columns:
        entries: dict[str, Any] = {}
        for key, column in columns.entries.items():
            if isinstance(column, Columns):
                entries[key] = self._columns(column)
            elif isinstance(column, RaggedColumn):
                entries[key] = self._ragged(column)
            else:
                entries[key] = self.of(column)
        return dataclasses.replace(columns, entries=entries)

    def _ragged(self, column: RaggedColumn) -> RaggedColumn:
        table = column.table.clone()
        empty = torch.empty(0, dtype=column.values.dtype)
        made = RaggedColumn(empty, table, column.encoding)
        made.values = self._tensor(column.values)
        return made
