"""Ray Data datasets.

:mod:`tensordict.interop.ray_data` does the work. It lies above this package in the
order of imports, so it is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Literal, Self

from tensordict.ops.tables import table_options
from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import torch
    from ray.data import DataIterator, Dataset

    from tensordict.primitives.protocol import NestedKeyLike

    Nulls = Literal["raise", "fill", "mask"]

__all__ = ["RayDataOps"]


def _engine() -> ModuleType:
    return importlib.import_module("tensordict.interop.ray_data.datasets")


class RayDataOps(CollectionProtocol):
    """Conversion between tensordicts and Ray Data datasets."""

    def to_ray_dataset(
        self, *, separator: str = ".", override_num_blocks: int | None = None
    ) -> Dataset:
        """Make a dataset of Ray Data: a column for each leaf, a row for each index.

        Rows are along the first batch dimension. Blocks are Arrow tables. Tensors
        ``[N, *F]`` have the tensor types of Ray Data: ``map_batches`` passes NumPy arrays
        ``[n, *F]`` of the same dtype, ``iter_torch_batches`` yields tensors. Ragged rows
        have Ray's type for variable shapes: a batch has an array for each row. Non-tensor
        data becomes text, numbers or structs, and pickled objects if Arrow has no type.
        bfloat16 and float8 become float32, which represents each of their values.

        Rows of a tensordict in memory are copied to Ray's object store. Rows of a
        tensordict at a URL are read by the tasks of the dataset. For a memory-mapped
        tensordict on a shared file system see :func:`tensordict.data.read_ray`.

        Args:
            separator: the string that joins nested keys to column names: with ``"."``,
                the entry ``("obs", "x")`` becomes the column ``"obs.x"``.
            override_num_blocks: the number of blocks. Default: computed from the bytes
                and the processors of the cluster.

        Raises:
            ValueError: there is no batch dimension, or no entry; two leaves have the same
                column name; the members of a lazy stack differ in keys.
            TypeError: a tensor has another dtype that Arrow lacks, such as complex64.
            ImportError: Ray is not installed.

        Examples::

            td = TensorDict(x=torch.rand(1000, 8), obs={"y": torch.arange(1000)}, batch_size=[1000])
            ds = td.to_ray_dataset().map_batches(lambda batch: {"s": batch["x"].sum(1)})
            TensorDict.from_ray_dataset(ds)["s"].shape  # torch.Size([1000])
        """
        dataset: Dataset = _engine().to_ray_dataset(
            self, separator, override_num_blocks
        )
        return dataset

    @classmethod
    def from_ray_dataset(
        cls,
        dataset: Dataset | DataIterator,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: torch.device | str | int | None = None,
        batch_size: Sequence[int] | None = None,
        separator: str | None = ".",
        dtype: torch.dtype | None = None,
        nulls: Nulls | None = None,
        mask_key: NestedKeyLike | None = None,
    ) -> Self:
        """Read a Ray Data dataset into memory: one entry for each column.

        Tensor columns become tensors ``[N, *F]``. Columns of variable shapes become nested
        tensors, with the jagged layout if rows differ in one dimension. Other columns are
        converted as by :func:`tensordict.from_arrow`. Rows have the order in which Ray Data
        yields the blocks.

        Args:
            dataset: a dataset, or an iterator such as the shard of a training worker.
            auto_batch_size: see :meth:`from_pandas`.
            batch_dims: see :meth:`from_pandas`.
            device: see :meth:`from_pandas`.
            batch_size: see :meth:`from_pandas`.
            separator: the string at which column names are split. None to keep names.
            dtype: see :meth:`from_pandas`.
            nulls: see :meth:`from_pandas`.
            mask_key: see :meth:`from_pandas`.

        Raises:
            ValueError: as for :meth:`from_pandas`.
            TypeError: ``dataset`` is no dataset; or a column has tensors in some blocks
                only.
            ImportError: Ray is not installed.

        Examples::

            ds = ray.data.read_parquet("s3://bucket/tables")
            td = TensorDict.from_ray_dataset(ds, separator=None)
        """
        options = table_options(
            "from_ray_dataset",
            auto_batch_size=auto_batch_size,
            batch_dims=batch_dims,
            device=device,
            batch_size=batch_size,
            separator=separator,
            dtype=dtype,
            nulls=nulls,
            mask_key=mask_key,
        )
        result: Self = _engine().from_ray_dataset(cls, options, dataset)
        return result
