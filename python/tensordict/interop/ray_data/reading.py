"""Ray Data tasks that read ranges of rows of a save."""

from __future__ import annotations

import functools
import pickle
from typing import TYPE_CHECKING, Any

from tensordict.containers.dense import TensorDict
from tensordict.interop.ray_data.blocks import table_of
from tensordict.interop.ray_data.describing import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray import ObjectRef

    from tensordict.interop.ray_data.describing import Description
    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["Folder", "Held", "datasource"]

MSG_CHANGED = (
    "{path} has {found} rows on this Ray worker, but read_ray found {rows}: the save was "
    "replaced, or this machine has another directory there. Call read_ray again, with a "
    "directory that all machines share."
)
MSG_MISSING = (
    "The machine of this Ray worker has no save at {path}. Put the save on a file system "
    "that all machines share, or in an object store."
)

# Ray may log the arguments of operators. The text of these two classes hides their content,
# such as the credentials of an object store.


class Held:
    """A tensordict whose pickle contains the address of its rows, not the rows."""

    def __init__(self, td: CollectionProtocol) -> None:
        # Pickling here raises the error for an address that no worker can reach.
        self._packed = pickle.dumps(td)

    def open(self) -> Any:
        """Return the tensordict."""
        return pickle.loads(self._packed)  # noqa: S301 # pickled by the caller


class Folder:
    """A save in a folder that all machines share."""

    def __init__(self, path: str, keys: list[Any] | None, rows: int) -> None:
        self._path = path
        self._keys = keys
        self._rows = rows

    def open(self) -> TensorDict:
        """Map the files.

        Raises:
            FileNotFoundError: this machine has no save at the path.
            RuntimeError: the save has fewer rows than before.
        """
        try:
            td = TensorDict.load_memmap(self._path, mode="r")
        except FileNotFoundError as error:
            raise FileNotFoundError(2, MSG_MISSING.format(path=self._path)) from error
        if len(td) < self._rows:
            message = MSG_CHANGED.format(
                path=self._path, found=len(td), rows=self._rows
            )
            raise RuntimeError(message)
        return td if self._keys is None else td.select(*self._keys)


def _read(
    source: ObjectRef[Held | Folder],
    start: int,
    stop: int,
    step: int,
    separator: str,
    types: dict[str, Any],
) -> Iterator[Any]:
    """Yield the blocks of a range of rows, in a worker."""
    import ray

    td = ray.get(source).open()
    for first in range(start, stop, step):
        yield table_of(td[first : min(first + step, stop)], separator, types)
    if start == stop:
        yield table_of(td[start:stop], separator, types)


def datasource(td: CollectionProtocol, source: Held | Folder, separator: str) -> Any:
    """Make a data source for :func:`ray.data.read_datasource`.

    Args:
        td: the tensordict. Its rows are not read.
        source: opens the tensordict in workers.
        separator: the text between the parts of nested keys in column names.
    """
    description = describe(td, separator)
    return _datasource_class()(source, td.batch_size[0], separator, description)


@functools.cache
def _datasource_class() -> Any:
    import ray
    from ray.data.block import BlockMetadata
    from ray.data.context import DataContext
    from ray.data.datasource import Datasource, ReadTask

    class TensorDictDatasource(Datasource):
        """Rows of a save."""

        def __init__(
            self,
            source: Held | Folder,
            rows: int,
            separator: str,
            description: Description,
        ) -> None:
            super().__init__()
            self._source = source
            self._rows = rows
            self._separator = separator
            self._description = description

        def estimate_inmemory_data_size(self) -> int:
            """Return the bytes of all rows."""
            return self._description.num_bytes

        def get_read_tasks(
            self,
            parallelism: int,
            per_task_row_limit: int | None = None,
            data_context: DataContext | None = None,
        ) -> list[Any]:
            """Return tasks, each of which reads a range of rows."""
            rows = self._rows
            count = max(1, min(parallelism, rows))
            row_bytes = max(1, self._description.num_bytes // max(1, rows))
            context = data_context or DataContext.get_current()
            most = context.target_max_block_size or row_bytes * max(1, rows)
            step = max(1, most // row_bytes)
            reference = ray.put(self._source)
            tasks = []
            for number in range(count):
                start, stop = rows * number // count, rows * (number + 1) // count
                if per_task_row_limit is not None:
                    stop = min(stop, start + per_task_row_limit)
                read = functools.partial(
                    _read,
                    reference,
                    start,
                    stop,
                    step,
                    self._separator,
                    self._description.types,
                )
                tasks.append(self._task(read, stop - start, row_bytes))
            return tasks

        def _task(self, read: Any, rows: int, row_bytes: int) -> ReadTask:
            metadata = BlockMetadata(
                num_rows=rows,
                size_bytes=rows * row_bytes,
                input_files=None,
                exec_stats=None,
            )
            return ReadTask(read, metadata, schema=self._description.schema)

    return TensorDictDatasource
