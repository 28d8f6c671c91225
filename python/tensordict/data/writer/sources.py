"""The ways in: datasets made of what others have."""

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
"""The items that a worker gets at once."""

FLUSH_S = 1.0
"""Rows are published about so often: what a kill loses of a long run."""

MSG_NO_FILES = "{} holds no files with one of the ends {}."
MSG_NO_DATASET = (
    "from_hugging_face takes a dataset of Hugging Face, got {}. Of a dict of splits pass "
    "one, as splits['train']; other rows are for from_iterable."
)
MSG_PROGRESS = "pbar=True needs tqdm: pip install tensordict-rs[progress]"
MSG_ARROW = "Files of Parquet need pyarrow: pip install tensordict-rs[parquet]"


class Sources(Closing):
    """Class methods that make a dataset of something else.

    All of them take

    - ``transform``, a function that makes a row (a collection or a dict) of each item, in
      ``num_workers`` workers: threads, or with ``backend="processes"`` processes;
    - ``resume=True`` to leave out as many items as there are rows: a run that was killed
      is started again;
    - ``pbar=True`` for a progress bar, and the arguments of the writer,

    and give the number of rows that the dataset has then.
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
        """Write a row for each item.

        Args:
            path: the directory of the dataset.
            items: what rows are made of. Without ``transform``: collections, or dicts of
                numbers, arrays, images, texts.
            transform: makes a row of an item.
            num_workers: how many workers call it. Default: this thread alone.
            backend: what they are: ``"threads"`` or ``"processes"``.
            resume: whether as many items are left out as there are rows.
            pbar: whether a progress bar is shown.
            total: how many items there are, for the bar. Default: their ``len``.
            **options: for the writer: ``like``, ``rows_hint``, ``durable``, ``part``,
                ``class_names``, ``storage_options``.

        Returns:
            how many rows the dataset has.

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
            ) as found:
                for rows in found:
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
        """Write a row for each image, or ``.npy`` file, in a folder and those below it.

        Each has the tensor, ``file``, its path from the folder, and, where files are in
        folders of their own, ``label``: the number of the folder, by the order of their
        names.

        Args:
            path: the directory of the dataset.
            folder: where the files are.
            key: the entry of the tensor. Default: ``"image"``, or ``"array"`` where all
                files are ``.npy``.
            size: height and width that images are scaled to. Default: as they are; a column
                of images of several sizes is a ragged one.
            suffixes: the ends of the names of the files. Default: those of images, and
                ``.npy``.
            **options: as for :meth:`from_iterable`.

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
        """Write the rows of a table of Arrow: a table, a reader, or record batches.

        Args:
            path: the directory of the dataset.
            batches: the table, a reader of record batches, or an iterable of them.
            nulls: as for :func:`tensordict.from_arrow`.
            resume: whether as many rows are left out as the dataset has.
            pbar: whether a progress bar is shown.
            total: how many rows there are, for the bar.
            **options: for the writer.
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
        """Write the rows of files of Parquet, one after the other.

        Args:
            path: the directory of the dataset.
            files: their paths, or one.
            columns: which columns. Default: all.
            **options: as for :meth:`from_arrow`.

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
        """Write the rows of a dataset of Hugging Face's ``datasets``.

        Images, numbers, arrays, lists of numbers and texts are converted. An empty list has
        the dtype that its feature says. The names of a ``ClassLabel`` are kept, as
        :attr:`DatasetReader.class_names`. A dataset that is indexed is read by the workers,
        a streamed one by this thread.

        Args:
            path: the directory of the dataset.
            dataset: a ``datasets.Dataset`` or ``IterableDataset``: a split, and not a dict
                of them.
            transform: makes a row of an item. Default: its fields.
            **options: as for :meth:`from_iterable`.

        Raises:
            TypeError: it is a dict of splits, or no dataset.
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
            # It is streamed.
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
        """Write the samples of tar files as ``webdataset`` makes them.

        Files of one name are a row, a field each: images, ``npy``, ``cls``, ``json`` and
        ``txt`` are decoded, others stay bytes. ``__key__`` is the name.

        Args:
            path: the directory of the dataset.
            shards: the paths of the tar files, or one.
            transform: makes a row of a sample, a dict of bytes. Default: as said.
            **options: as for :meth:`from_iterable`.
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
    """The row of a file."""
    row = {key: decoding.read_file(folder / name, size), "file": name.as_posix()}
    if labels:
        row["label"] = torch.tensor(labels.get(name.parts[0], -1))
    return row if function is None else function(row)


def _indexed_row(dataset: Any, function: Callable[[Any], Any], at: int) -> Any:
    """The row of an item of a dataset that is indexed."""
    return function(dataset[at])


def _rows(
    items: Iterator[Any],
    function: Callable[[Any], Any],
    num_workers: int,
    backend: str,
) -> Generator[list[Any], None, None]:
    """The rows of the items, in their order, some at once."""
    if not num_workers:
        while part := list(itertools.islice(items, CHUNK)):
            yield _converted(function, part)
        return
    call: Any = functools.partial(_converted_chunk, function)
    how: dict[str, Any] = {"backend": backend, "num_workers": num_workers}
    with contextlib.ExitStack() as stack:
        if backend == "processes":
            from tensordict.parallel import WorkerPool

            # Processes that start once, for all of the blocks.
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
    """A function that is told how many rows were added."""
    if not is_shown:
        yield lambda _: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError(MSG_PROGRESS) from None
    with tqdm(total=total, unit="row", desc="writing") as bar:
        yield bar.update
