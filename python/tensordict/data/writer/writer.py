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
    "rows_hint sets room aside on a disk, and the object store of {} has none to set aside: "
    "leave it out."
)
MSG_CLOSED = "This writer of {} is closed."
MSG_FORKED = (
    "This writer of {} belongs to the process that opened it: a forked process opens one "
    "for a part of its own, DatasetWriter(path, part=...)."
)
MSG_ROW = "A row is a collection or a dict, got {}."
MSG_ROWS = "Rows are a collection with a batch dim, or a list of rows, got {}."
MSG_NO_BATCH = "extend() takes rows along the first batch dim, and these have none."


class DatasetWriter(sources.Sources):
    """Write a dataset row by row to a directory that every loader of saves reads.

    Rows get visible to readers, in other processes too, at :meth:`flush`: all of them in
    one step. A process that is killed loses what it wrote since, and nothing else: whoever
    opens the path again goes on from there, without a repair.

    A key whose rows differ in shape becomes a column of values and shapes, texts become
    one of bytes: as with ``memmap(..., ragged="columns")``. The first rows need not say
    which these are.

    Args:
        path: the directory: a new one, or one that was saved, which gets further rows. Or
            the URL of one in an object store: rows gather in a temporary folder
            (``TMPDIR``), 128 MiB of them at most, and go up as objects of 64 MiB, or less at
            a flush.
        like: rows like those to come (or one, without batch dims), of which nothing is
            written. Default: the first rows say what the entries are.
        rows_hint: how many rows there will be, so that room is set aside at once, and a
            disk that has none says so at the beginning. Not for a URL.
        durable: whether :meth:`flush` waits until the disk has the rows, so that they
            survive a power cut. At a URL it always waits until the store has them.
        part: the name of a part. Each of several processes writes one, and
            :meth:`join` makes one dataset of them.
        class_names: by key the names of the classes that the numbers of an entry stand
            for, which are kept with the dataset.
        storage_options: the options of the object store of a URL, as for
            :meth:`TensorDict.memmap`.

    Raises:
        RuntimeError: another writer has the directory, or the part, open. (At a URL: one
            on this machine. Of two writers on two machines, :meth:`flush` of one raises
            ``FileExistsError``.)
        ValueError: the directory holds something else, or what cannot grow.

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
        # Also at the end of the process, before its modules are gone.
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
            td: a collection, or a dict that one is made of.

        Raises:
            ValueError: the row does not fit the others; it is left out.
            TypeError: it is no row.
            OSError: it cannot be written; it is left out.
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
        """Add a batch of rows: those along the first batch dim, or the items of a list.

        Args:
            td: a collection with a batch dim, such as a lazy stack of rows that differ in
                shape; or a list of rows.

        Raises:
            ValueError: they do not fit the others; none is added.
            TypeError: they are no rows.
            OSError: they cannot be written; none is added.
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
        """Let readers see all rows that were added, in one step.

        Raises:
            OSError: they cannot be written. Readers see what they saw before, and the
                rows are kept, so that this can be called again once there is room.
            FileExistsError: another writer has published at the URL meanwhile. The rows
                since the last flush are lost.
        """
        with self._guard:
            self._open_tree().publish(self.durable)

    def close(self) -> None:
        """Let readers see all rows, and end writing.

        Rows that were added are whole, also where the next one raised.
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
        """End writing without letting readers see the rows since the last flush."""
        with self._guard:
            if self._tree is not None and self._owner == os.getpid():
                self._tree.close()
            self._tree = None
            self._dropped.detach()

    # Looking ----------------------------------------------------------------------------

    def __len__(self) -> int:
        """Count the rows, with those that readers do not see yet."""
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
        """Make one dataset of the parts that several processes wrote.

        The rows of the parts, in the order of their names, follow those that the
        directory has. Killed, it is called again, and goes on. In an object store the
        dataset then leads to the objects of the parts, and no rows are read, as long as
        their keys, dtypes and numbers of dims are the same.

        Args:
            path: the directory that the parts were given, or the URL.
            durable: as for the writer.
            storage_options: as for the writer.

        Returns:
            The number of rows of the dataset.

        Raises:
            RuntimeError: a writer has the dataset or a part open.
        """
        if remote_parts.is_at_url(path):
            return remote_parts.join(DatasetWriter, path, storage_options)
        return parts.join(DatasetWriter, path, durable)

    # ------------------------------------------------------------------------------------

    def _expect(self, like: Any) -> None:
        """Make the entries of a new dataset, or compare with those that there are."""
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
    """Close the files of a writer that nobody has closed; a fork leaves them alone."""
    if owner == os.getpid():
        tree.forget()
