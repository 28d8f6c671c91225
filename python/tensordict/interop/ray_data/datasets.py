"""Conversion of tensordicts to Ray Data datasets and back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensordict.containers.dense import TensorDict
from tensordict.containers.remote import RemoteTensorDict
from tensordict.interop.leaves import extra
from tensordict.interop.ray_data.blocks import table_of
from tensordict.interop.ray_data.describing import describe
from tensordict.interop.ray_data.joining import joined
from tensordict.interop.ray_data.reading import Folder, Held, datasource
from tensordict.interop.tables import arrow
from tensordict.interop.tables.columns import Asked, collection, rules_of
from tensordict.primitives.checks import inside
from tensordict.storage.locations import local
from tensordict.storage.remote import is_remote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    import pyarrow as pa

    from tensordict.primitives.protocol import CollectionProtocol

__all__ = ["from_ray_dataset", "read_ray", "to_ray_dataset"]

INSTALL = "pip install 'tensordict-rs[ray]'"
MIN_BLOCK_BYTES = 1 << 20
"""The smallest bytes of a block when a table is split for all processors."""

MSG_NO_BATCH = (
    "{} needs a batch dimension for the rows, got the batch size []. Call td.unsqueeze(0) "
    "first."
)
MSG_NO_ENTRIES = (
    "{} got a tensordict without entries, but a Ray Data dataset needs a column. Set an "
    "entry first."
)
MSG_SEPARATOR = "separator joins nested keys to column names and must be a text such as '.', got {!r}."
MSG_BLOCKS = "override_num_blocks must be a positive number, got {!r}."
MSG_KIND = "{} expects a dataset of Ray Data, got a {}."
MSG_NO_COLLECTION = "read_ray expects the save of a tensordict at {path}, got a {kind}."


def _check(
    method: str, td: CollectionProtocol, separator: object, num_blocks: int | None
) -> None:
    """Check the arguments, and that the tensordict has a batch dim.

    Raises:
        ValueError: ``td`` has no batch dim, or an argument has a wrong value.
    """
    if not isinstance(separator, str) or not separator:
        raise ValueError(MSG_SEPARATOR.format(separator))
    if num_blocks is not None and (not isinstance(num_blocks, int) or num_blocks < 1):
        raise ValueError(MSG_BLOCKS.format(num_blocks))
    if not td.batch_dims:
        raise ValueError(MSG_NO_BATCH.format(method))


def to_ray_dataset(
    td: CollectionProtocol, separator: str, override_num_blocks: int | None
) -> Any:
    """See :meth:`TensorDict.to_ray_dataset`."""
    method = "to_ray_dataset"
    data = extra("ray.data", method, INSTALL)
    _check(method, td, separator, override_num_blocks)
    if isinstance(inside(td), RemoteTensorDict):
        source = datasource(td, Held(td), separator)
        return data.read_datasource(source, override_num_blocks=override_num_blocks)
    table = table_of(td, separator, describe(td, separator).types)
    if not table.num_columns:
        raise ValueError(MSG_NO_ENTRIES.format(method))
    count = override_num_blocks or _num_blocks(data, table)
    rows = table.num_rows
    parts = [
        table.slice(
            rows * number // count,
            rows * (number + 1) // count - rows * number // count,
        )
        for number in range(count)
    ]
    return data.from_arrow(parts)


def _num_blocks(data: ModuleType, table: pa.Table) -> int:
    """Return a number of blocks that keeps all processors busy."""
    import ray

    if not ray.is_initialized():
        ray.init()
    max_bytes = (
        data.DataContext.get_current().target_max_block_size or table.nbytes or 1
    )
    processors = int(ray.cluster_resources().get("CPU", 1))
    count = max(
        min(2 * processors, table.nbytes // MIN_BLOCK_BYTES),
        -(-table.nbytes // max_bytes),
    )
    return max(1, min(count, table.num_rows))


def from_ray_dataset(cls: Any, asked: Asked, dataset: object) -> Any:
    """See :meth:`TensorDict.from_ray_dataset`."""
    data = extra("ray.data", asked.method, INSTALL)
    pa = arrow.import_pyarrow(asked.method)
    rules = rules_of(asked)
    if not isinstance(dataset, (data.Dataset, data.DataIterator)):
        raise TypeError(MSG_KIND.format(asked.method, type(dataset).__name__))
    table = joined(pa, dataset)
    reader = arrow.Reader(pa, rules, copy=True)
    entries = arrow.entries_of(asked, reader, table)
    return collection(cls, asked, entries, rules.masks, table.num_rows)


def read_ray(
    path: str | Path,
    *,
    keys: Sequence[Any] | None,
    separator: str,
    storage_options: Mapping[str, Any] | None,
    cache_dir: str | Path | None,
    cache_limit: int | None,
    override_num_blocks: int | None,
    options: dict[str, Any],
) -> Any:
    """See :func:`tensordict.data.read_ray`."""
    data = extra("ray.data", "read_ray", INSTALL)
    td: Any
    if is_remote(path):
        td = TensorDict.load_memmap(
            path,
            storage_options=storage_options,
            cache_dir=cache_dir,
            cache_limit=cache_limit,
        )
        path = str(path)
    else:
        # The current folder of a worker differs.
        path = os.fspath(Path(local(path)).absolute())
        td = TensorDict.load_memmap(path, mode="r")
    if td._is_non_tensor:
        raise TypeError(MSG_NO_COLLECTION.format(path=path, kind=type(td).__name__))
    rows = td.batch_size[0] if td.batch_dims else 0
    if keys is not None:
        td = td.select(*keys)
    _check("read_ray", td, separator, override_num_blocks)
    # `is_empty` would build all members of a stack over columns.
    if not list(td.keys()):
        raise ValueError(MSG_NO_ENTRIES.format("read_ray"))
    has_url = isinstance(inside(td), RemoteTensorDict)
    selected = None if keys is None else list(keys)
    source = Held(td) if has_url else Folder(path, selected, rows)
    return data.read_datasource(
        datasource(td, source, separator),
        override_num_blocks=override_num_blocks,
        **options,
    )
