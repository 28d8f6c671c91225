"""Rows of a save as a dataset of Ray Data, read by its tasks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ray.data import Dataset

    from tensordict.primitives.protocol import NestedKeyLike

__all__ = ["read_ray"]


def read_ray(
    path: str | Path,
    *,
    keys: Sequence[NestedKeyLike] | None = None,
    separator: str = ".",
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | Path | None = None,
    cache_limit: int | None = None,
    override_num_blocks: int | None = None,
    **options: Any,
) -> Dataset:
    """Read a save as a dataset of Ray Data, in parallel by rows.

    The calling process reads only metadata. Each task of the dataset reads a range of
    rows and yields blocks of at most ``DataContext.target_max_block_size`` bytes. The
    columns are the columns of :meth:`TensorDict.to_ray_dataset`. The schema is known
    without reading, unless a column contains Python values that are stored as JSON.

    Ray Data yields blocks in the order in which tasks end, unless
    ``DataContext.get_current().execution_options.preserve_order`` is true.

    Args:
        path: the path or the URL of a save, as for :meth:`TensorDict.load_memmap`. A
            path must be on a file system that all machines share.
        keys: the entries to read; a tuple is the key of a nested entry. Default: all.
        separator: the string that joins nested keys to column names.
        storage_options: for a URL, the options of ``obstore``. Ray sends the options to
            the workers; no log contains them. Other settings come from the environment
            of the calling process and of each worker.
        cache_dir: for a URL, a directory on each machine that caches blocks of objects.
        cache_limit: the most bytes in that directory.
        override_num_blocks: the number of read tasks. Default: Ray Data derives the
            number from the bytes of the rows and the processors of the cluster.
        **options: options of :func:`ray.data.read_datasource`, such as ``concurrency``.

    Returns:
        A lazy dataset: the tasks run when the dataset is consumed.

    Raises:
        FileNotFoundError: there is no save.
        KeyError: there is no entry of a key.
        ValueError: there is no batch dimension, or no entry.
        TypeError: a tensor has a dtype that Arrow lacks, such as complex64.
        ImportError: Ray, or for a URL ``obstore``, is not installed.

    Examples::

        ds = read_ray("s3://bucket/data", storage_options={"aws_region": "eu-central-1"})
        for batch in ds.random_shuffle().iter_torch_batches(batch_size=256):
            loss = step(batch["image"], batch["label"])
    """
    engine = importlib.import_module("tensordict.interop.ray_data.datasets")
    dataset: Dataset = engine.read_ray(
        path,
        keys=keys,
        separator=separator,
        storage_options=storage_options,
        cache_dir=cache_dir,
        cache_limit=cache_limit,
        override_num_blocks=override_num_blocks,
        options=options,
    )
    return dataset
