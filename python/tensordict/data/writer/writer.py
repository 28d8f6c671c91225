"""Write a dataset row by row."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tensordict import TensorDict
from tensordict.data.writer import decoding, parts, remote_parts, sources
from tensordict.primitives.checks import is_branch
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.growing.rows import Level, level_of_members, level_of_rows
from tensordict.storage.growing.tree import GrowingTree
from tensordict.storage.locations import new_directory

__all__ = ["DatasetWriter"]

MSG_HINT = (
    "rows_hint reserves space on a disk, but {} is in an object store, where nothing is "
    "reserved: leave it out."
)
MSG_CLOSED = "This writer of {} is closed: open a new one."
MSG_FORKED = (
    "This writer of {} belongs to the process that opened it. In a forked process, open a "
    "writer of a separate part: DatasetWriter(path, part=...)."
)
MSG_ROW = "A row must be a collection or a dict, got {}."
MSG_ROWS = "extend() needs a collection with a batch dim, or a list of rows, got {}."
MSG_NO_BATCH = (
    "extend() takes rows along the first batch dim, but this has no batch dims."
)


class DatasetWriter(sources.Sources):
    """A writer that adds rows to a dataset in a directory, which all loaders of saves read.

    Readers, also in other processes, see new rows after :meth:`flush`, all of them
    atomically. If the process is killed, only rows after the last flush are lost. Open
    the path again to continue; no repair is needed.

    If the rows of a key differ in shape, it becomes a column of values and shapes;
    strings become a column of bytes, as with ``memmap(..., ragged="columns")``. This
    may also turn out after the first rows.

    Args:
        path: the directory: a new one, or an existing save, to which rows are added. Or
            a URL in an object store: rows are collected in a temporary folder (below
            ``TMPDIR``, at most 128 MiB) and uploaded as objects of 64 MiB, or less at a
            flush.
        like: example rows (or one row, without batch dims) that determine the entries;
            they are not written. Default: the first rows determine the entries.
        rows_hint: the expected number of rows. Disk space for them is reserved at once,
            so that a full disk is noticed at the start. Not for a URL.
        durable: whether :meth:`flush` waits until the rows are on the disk, so that
            they survive a power cut. For a URL, it always waits for the store.
        part: the name of a part. Several processes each write one part, and
            :meth:`join` makes one dataset of them.
        class_names: the names of the classes to which the numbers of an entry refer, by
            key. They are saved with the dataset.
        storage_options: the options of the object store of a URL, as for
            :meth:`TensorDict.memmap`.

    Raises:
        RuntimeError: another writer has the directory or the part open. For a URL, only
            writers on this machine are noticed; with a writer on another machine, a
            :meth:`flush` of one of them raises ``FileExistsError``.
        ValueError: the directory contains something else, or a save that cannot grow.

    Examples:
        >>> import tempfile
        >>> from tensordict.data import DatasetWriter
        >>> path = tempfile.mkdtemp()
        >>> with DatasetWriter(path) as writer:
        ...     writer.append(TensorDict(image=torch.zeros(2, 2), label=1, name="first"))
        ...     writer.extend([TensorDict(image=torch.ones(2, 2), label=2, name="second")])
        >>> data = TensorDict.load_memmap(path)
        >>> data["label"], data["name"]
        (MemoryMappedTensor([1, 2]), LinkedList(['first', 'second']))
    """

    def __init__(
        self,
        path: str | Path,
        *,
        like: object = None,
        rows_hint: int | None = None,
        durable: bool = False,
        part: str | int | None = None,
        class_names: Mapping[Any, Sequence[str]] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.path: Path | str
        self._tree: GrowingTree | None
        if remote_parts.is_at_url(path):
            if rows_hint:
                raise ValueError(MSG_HINT.format(path))
            remote = remote_parts.opened(path, part, storage_options)
            self._tree = remote
            self.path = remote.place.url
        else:
            path = new_directory(path)
            self.path = Path(path) if part is None else parts.part_path(path, part)
            self._tree = GrowingTree(self.path)
        self.durable = durable
        self._guard = threading.RLock()
        self._owner = os.getpid()
        # The finalizer also runs at exit, before modules are torn down.
        self._dropped = weakref.finalize(self, _close_dropped, self._tree, os.getpid())
        self._rows_hint = rows_hint
        self._is_stack = False
        self._class_names = dict(class_names or {})
        try:
            if self._tree.root is not None:
                self._tree.check_first_dim(torch.Size([1]))
                self._tree.name_classes(self._class_names)
            if like is not None:
                self._expect(like)
            self._reserve()
        except BaseException:
            self.abandon()
            raise

    # Writing ----------------------------------------------------------------------------

    def append(self, td: Any) -> None:
        """Add one row.

        Args:
            td: a tensordict of any class, or a dict of its entries.

        Raises:
            ValueError: the row does not fit the others. It is not added.
            TypeError: ``td`` is not a row.
            OSError: the row cannot be written. It is not added.
        """
        kind = type(td)
        if kind is dict or (kind is TensorDict and not td._batch_size):
            with self._guard:
                entries = td if kind is dict else td._tensordict
                if self._open_tree().add_row(entries):
                    return
        if isinstance(td, Mapping) and not isinstance(td, CollectionProtocol):
            td = decoding.row_of(td)
        if not _is_collection(td):
            raise TypeError(MSG_ROW.format(type(td)))
        self._add(level_of_members([td]), 1)

    def extend(self, td: Any) -> None:
        """Add several rows: along the first batch dimension, or the items of a list.

        Args:
            td: a tensordict with a batch dimension, such as a lazy stack of ragged
                rows; or a list of rows.

        Raises:
            ValueError: the rows do not fit the others. None is added.
            TypeError: ``td`` contains no rows.
            OSError: the rows cannot be written. None is added.
        """
        if isinstance(td, (list, tuple)):
            rows = [
                decoding.row_of(row) if isinstance(row, dict) else row for row in td
            ]
            for row in rows:
                if not _is_collection(row):
                    raise TypeError(MSG_ROW.format(type(row)))
            if rows:
                self._add(level_of_members(rows), len(rows))
            return
        if isinstance(td, Mapping) and not isinstance(td, CollectionProtocol):
            td = TensorDict.from_dict(td, auto_batch_size=True, batch_dims=1)
        if not _is_collection(td):
            raise TypeError(MSG_ROWS.format(type(td)))
        if not td.batch_size:
            raise ValueError(MSG_NO_BATCH)
        self._add(level_of_rows(td), td.batch_size[0])

    def flush(self) -> None:
        """Publish all added rows to readers, atomically.

        Raises:
            OSError: the rows cannot be written. Readers see the same rows as before.
                The new rows are kept, so call this again when there is space.
            FileExistsError: another writer has published at the URL meanwhile. The rows
                since the last flush are lost.
            RuntimeError: ``tensordict clean`` has deleted objects of the rows at the URL.
                The rows since the last flush are lost.
        """
        with self._guard:
            self._open_tree().publish(self.durable)

    def close(self) -> None:
        """Publish all added rows, and close the writer.

        Rows that were added are complete, also if a later row raised an error.
        """
        with self._guard:
            if self._tree is None:
                return
            if self._owner == os.getpid():
                self._tree.publish(self.durable)
                self._tree.close()
            self._tree = None
            self._dropped.detach()

    def abandon(self) -> None:
        """Close the writer without publishing the rows since the last flush."""
        with self._guard:
            if self._tree is not None and self._owner == os.getpid():
                self._tree.close()
            self._tree = None
            self._dropped.detach()

    # Reading ------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of rows, including rows that are not published yet."""
        return self._open_tree().num_rows

    @property
    def published_rows(self) -> int:
        """The number of rows that readers see."""
        return self._open_tree().published_rows

    def __repr__(self) -> str:
        state = "closed" if self._tree is None else f"{self._tree.num_rows} rows"
        return f"{type(self).__name__}({str(self.path)!r}, {state})"

    @staticmethod
    def join(
        path: str | Path,
        *,
        durable: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> int:
        """Join the parts that several processes wrote to one dataset.

        The rows of the parts are added to the dataset in the order of the parts' names.
        All parts are checked first: if the rows of a part do not fit, the dataset and all
        parts stay as they were. If a join is killed, call it again to continue. In an
        object store, readers see the rows of all parts at once. The dataset refers to the
        objects of the parts, and rows are not read, if keys, dtypes and numbers of
        dimensions are equal.

        Args:
            path: the directory or URL that was passed to the writers of the parts.
            durable: as for the writer.
            storage_options: as for the writer.

        Returns:
            The number of rows of the dataset.

        Raises:
            RuntimeError: a writer has the dataset or a part open, or rows were added since
                a join that was killed.
            ValueError: the rows of a part do not fit the rows of the dataset.
        """
        if remote_parts.is_at_url(path):
            return remote_parts.join(DatasetWriter, path, storage_options)
        return parts.join(DatasetWriter, path, durable)

    # Private ------------------------------------------------------------------------------

    def _expect(self, like: Any) -> None:
        """Create the entries of a new dataset, or compare with the existing entries."""
        tree = self._open_tree()
        if isinstance(like, Mapping) and not isinstance(like, CollectionProtocol):
            like = TensorDict(like)
        if not _is_collection(like):
            raise TypeError(MSG_ROW.format(type(like)))
        size = like.batch_size
        level = level_of_rows(like) if size else level_of_members([like])
        if tree.root is None:
            self._make(level)
        elif not size or size[0]:
            tree.check(level, size[0] if size else 1)

    def _add(self, level: Level, count: int) -> None:
        with self._guard:
            tree = self._open_tree()
            if tree.root is None:
                self._make(level)
                self._reserve()
            if count:
                tree.add(level, count)

    def _make(self, level: Level) -> None:
        tree = self._open_tree()
        tree.make(level, self._is_stack)
        tree.name_classes(self._class_names)

    def _reserve(self) -> None:
        tree = self._open_tree()
        if self._rows_hint and tree.root is not None:
            tree.reserve(self._rows_hint)

    def _open_tree(self) -> GrowingTree:
        if self._tree is None:
            raise ValueError(MSG_CLOSED.format(self.path))
        if self._owner != os.getpid():
            raise RuntimeError(MSG_FORKED.format(self.path))
        return self._tree


def _is_collection(td: CollectionProtocol) -> bool:
    return is_branch(td)


def _close_dropped(tree: GrowingTree, owner: int) -> None:
    """Close the files of a writer that was not closed, unless this process is a fork."""
    if owner == os.getpid():
        tree.forget()
