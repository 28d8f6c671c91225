"""Conversion to and from MDS, the format of MosaicML's streaming datasets."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tensordict.containers.dense import TensorDict
from tensordict.interop.leaves import check_collection, extra, path_of, values_of
from tensordict.primitives import special
from tensordict.primitives.checks import is_branch
from tensordict.primitives.deprecation import warn_caller
from tensordict.primitives.errors import KeyMessageError
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["from_mds", "to_mds"]

INSTALL = "pip install 'tensordict-rs[mds]'"

SIZES = ("int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
VALUES: dict[type, str] = {
    bool: "int",
    int: "int",
    float: "float64",
    str: "str",
    bytes: "bytes",
    list: "json",
    np.ndarray: "ndarray",
}
"""From types of Python values to their encodings."""

MSG_DTYPE = (
    "to_mds got the dtype {dtype} at {key!r}, but MDS has no encoding for it{of_arrays}. "
    "Convert the entry first, for example with .to(torch.uint8), or pass "
    "columns={{{name!r}: 'pkl'}} to pickle it."
)
MSG_TYPE = (
    "to_mds got a value of type {kind} at {key!r}, but MDS has no encoding for it. Pass "
    "columns={{{name!r}: 'pkl'}} to pickle it, or exclude the entry."
)
MSG_NO_ELEMENTS = (
    "to_mds got rows of the shape {shape} at {key!r}: MDS does not write arrays without "
    "elements. Exclude the entry, or pass columns={{{name!r}: 'pkl'}} to pickle it."
)
MSG_JSON = (
    "to_mds writes lists as JSON, which changes the value {cell!r} at {key!r}. Pass "
    "columns={{{name!r}: 'pkl'}} to pickle it, or convert it."
)
MSG_MIXED = (
    "to_mds got values of the types {first} and {other} at {key!r}, but an MDS column has "
    "one type. Pass columns={{{name!r}: 'json'}} or convert the values."
)
MSG_DOTS = (
    "to_mds joins the keys of nested tensordicts by dots, but the key {name!r} contains a "
    "dot: rename it."
)
MSG_KEYS = (
    "to_mds got rows with the keys {first} and rows with the keys {other}, but each MDS "
    "sample has all columns. Select the common keys."
)
MSG_EMPTY = "to_mds cannot write an empty tensordict: it has no {missing}."
MSG_FINISHED = (
    "to_mds finished the writer passed by the caller after a tensordict with batch dims. "
    "Starting with TensorDict 0.17, the default will change to leaving it open, as for a "
    "tensordict without batch dims. Pass finish_writer=True or False to choose."
)
MSG_COLUMNS = (
    "to_mds got encodings for the columns {extra}, but the entries are {names}."
)
MSG_PATH = "from_mds found no index.json in {}: this is no directory of an MDS dataset."


def to_mds(
    td: CollectionProtocol,
    *,
    columns: dict[str, str] | None = None,
    out: str | tuple[str, str],
    keep_local: bool = False,
    compression: str | None = None,
    hashes: list[str] | None = None,
    size_limit: int | str | None = 1 << 26,
    writer: Any = None,
    finish_writer: bool | None = None,
    **kwargs: object,
) -> None:
    """Write the rows of a tensordict as the samples of an MDS dataset.

    Each index of the first batch dim is a sample. Without batch dims, ``td`` is one
    sample. Rows of tensors are written as arrays, or as numbers of their dtype if they
    have no dims. The keys of nested tensordicts are joined by dots. If a column has no
    encoding, nothing is written. A write that fails removes the files that it wrote.

    Args:
        td: the tensordict.
        columns: from names of the columns to write to their encodings. Default: all
            columns, encoded by dtype and type.
        out: a directory, a URL, or a pair of both.
        keep_local: whether to keep the local files after an upload.
        compression: such as ``"zstd"`` or ``"zstd:7"``.
        hashes: the names of the hashes to compute for each file.
        size_limit: the largest size of a file, in bytes or such as ``"64mb"``. None
            writes one file.
        writer: a ``streaming.MDSWriter`` to write to. Default: a new writer.
        finish_writer: whether to finish ``writer``. Default: if ``td`` has batch dims,
            with a warning that this will change.
        **kwargs: further keyword arguments of ``streaming.MDSWriter``.

    Raises:
        TypeError: a column has no encoding.
        ValueError: ``td`` has no entries or no rows, its rows differ in keys, or a row
            is an array without elements.
        KeyError: ``columns`` names a missing entry.
        ImportError: streaming is not installed.
    """
    check_collection(td, "to_mds")
    streaming = extra("streaming", "to_mds", INSTALL)
    table = _Columns(td, columns)
    if writer is not None:
        for sample in table.samples():
            writer.write(sample)
        if finish_writer is None and td.batch_dims:
            warn_caller(MSG_FINISHED, FutureWarning)
        if finish_writer or (finish_writer is None and td.batch_dims):
            writer.finish()
        return
    local = Path(out) if isinstance(out, str) and "://" not in out else None
    with _removing(local):
        new_writer = streaming.MDSWriter(
            columns=table.encodings,
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )
        with new_writer:
            for sample in table.samples():
                new_writer.write(sample)


@contextlib.contextmanager
def _removing(local: Path | None) -> Iterator[None]:
    """Remove the files of a failed write from a directory that was empty or missing."""
    existed = local is not None and local.exists()
    if local is None or (existed and any(local.iterdir())):
        yield
        return
    try:
        yield
    except BaseException:
        for path in local.iterdir() if local.is_dir() else ():
            path.unlink() if path.is_file() else shutil.rmtree(path)
        if not existed and local.is_dir():
            local.rmdir()
        raise


class _Columns:
    """The columns of a tensordict: their encodings and readers of their rows.

    Args:
        td: the tensordict.
        chosen: the encodings that the caller passed, or None.

    Raises:
        ValueError: there are no entries or no rows, or rows differ in keys.
        TypeError: a column has no encoding.
    """

    def __init__(self, td: Any, chosen: dict[str, str] | None) -> None:
        if td.batch_dims and not len(td):
            raise ValueError(MSG_EMPTY.format(missing="row"))
        members = [td] if td.batch_dims else [td.unsqueeze(0)]
        if not td._is_dense and getattr(td, "stack_dim", None) == 0:
            # Rows may differ in shapes and in keys.
            members = [member.unsqueeze(0) for member in td.unbind(0)]
        tables = [dict(_entries(member, ())) for member in members]
        names = list(tables[0])
        if not names:
            raise ValueError(MSG_EMPTY.format(missing="entry"))
        for table in tables:
            if set(table) != set(names):
                raise ValueError(MSG_KEYS.format(first=names, other=list(table)))
        self.encodings: dict[str, str] = {}
        if chosen is not None:
            more = [name for name in chosen if name not in tables[0]]
            if more:
                raise KeyMessageError(MSG_COLUMNS.format(extra=more, names=names))
            self.encodings = dict(chosen)
            tables = [{name: table[name] for name in chosen} for table in tables]
        self._parts: list[tuple[int, dict[str, Callable[[int], Any]]]] = []
        for table in tables:
            readers = {}
            rows = 0
            for name, (path, entry) in table.items():
                is_chosen = chosen is not None
                encoding, rows, read = _column(name, path, entry, is_chosen)
                if not is_chosen:
                    first_encoding = self.encodings.setdefault(name, encoding)
                    if first_encoding != encoding:
                        raise TypeError(
                            MSG_MIXED.format(
                                first=first_encoding,
                                other=encoding,
                                key=path_of(path),
                                name=name,
                            )
                        )
                readers[name] = read
            self._parts.append((rows, readers))

    def samples(self) -> Iterator[dict[str, Any]]:
        """Iterate over the rows, as dictionaries."""
        for rows, readers in self._parts:
            for row in range(rows):
                yield {name: read(row) for name, read in readers.items()}


def _entries(
    td: CollectionProtocol, path: tuple[str, ...]
) -> Iterator[tuple[str, tuple[tuple[str, ...], Any]]]:
    """Iterate over leaves and non-tensor data: joined name, key path and value."""
    for key, value in list(td.items()):
        key_path = (*path, key)
        is_nested = is_branch(value)
        if "." in key and (path or is_nested):
            raise ValueError(MSG_DOTS.format(name=key))
        if is_nested:
            yield from _entries(value, key_path)
        else:
            yield ".".join(key_path), (key_path, value)


def _column(
    name: str, path: tuple[str, ...], value: Any, is_chosen: bool
) -> tuple[str, int, Callable[[int], Any]]:
    """Return the encoding, the number of rows and the row reader of a column."""
    if isinstance(value, CollectionProtocol):
        non_tensor: Any = value
        cells = (
            [non_tensor.data] * len(non_tensor)
            if non_tensor._is_one
            else _cells(non_tensor)
        )
        encoding = "" if is_chosen else _encoding_of_values(name, path, cells)
        return encoding, len(cells), cells.__getitem__
    rows = special.rows(value)
    if rows is not None:
        parts = [_array(name, path, row[None], is_chosen)[0] for row in rows]
        return "ndarray", len(parts), parts.__getitem__
    array = _array(name, path, value, is_chosen)
    kind = array.dtype.name
    if array.ndim > 1:
        return "ndarray", len(array), array.__getitem__
    if kind in FLOATS or kind in SIZES:
        if is_chosen and kind in SIZES:
            return kind, len(array), array.tolist().__getitem__
        return kind, len(array), array.__getitem__
    return "int", len(array), array.tolist().__getitem__


def _array(
    name: str, path: tuple[str, ...], value: torch.Tensor, is_chosen: bool
) -> np.ndarray[Any, Any]:
    """Convert a leaf to an array that MDS can write.

    Raises:
        TypeError: MDS has no encoding for the dtype.
        ValueError: the rows have no elements.
    """
    of_arrays = value.ndim > 1
    try:
        array: np.ndarray[Any, Any] = value.detach().cpu().resolve_conj().numpy()
    except TypeError:
        array = np.zeros(0, "V1")
    if of_arrays and not is_chosen and 0 in value.shape[1:]:
        shape = tuple(value.shape[1:])
        raise ValueError(
            MSG_NO_ELEMENTS.format(shape=shape, key=path_of(path), name=name)
        )
    has_encoding = array.dtype.kind in ("iuf" if of_arrays else "iufb")
    if not has_encoding and not (is_chosen and array.dtype.kind in "bc"):
        raise TypeError(
            MSG_DTYPE.format(
                dtype=value.dtype,
                key=path_of(path),
                of_arrays=" in arrays" if array.dtype.kind == "b" else "",
                name=name,
            )
        )
    return array


def _cells(non_tensor: CollectionProtocol) -> list[Any]:
    """Return the objects of the rows; with more batch dims, lists of objects."""
    return (
        values_of(non_tensor)
        if non_tensor.batch_dims == 1
        else list(non_tensor.tolist())
    )


def _encoding_of_values(name: str, path: tuple[str, ...], cells: list[Any]) -> str:
    """Return the common encoding of the values of a column."""
    kinds = dict.fromkeys(type(cell) for cell in cells)
    first = next(iter(kinds))
    if len(kinds) > 1:
        other = [kind.__name__ for kind in kinds][1]
        raise TypeError(
            MSG_MIXED.format(
                first=first.__name__, other=other, key=path_of(path), name=name
            )
        )
    encoding = VALUES.get(first)
    if encoding == "ndarray" and not all(map(_is_written, cells)):
        encoding = None
    if encoding == "json":
        for cell in cells:
            _check_json(name, path, cell)
    if encoding is None:
        raise TypeError(
            MSG_TYPE.format(kind=first.__name__, key=path_of(path), name=name)
        )
    return encoding


def _is_written(array: np.ndarray[Any, Any]) -> bool:
    """Return whether MDS can write an array: numbers, at least one dim, not empty."""
    return array.dtype.kind in "iuf" and array.ndim > 0 and array.size > 0


def _check_json(name: str, path: tuple[str, ...], cell: object) -> None:
    """Raise an error for a value that JSON changes, such as a tuple or an array.

    Raises:
        TypeError: a JSON round trip changes the value.
    """
    try:
        is_kept = json.loads(json.dumps(cell)) == cell
    except (TypeError, ValueError):
        is_kept = False
    if not is_kept:
        msg = MSG_JSON.format(key=path_of(path), cell=cell, name=name)
        raise TypeError(msg)


# Reading ------------------------------------------------------------------------------


def from_mds(
    local: str | Path | None = None,
    *,
    remote: str | None = None,
    split: str | None = None,
    columns: Sequence[str] | None = None,
    separator: str | None = ".",
    validate_hash: str | None = None,
    allow_unsafe_types: bool = False,
    device: torch.device | str | int | None = None,
) -> TensorDict:
    """Read a whole MDS dataset into a tensordict, a row for each sample.

    For a dataset that does not fit into memory, use ``streaming.StreamingDataset`` and
    stack its samples with :meth:`TensorDict.from_list`.

    Args:
        local: the directory of the dataset, or of the local copy of ``remote``.
        remote: the URL to download the dataset from.
        split: the subfolder to read.
        columns: the columns to read. Default: all.
        separator: the text that separates the parts of nested keys in column names.
            None keeps column names as flat keys.
        validate_hash: the name of the hash to check the files with.
        allow_unsafe_types: whether to read pickled columns. Unpickling can run code.
        device: the device to move all entries to.

    Returns:
        A :class:`TensorDict` of batch size ``[N]``. Arrays of one shape are stacked.
        Arrays that differ in the first dim only become a nested tensor of jagged
        layout. Texts, bytes and objects become non-tensor data with one value for each
        row.

    Raises:
        FileNotFoundError: ``local`` is not an MDS dataset.
        KeyError: a column is missing.
        ValueError: neither ``local`` nor ``remote`` is passed, or a column is pickled
            and ``allow_unsafe_types`` is false.
        ImportError: streaming is not installed.
    """
    asked = "from_mds"
    base = extra("streaming.base", asked, INSTALL)
    worlds = extra("streaming.base.world", asked, INSTALL)
    local = None if local is None else os.fspath(local)
    if local is None and remote is None:
        msg = "from_mds needs local=, the directory of the dataset, or remote=."
        raise ValueError(msg)
    index = Path(local or "", split or "", "index.json")
    if remote is None and not index.is_file():
        raise FileNotFoundError(MSG_PATH.format(index.parent))
    stream = base.Stream(remote=remote, local=local, split=split)
    stream.apply_default(
        {
            "split": split,
            "download_retry": 2,
            "download_timeout": 60.0,
            "validate_hash": validate_hash,
            "keep_zip": False,
        }
    )
    # One node, one rank, one worker: this process reads all shards.
    single_process = worlds.World(1, 1, 1, 0)
    values: dict[str, list[Any]] = {}
    for shard in stream.get_shards(single_process, allow_unsafe_types):
        names = list(shard.column_names)
        if columns is not None:
            missing = [name for name in columns if name not in names]
            if missing:
                msg = (
                    f"from_mds got the columns {missing}, but the dataset has {names}."
                )
                raise KeyMessageError(msg)
            names = list(columns)
        stream.prepare_shard(shard)
        cells_of_columns = [values.setdefault(name, []) for name in names]
        for row in range(shard.samples):
            sample = shard[row]
            for name, column_cells in zip(names, cells_of_columns, strict=True):
                column_cells.append(sample[name])
    rows = max(map(len, values.values()), default=0)
    td: Any = TensorDict({}, [rows])
    for name, cells in values.items():
        key = tuple(name.split(separator)) if separator else name
        td.set(key, _entry(cells))
    return td if device is None else td.to(device)


def _entry(cells: list[Any]) -> Any:
    """Convert the values of a column to an entry of batch size ``[N]``."""
    kinds = {type(cell) for cell in cells}
    if kinds == {int}:
        with contextlib.suppress(OverflowError, RuntimeError):
            return torch.tensor(cells, dtype=torch.int64)
    elif all(issubclass(kind, np.generic) for kind in kinds):
        return torch.from_numpy(np.array(cells))
    elif kinds == {np.ndarray}:
        shapes = {cell.shape for cell in cells}
        dtypes = {cell.dtype for cell in cells}
        if len(shapes) == 1:
            return torch.from_numpy(np.stack(cells))
        if len(dtypes) == 1 and _is_ragged(shapes):
            parts = [torch.from_numpy(np.array(cell)) for cell in cells]
            return torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    stack: Any = CollectionProtocol._non_tensor_stack_type
    return stack._of_cells(cells, torch.Size([len(cells)]))


def _is_ragged(shapes: set[tuple[int, ...]]) -> bool:
    """Return whether shapes differ in their first dim only."""
    return len({shape[1:] for shape in shapes}) == 1 and all(shapes)
