"""Tables: data frames, and CSV, JSON and Parquet files.

:mod:`tensordict.interop.tables` does the work. It lies above this package in the order
of imports, so it is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal, Self

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    import pandas as pd
    import polars as pl
    import torch

    from tensordict.primitives.protocol import NestedKeyLike

    Nulls = Literal["raise", "fill", "mask"]

__all__ = ["TablesOps"]


def _engine(name: str) -> ModuleType:
    return importlib.import_module(f"tensordict.interop.tables.{name}")


def table_options(method: str, **arguments: object) -> Any:
    """Check the options that all readers of tables share."""
    return _engine("columns").Asked(method, **arguments)


class TablesOps(CollectionProtocol):
    """Conversion between tables and tensordicts with the same rows."""

    @classmethod
    def from_pandas(
        cls,
        dataframe: pd.DataFrame,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: torch.device | str | int | None = None,
        batch_size: Sequence[int] | None = None,
        separator: str | None = None,
        dtype: torch.dtype | None = None,
        nulls: Nulls | None = None,
        mask_key: NestedKeyLike | None = None,
    ) -> Self:
        """Make a tensordict from a pandas data frame: one entry for each column.

        Numbers and booleans become tensors of shape ``[N]``. Timestamps without a time
        zone become int64 nanoseconds. A categorical column becomes its categories'
        values. Arrow columns convert as in :func:`from_arrow`. All other columns
        (strings, bytes, decimals, durations, times with a zone, objects) become
        non-tensor data with one value for each row. Named index levels are added after
        the columns. The result shares no memory with the frame.

        Args:
            dataframe: a frame of ``N`` rows.
            auto_batch_size: use the leading dimensions that all entries share as the
                batch size.
            batch_dims: the most dimensions that ``auto_batch_size`` uses.
            device: the device to move all entries to.
            batch_size: the batch size. Default: ``[N]``.
            separator: the string at which column names are split into nested keys: with
                ``"."``, the column ``"obs.x"`` becomes ``("obs", "x")``. Default: names
                are not split.
            dtype: the dtype of numeric and boolean columns. Default: the column's
                dtype.
            nulls: the treatment of missing values. ``"raise"``: raise an error;
                ``"fill"``: store NaN, 0, False, an empty list or None; ``"mask"``:
                fill, and add a mask for each column with missing values, True at
                present values. Default: NaN for numbers (integers become float64 if it
                represents all of them exactly), None for strings and booleans, and an
                error for timestamps and lists.
            mask_key: the key of the masks, which lie below it under the keys of their
                columns. Default: ``"_mask"``.

        Raises:
            ValueError: no tensor can represent a missing value; two columns have the
                same name; or a column has the name of a group of nested columns.
            ImportError: pandas is not installed.

        Examples:
            >>> import pandas as pd
            >>> df = pd.DataFrame({"a": [1, 2], "n.b": [0.5, 1.5], "s": ["x", "y"]})
            >>> td = TensorDict.from_pandas(df, separator=".")
            >>> td["a"], td["n", "b"], td[1]["s"]
            (tensor([1, 2]), tensor([0.5000, 1.5000], dtype=torch.float64), 'y')
            >>> df = pd.DataFrame({"a": pd.array([7, None], dtype="Int64")})
            >>> TensorDict.from_pandas(df, nulls="mask").to_dict()
            {'a': tensor([7, 0]), '_mask': {'a': tensor([ True, False])}}
        """
        options = table_options(
            "from_pandas",
            auto_batch_size=auto_batch_size,
            batch_dims=batch_dims,
            device=device,
            batch_size=batch_size,
            separator=separator,
            dtype=dtype,
            nulls=nulls,
            mask_key=mask_key,
        )
        return _engine("pandas").from_pandas(cls, options, dataframe)

    @classmethod
    def from_polars(
        cls,
        dataframe: pl.DataFrame,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: torch.device | str | int | None = None,
        batch_size: Sequence[int] | None = None,
        separator: str | None = None,
        dtype: torch.dtype | None = None,
        nulls: Nulls | None = None,
        mask_key: NestedKeyLike | None = None,
    ) -> Self:
        """Make a tensordict from a polars data frame: one entry for each column.

        Columns convert as in :func:`from_arrow`: numbers become tensors ``[N]``, arrays
        tensors ``[N, *F]``, lists of numbers jagged tensors, structs nested
        tensordicts, and all other columns non-tensor data with one value for each row.

        Args:
            dataframe: a frame of ``N`` rows; a lazy frame is collected.
            auto_batch_size: see :meth:`from_pandas`.
            batch_dims: see :meth:`from_pandas`.
            device: see :meth:`from_pandas`.
            batch_size: see :meth:`from_pandas`.
            separator: see :meth:`from_pandas`.
            dtype: see :meth:`from_pandas`.
            nulls: see :meth:`from_pandas`.
            mask_key: see :meth:`from_pandas`.

        Raises:
            ValueError: as :meth:`from_pandas`.
            ImportError: polars or pyarrow is not installed.

        Examples:
            >>> import polars as pl
            >>> TensorDict.from_polars(pl.DataFrame({"a": [1, 2], "s": ["x", "y"]}))["a"]
            tensor([1, 2])
        """
        options = table_options(
            "from_polars",
            auto_batch_size=auto_batch_size,
            batch_dims=batch_dims,
            device=device,
            batch_size=batch_size,
            separator=separator,
            dtype=dtype,
            nulls=nulls,
            mask_key=mask_key,
        )
        return _engine("polars").from_polars(cls, options, dataframe)

    @classmethod
    def from_csv(
        cls,
        path: object,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: torch.device | str | int | None = None,
        batch_size: Sequence[int] | None = None,
        separator: str | None = None,
        dtype: torch.dtype | None = None,
        nulls: Nulls | None = None,
        mask_key: NestedKeyLike | None = None,
        **kwargs: object,
    ) -> Self:
        """Read a CSV file: one entry for each column.

        A column is numeric if all its cells are plain numbers; leading zeros, as in
        ``007``, make it a column of strings. Strings are kept exactly as written; an
        empty cell is a missing value. If you pass a pandas option that interprets cells
        (``na_values``, ``parse_dates``, ``converters``, ...), pandas decides instead.

        Args:
            path: the path of the file, a URL, or an open file.
            auto_batch_size: see :meth:`from_pandas`.
            batch_dims: see :meth:`from_pandas`.
            device: see :meth:`from_pandas`.
            batch_size: see :meth:`from_pandas`.
            separator: see :meth:`from_pandas`.
            dtype: see :meth:`from_pandas`.
            nulls: see :meth:`from_pandas`.
            mask_key: see :meth:`from_pandas`.
            **kwargs: arguments of :func:`pandas.read_csv`, or of
                ``pyarrow.csv.read_csv`` if pandas is not installed.

        Raises:
            ValueError: as for :meth:`from_pandas`.
            FileNotFoundError: the file is missing.
            ImportError: neither pandas nor pyarrow is installed.

        Examples:
            >>> import os, tempfile
            >>> path = os.path.join(tempfile.mkdtemp(), "data.csv")
            >>> TensorDict(a=torch.arange(2), id=["007", "NA"], batch_size=[2]).to_csv(path)
            >>> td = TensorDict.from_csv(path)
            >>> td["a"], list(td["id"])
            (tensor([0, 1]), ['007', 'NA'])
        """
        options = table_options(
            "from_csv",
            auto_batch_size=auto_batch_size,
            batch_dims=batch_dims,
            device=device,
            batch_size=batch_size,
            separator=separator,
            dtype=dtype,
            nulls=nulls,
            mask_key=mask_key,
        )
        return _engine("csv").read(cls, options, path, kwargs)

    @classmethod
    def from_json(
        cls,
        path: object,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: torch.device | str | int | None = None,
        batch_size: Sequence[int] | None = None,
        separator: str | None = None,
        dtype: torch.dtype | None = None,
        lines: bool = False,
        nulls: Nulls | None = None,
        mask_key: NestedKeyLike | None = None,
        **kwargs: object,
    ) -> Self:
        """Read a JSON file, an array of records: one entry for each field.

        Numbers and booleans become tensors ``[N]``, and lists of numbers of one shape
        become tensors ``[N, *F]``. All other fields become non-tensor data with one
        value for each row, as in the file. A field that a record lacks is a missing
        value.

        Args:
            path: the path of the file, a URL, or an open file.
            auto_batch_size: see :meth:`from_pandas`.
            batch_dims: see :meth:`from_pandas`.
            device: see :meth:`from_pandas`.
            batch_size: see :meth:`from_pandas`.
            separator: see :meth:`from_pandas`.
            dtype: see :meth:`from_pandas`.
            lines: read one record from each line instead of an array.
            nulls: see :meth:`from_pandas`.
            mask_key: see :meth:`from_pandas`.
            **kwargs: arguments of :func:`pandas.read_json`. If any is passed, pandas
                reads the file.

        Raises:
            ValueError: as for :meth:`from_pandas`; or the file is not JSON of this
                form.
            FileNotFoundError: the file is missing.

        Examples:
            >>> import os, tempfile
            >>> path = os.path.join(tempfile.mkdtemp(), "data.json")
            >>> td = TensorDict(a=torch.zeros(2, 3), s=["x", "7"], batch_size=[2])
            >>> td.to_json(path, lines=True)
            >>> back = TensorDict.from_json(path, lines=True)
            >>> back["a"].shape, list(back["s"])
            (torch.Size([2, 3]), ['x', '7'])
        """
        options = table_options(
            "from_json",
            auto_batch_size=auto_batch_size,
            batch_dims=batch_dims,
            device=device,
            batch_size=batch_size,
            separator=separator,
            dtype=dtype,
            nulls=nulls,
            mask_key=mask_key,
        )
        return _engine("json").read(cls, options, path, lines, kwargs)

    @classmethod
    def from_parquet(
        cls,
        path: object,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: torch.device | str | int | None = None,
        batch_size: Sequence[int] | None = None,
        separator: str | None = None,
        dtype: torch.dtype | None = None,
        columns: list[str] | None = None,
        nulls: Nulls | None = None,
        mask_key: NestedKeyLike | None = None,
        **kwargs: object,
    ) -> Self:
        """Read a Parquet file: one entry for each column.

        Columns convert as in :func:`from_arrow`. Timestamps without a time zone become
        int64 nanoseconds, unless :meth:`to_parquet` wrote them.

        Args:
            path: the path of a file or of a folder of files, or an open file.
            auto_batch_size: see :meth:`from_pandas`.
            batch_dims: see :meth:`from_pandas`.
            device: see :meth:`from_pandas`.
            batch_size: see :meth:`from_pandas`.
            separator: see :meth:`from_pandas`.
            dtype: see :meth:`from_pandas`.
            columns: the columns to read, in this order. Default: all columns.
            nulls: see :meth:`from_pandas`.
            mask_key: see :meth:`from_pandas`.
            **kwargs: arguments of ``pyarrow.parquet.read_table``, such as ``filters``.

        Raises:
            ValueError: as for :meth:`from_pandas`.
            FileNotFoundError: the file is missing.
            ImportError: neither pyarrow nor pandas is installed.

        Examples:
            >>> import os, tempfile
            >>> path = os.path.join(tempfile.mkdtemp(), "data.parquet")
            >>> td = TensorDict(a=torch.zeros(2, 3), n={"b": torch.ones(2)}, batch_size=[2])
            >>> td.to_parquet(path, separator=".")
            >>> TensorDict.from_parquet(path, separator=".", columns=["n.b"])["n", "b"]
            tensor([1., 1.])
        """
        options = table_options(
            "from_parquet",
            auto_batch_size=auto_batch_size,
            batch_dims=batch_dims,
            device=device,
            batch_size=batch_size,
            separator=separator,
            dtype=dtype,
            nulls=nulls,
            mask_key=mask_key,
        )
        return _engine("parquet").read(cls, options, path, columns, kwargs)

    def to_pandas(self, *, separator: str | None = None) -> pd.DataFrame:
        """Make a pandas data frame with one column for each leaf.

        Tensors must have the shape ``[N]``; they are copied. Non-tensor data gives one
        value for each row.

        Args:
            separator: the string that joins nested keys to column names: with ``"."``,
                the entry ``("obs", "x")`` becomes the column ``"obs.x"``. Without it, a
                nested tensorclass becomes a column of objects.

        Raises:
            ValueError: there are nested tensordicts and no separator; a tensor has more
                than one dimension; or two entries give the same column name.
            TypeError: NumPy lacks the dtype of a tensor.
            ImportError: pandas is not installed.

        Examples:
            >>> td = TensorDict(a=torch.arange(2), n={"b": torch.zeros(2)}, batch_size=[2])
            >>> td.to_pandas(separator=".")
               a  n.b
            0  0  0.0
            1  1  0.0
        """
        return _engine("pandas").to_pandas(self, separator)

    def to_polars(self, *, separator: str | None = None) -> pl.DataFrame:
        """Make a polars data frame with one column for each leaf.

        Leaves with feature dimensions, ``[N, *F]``, become arrays, and jagged tensors
        become lists. The frame shares the memory of contiguous tensors.

        Args:
            separator: see :meth:`to_pandas`.

        Raises:
            ValueError: there are nested tensordicts and no separator, or two entries
                give the same column name.
            TypeError: Arrow lacks a dtype.
            ImportError: polars or pyarrow is not installed.

        Examples:
            >>> td = TensorDict(a=torch.zeros(2, 3), s=["x", "y"], batch_size=[2])
            >>> td.to_polars().schema["a"]
            Array(Float32, shape=(3,))
        """
        return _engine("polars").to_polars(self, separator)

    def to_csv(
        self, path: object, *, separator: str | None = None, **kwargs: object
    ) -> None:
        """Write a CSV file with one column for each leaf.

        The columns are those of :meth:`to_pandas`. If the call fails, an existing file
        stays as it was.

        Args:
            path: the path of the file, or an open file.
            separator: see :meth:`to_pandas`.
            **kwargs: arguments of :meth:`pandas.DataFrame.to_csv`.

        Raises:
            ValueError: as for :meth:`to_pandas`; or strings would be read back as
                numbers or as missing values.
            TypeError: a value's type cannot be read back from text.
            ImportError: pandas is not installed.

        Examples:
            >>> import pathlib, tempfile
            >>> path = pathlib.Path(tempfile.mkdtemp(), "data.csv")
            >>> td = TensorDict(a=torch.arange(2), n={"b": torch.zeros(2)}, batch_size=[2])
            >>> td.to_csv(path, separator=".")
            >>> print(path.read_text(), end="")
            a,n.b
            0,0.0
            1,0.0
        """
        _engine("csv").write(self, path, separator, kwargs)

    def to_json(
        self,
        path: object,
        *,
        separator: str | None = None,
        lines: bool = False,
        **kwargs: object,
    ) -> None:
        """Write a JSON file, an array of records with one field for each leaf.

        Numbers are exact; NaN and None become null. If the call fails, an existing file
        stays as it was.

        Args:
            path: the path of the file, or an open file.
            separator: see :meth:`to_pandas`.
            lines: write one record to each line instead of an array.
            **kwargs: arguments of :meth:`pandas.DataFrame.to_json`. If any is passed,
                pandas writes the file.

        Raises:
            ValueError: as for :meth:`to_pandas`; or a number is infinite.
            TypeError: JSON lacks the dtype of a leaf or the type of a value.

        Examples:
            >>> import pathlib, tempfile
            >>> path = pathlib.Path(tempfile.mkdtemp(), "data.json")
            >>> td = TensorDict(a=torch.arange(2), s=["x", "y"], batch_size=[2])
            >>> td.to_json(path)
            >>> print(path.read_text())
            [{"a":0,"s":"x"},{"a":1,"s":"y"}]
        """
        _engine("json").write(self, path, separator, lines, kwargs)

    def to_parquet(
        self, path: object, *, separator: str | None = None, **kwargs: object
    ) -> None:
        """Write a Parquet file with one column for each leaf.

        Leaves with feature dimensions, ``[N, *F]``, become Arrow tensors, and jagged
        tensors become lists. If the call fails, an existing file stays as it was.

        Args:
            path: the path of the file, or an open file.
            separator: see :meth:`to_pandas`.
            **kwargs: arguments of ``pyarrow.parquet.write_table``, such as
                ``compression``.

        Raises:
            ValueError: there are nested tensordicts and no separator, or two entries
                give the same column name.
            TypeError: Arrow lacks the dtype of a leaf or a type for a value.
            ImportError: neither pyarrow nor pandas is installed.

        Examples:
            >>> import os, tempfile
            >>> path = os.path.join(tempfile.mkdtemp(), "data.parquet")
            >>> TensorDict(a=torch.arange(2), batch_size=[2]).to_parquet(path)
            >>> TensorDict.from_parquet(path)["a"]
            tensor([0, 1])
        """
        _engine("parquet").write(self, path, separator, kwargs)

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """Pass the rows to a library that reads Arrow's C stream, such as polars.

        The columns are those of :func:`to_arrow`: they share the memory of contiguous
        tensors.

        Raises:
            ValueError: the number of batch dimensions is not one.
            ImportError: pyarrow is not installed.

        Examples:
            >>> import pyarrow as pa
            >>> pa.table(TensorDict(a=torch.arange(2), batch_size=[2])).column_names
            ['a']
        """
        return _engine("arrow").stream(self, requested_schema)
