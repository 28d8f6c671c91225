"""Class methods that convert other data to datasets."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tensordict import NonTensorStack, TensorDict
from tensordict.data.writer import decoding
from tensordict.primitives.closing import Closing
from tensordict.primitives.protocol import CollectionProtocol
from tensordict.storage.locations import local

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

__all__ = ["Sources"]

CHUNK = 16
"""The number of items that a worker takes at a time."""

FLUSH_S = 1.0
"""The seconds between two flushes in a long run; a kill loses the rows after a flush."""

MSG_NO_FILES = "{} contains no files with one of the suffixes {}."
MSG_NO_DATASET = (
    "from_hugging_face needs a Hugging Face dataset, got {}. From a dict of splits pass one "
    "split, as splits['train']; for other rows use from_iterable."
)
MSG_PROGRESS = "pbar=True needs tqdm: pip install tensordict-rs[progress]"
MSG_ARROW = "Parquet files need pyarrow: pip install tensordict-rs[parquet]"


class Sources(Closing):
    """The base class of ``DatasetWriter`` with the conversions from other data.

    All conversions take

    - ``transform``, a function that makes a row (a tensordict or a dict) of each item,
      in ``num_workers`` threads, or with ``backend="processes"`` in processes;
    - ``resume=True`` to skip as many items as the dataset has rows, after a killed run;
    - ``pbar=True`` for a progress bar, and the arguments of the writer.

    They return the number of rows of the dataset.
    """

    if TYPE_CHECKING:

        def __init__(self, path: str | Path, **options: object) -> None: ...
        def __len__(self) -> int: ...
        def extend(self, td: object) -> None: ...  # noqa: D102 - for annotations only
        def flush(self) -> None: ...  # noqa: D102 - for annotations only

    @classmethod
    def from_iterable(
        cls,
        path: str | Path,
        items: Iterable[Any],
        *,
        transform: Callable[[Any], Any] | None = None,
        num_workers: int = 0,
        backend: str = "threads",
        resume: bool = False,
        pbar: bool = False,
        total: int | None = None,
        **options: Any,
    ) -> int:
        """Write one row for each item.

        Args:
            path: the directory of the dataset.
            items: the items. Without ``transform``: tensordicts, or dicts of numbers,
                arrays, images and strings.
            transform: a function that makes a row of an item.
            num_workers: the number of workers that call ``transform``. Default: 0,
                which calls it in this thread.
            backend: the kind of workers: ``"threads"`` or ``"processes"``.
            resume: whether to skip as many items as the dataset has rows.
            pbar: whether to show a progress bar.
            total: the number of items, for the progress bar. Default: ``len(items)``.
            **options: options of the writer: ``like``, ``rows_hint``, ``durable``,
                ``part``, ``class_names``, ``storage_options``.

        Returns:
            The number of rows of the dataset.

        Examples:
            >>> import tempfile
            >>> from tensordict.data import DatasetWriter
            >>> path = tempfile.mkdtemp()
            >>> DatasetWriter.from_iterable(
            ...     path, range(3), transform=lambda n: {"x": torch.ones(n), "n": n}
            ... )
            3
            >>> TensorDict.load_memmap(path)[2]["x"]
            tensor([1., 1.])
        """
        if total is None and isinstance(items, Sized):
            total = len(items)
        with cls(path, **options) as writer, _bar(pbar, total) as advance:
            done = len(writer) if resume else 0
            advance(done)
            todo = itertools.islice(items, done, None)
            function = decoding.as_row if transform is None else transform
            flushed = time.monotonic()
            with contextlib.closing(
                _rows(todo, function, num_workers, backend)
            ) as chunks:
                for rows in chunks:
                    writer.extend(rows)
                    advance(len(rows))
                    if time.monotonic() - flushed > FLUSH_S:
                        writer.flush()
                        flushed = time.monotonic()
            writer.flush()
            return len(writer)

    @classmethod
    def from_folder(
        cls,
        path: str | Path,
        folder: str | Path,
        *,
        key: str | None = None,
        size: tuple[int, int] | None = None,
        suffixes: Iterable[str] | None = None,
        **options: Any,
    ) -> int:
        """Write one row for each image or ``.npy`` file in a folder and its subfolders.

        A row contains the tensor and ``file``, the path relative to the folder. If the
        files are in subfolders, a row also contains ``label``, the number of the
        subfolder in the order of names.

        Args:
            path: the directory of the dataset.
            folder: the folder with the files.
            key: the key of the tensor. Default: ``"image"``, or ``"array"`` if all
                files are ``.npy``.
            size: the height and width to which images are scaled. Default: unscaled; if
                sizes differ, the column is ragged.
            suffixes: the suffixes of the files. Default: the suffixes of images, and
                ``.npy``.
            **options: as for :meth:`from_iterable`.

        Returns:
            The number of rows of the dataset.

        Raises:
            FileNotFoundError: there are no such files.
        """
        folder = Path(local(folder))
        ends = tuple((*decoding.IMAGES, ".npy") if suffixes is None else suffixes)
        files = sorted(
            found
            for found in folder.rglob("*")
            if found.is_file() and found.name.lower().endswith(ends)
        )
        if not files:
            raise FileNotFoundError(2, MSG_NO_FILES.format(folder, ends), str(folder))
        if key is None:
            is_array = all(file.suffix.lower() == ".npy" for file in files)
            key = "array" if is_array else "image"
        names = [file.relative_to(folder) for file in files]
        groups = sorted({name.parts[0] for name in names if len(name.parts) > 1})
        labels = {name: number for number, name in enumerate(groups)}
        function = options.pop("transform", None)
        if groups and function is None:
            options.setdefault("class_names", {"label": groups})
        row = functools.partial(_file_row, folder, key, size, labels, function)
        return cls.from_iterable(path, names, transform=row, **options)

    @classmethod
    def from_arrow(
        cls,
        path: str | Path,
        batches: Any,
        *,
        nulls: str = "raise",
        resume: bool = False,
        pbar: bool = False,
        total: int | None = None,
        **options: object,
    ) -> int:
        """Write the rows of an Arrow table, reader, or iterable of record batches.

        Args:
            path: the directory of the dataset.
            batches: a table, a reader of record batches, or an iterable of record
                batches.
            nulls: as for :func:`tensordict.from_arrow`.
            resume: whether to skip as many rows as the dataset has.
            pbar: whether to show a progress bar.
            total: the number of rows, for the progress bar.
            **options: options of the writer.

        Returns:
            The number of rows of the dataset.
        """
        from tensordict import from_arrow

        if hasattr(batches, "num_rows"):
            total = batches.num_rows
            batches = (
                batches.to_batches() if hasattr(batches, "to_batches") else [batches]
            )
        with cls(path, **options) as writer, _bar(pbar, total) as advance:
            left_out = len(writer) if resume else 0
            advance(left_out)
            for batch in batches:
                skipped = min(left_out, batch.num_rows)
                left_out -= skipped
                rest = batch.slice(skipped)
                if rest.num_rows:
                    writer.extend(from_arrow(rest, nulls=nulls))  # type: ignore[arg-type]
                    writer.flush()
                    advance(rest.num_rows)
            return len(writer)

    @classmethod
    def from_parquet(
        cls,
        path: str | Path,
        files: str | Path | Iterable[str | Path],
        *,
        columns: list[str] | None = None,
        **options: Any,
    ) -> int:
        """Write the rows of Parquet files, one file after the other.

        Args:
            path: the directory of the dataset.
            files: the paths of the files, or one path.
            columns: the columns to read. Default: all.
            **options: as for :meth:`from_arrow`.

        Returns:
            The number of rows of the dataset.

        Raises:
            ImportError: pyarrow is not installed.
        """
        try:
            from pyarrow import parquet
        except ImportError:
            raise ImportError(MSG_ARROW) from None
        paths = [files] if isinstance(files, (str, Path)) else list(files)
        opened = [parquet.ParquetFile(file) for file in paths]
        options.setdefault("total", sum(file.metadata.num_rows for file in opened))
        batches = (
            batch for file in opened for batch in file.iter_batches(columns=columns)
        )
        try:
            return cls.from_arrow(path, batches, **options)
        finally:
            for file in opened:
                file.close()

    @classmethod
    def from_hugging_face(
        cls,
        path: str | Path,
        dataset: Any,
        *,
        transform: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> int:
        """Write the rows of a Hugging Face dataset.

        Images, numbers, arrays, lists of numbers and strings are converted. An empty
        list gets the dtype of its feature. The names of a ``ClassLabel`` are kept in
        :attr:`DatasetReader.class_names`. Workers read an indexed dataset; this thread
        reads a streamed dataset.

        Args:
            path: the directory of the dataset.
            dataset: a ``datasets.Dataset`` or ``IterableDataset``: one split, not a
                dict of splits.
            transform: a function that makes a row of an item. Default: the item's
                fields.
            **options: as for :meth:`from_iterable`.

        Returns:
            The number of rows of the dataset.

        Raises:
            TypeError: ``dataset`` is a dict of splits, or no dataset.
        """
        if not hasattr(dataset, "features"):
            raise TypeError(MSG_NO_DATASET.format(type(dataset).__name__))
        features = dataset.features or {}
        function = transform
        if function is None:
            function = functools.partial(
                decoding.as_row, kinds=decoding.kinds_of(features)
            )
            options.setdefault("class_names", decoding.class_names_of(features))
        try:
            count = len(dataset)
        except TypeError:
            # A streamed dataset has no length.
            return cls.from_iterable(path, dataset, transform=function, **options)
        row = functools.partial(_indexed_row, dataset, function)
        return cls.from_iterable(path, range(count), transform=row, **options)

    @classmethod
    def from_webdataset(
        cls,
        path: str | Path,
        shards: str | Path | Iterable[str | Path],
        *,
        transform: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> int:
        """Write the samples of tar files in the format of ``webdataset``.

        Files of one stem are one row, with a field for each suffix. Images, ``npy``,
        ``cls``, ``json`` and ``txt`` are decoded; other fields stay bytes. ``__key__``
        is the stem.

        Args:
            path: the directory of the dataset.
            shards: the paths of the tar files, or one path.
            transform: a function that makes a row of a sample, a dict of bytes.
                Default: the decoding above.
            **options: as for :meth:`from_iterable`.

        Returns:
            The number of rows of the dataset.
        """
        paths = [shards] if isinstance(shards, (str, Path)) else shards
        function = decoding.decoded_sample if transform is None else transform
        samples = decoding.tar_samples(paths)
        return cls.from_iterable(path, samples, transform=function, **options)


def _file_row(
    folder: Path,
    key: str,
    size: tuple[int, int] | None,
    labels: dict[str, int],
    function: Callable[[Any], Any] | None,
    name: Path,
) -> Any:
    """Return the row of a file."""
    row = {key: decoding.read_file(folder / name, size), "file": name.as_posix()}
    if labels:
        row["label"] = torch.tensor(labels.get(name.parts[0], -1))
    return row if function is None else function(row)


def _indexed_row(dataset: Any, function: Callable[[Any], Any], at: int) -> Any:
    """Return the row of an item of an indexed dataset."""
    return function(dataset[at])


def _rows(
    items: Iterator[Any],
    function: Callable[[Any], Any],
    num_workers: int,
    backend: str,
) -> Generator[list[Any], None, None]:
    """Yield the rows of the items in order, several at a time."""
    if not num_workers:
        while part := list(itertools.islice(items, CHUNK)):
            yield _converted(function, part)
        return
    call: Any = functools.partial(_converted_chunk, function)
    how: dict[str, Any] = {"backend": backend, "num_workers": num_workers}
    with contextlib.ExitStack() as stack:
        if backend == "processes":
            from tensordict.parallel import WorkerPool

            # One pool of processes for all blocks.
            how = {"pool": stack.enter_context(WorkerPool(num_workers))}
        while block := list(itertools.islice(items, 4 * CHUNK * num_workers)):
            cells = NonTensorStack._of_cells(block, torch.Size([len(block)]))
            td = TensorDict(batch_size=[len(block)])
            td._tensordict["item"] = cells
            yield from td.map_iter(call, chunksize=CHUNK, **how)


def _converted_chunk(function: Callable[[Any], Any], chunk: Any) -> list[Any]:
    return _converted(function, chunk._get_entry("item", None)._flat())


def _converted(function: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    rows = []
    for item in items:
        row = function(item)
        rows.append(
            row if isinstance(row, CollectionProtocol) else decoding.as_row(row)
        )
    return rows


@contextlib.contextmanager
def _bar(is_shown: bool, total: int | None) -> Iterator[Callable[[int], Any]]:
    """Yield a function that advances the progress bar by a number of rows."""
    if not is_shown:
        yield lambda _: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError(MSG_PROGRESS) from None
    with tqdm(total=total, unit="row", desc="writing") as bar:
        yield bar.update
