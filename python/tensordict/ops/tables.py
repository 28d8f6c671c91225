"""Tables: data frames, and files of CSV, JSON and Parquet.

The engines are in :mod:`tensordict.interop.tables`, on a floor above, and are imported
when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal, Self

from tensordict.primitives.protocol import CollectionProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    import polars as pl
    import torch

    from tensordict.primitives.protocol import NestedKeyLike

    Nulls = Literal["raise", "fill", "mask"]

__all__ = ["TablesOps"]


def _engine(name: str) -> Any:
    return importlib.import_module(f"tensordict.interop.tables.{name}")


def table_options(method: str, **arguments: object) -> Any:
    """Check the options of a reader of tables, which all readers share."""
    return _engine("columns").Asked(method, **arguments)


class TablesOps(CollectionProtocol):
    """Tables as collections with a row for each element, and the other way round."""

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
        """Make a collection of a data frame of pandas: an entry for each column.

        Numbers and truth values become tensors ``[N]``, timestamps without a time zone
        int64 nanoseconds. Categories become what they stand for. Columns of Arrow become
        what :func:`from_arrow` makes of them. Everything else (texts, bytes, decimals,
        durations, times with a zone, objects) is non-tensor data with a value for each
        row. Named levels of the index are columns, too, after the others. Nothing shares
        memory with the frame.

        Args:
            dataframe: the frame, of ``N`` rows.
            auto_batch_size: whether the batch size is the leading dims that all entries
                share.
            batch_dims: with ``auto_batch_size``, at most this many dims of them.
            device: where all entries are moved.
            batch_size: the batch size. Default: ``[N]``, the number of rows.
            separator: splits names of columns into nested keys: with ``"."``, the column
                ``"obs.x"`` is the entry ``("obs", "x")``. Default: names are keys.
            dtype: the dtype of the columns of numbers and truth values. Default: their
                own.
            nulls: what becomes of missing values. ``"raise"``: an error; ``"fill"``: NaN,
                0, False, an empty list or None in their place; ``"mask"``: the same, and
                a mask for each column that has some, true where there is a value.
                Default: NaN, for which integers become float64 if that holds all of
                them; None for texts and truth values; an error for timestamps and lists.
            mask_key: where the masks go, under the keys of their columns. Default:
                ``"_mask"``.

        Raises:
            ValueError: there are missing values that no tensor holds; two columns have
                one name; a column has the name of a group of nested ones.
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
        asked = table_options(
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
        return _engine("pandas").from_pandas(cls, asked, dataframe)

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
        """Make a collection of a data frame of polars: an entry for each column.

        Columns become what :func:`from_arrow` makes of them: numbers tensors ``[N]``,
        arrays tensors ``[N, *F]``, lists of numbers jagged tensors, structs nested
        collections, everything else non-tensor data with a value for each row.

        Args:
            dataframe: the frame, of ``N`` rows; a lazy one is collected.
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
        asked = table_options(
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
        return _engine("polars").from_polars(cls, asked, dataframe)

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
        """Read a file of comma-separated values: an entry for each column.

        A column is of numbers if all of its texts are plain numbers; one with leading
        zeros, such as ``007``, is text. Texts stay as they are written, whatever they look
        like; an empty cell is a missing value. With an option of pandas that says what
        texts mean (``na_values``, ``parse_dates``, ``converters`` ...) pandas decides.

        Args:
            path: the path of the file, an address, or an open file.
            auto_batch_size: see :meth:`from_pandas`.
            batch_dims: see :meth:`from_pandas`.
            device: see :meth:`from_pandas`.
            batch_size: see :meth:`from_pandas`.
            separator: see :meth:`from_pandas`.
            dtype: see :meth:`from_pandas`.
            nulls: see :meth:`from_pandas`.
            mask_key: see :meth:`from_pandas`.
            **kwargs: for :func:`pandas.read_csv`, or ``pyarrow.csv.read_csv`` where
                pandas is not installed.

        Raises:
            ValueError: as :meth:`from_pandas`.
            FileNotFoundError: there is no such file.
            ImportError: neither pandas nor pyarrow is installed.

        Examples:
            >>> import os, tempfile
            >>> path = os.path.join(tempfile.mkdtemp(), "data.csv")
            >>> TensorDict(a=torch.arange(2), id=["007", "NA"], batch_size=[2]).to_csv(path)
            >>> td = TensorDict.from_csv(path)
            >>> td["a"], list(td["id"])
            (tensor([0, 1]), ['007', 'NA'])
        """
        asked = table_options(
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
        return _engine("csv").read(cls, asked, path, kwargs)

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
        """Read a file of JSON, an array of records: an entry for each field.

        Numbers and truth values become tensors ``[N]``, lists of numbers of one shape
        tensors ``[N, *F]``, everything else non-tensor data with a value for each row, as
        it stands in the file. A field that a record lacks is missing in its row.

        Args:
            path: the path of the file, an address, or an open file.
            auto_batch_size: see :meth:`from_pandas`.
            batch_dims: see :meth:`from_pandas`.
            device: see :meth:`from_pandas`.
            batch_size: see :meth:`from_pandas`.
            separator: see :meth:`from_pandas`.
            dtype: see :meth:`from_pandas`.
            lines: whether the file has a record in each line.
            nulls: see :meth:`from_pandas`.
            mask_key: see :meth:`from_pandas`.
            **kwargs: for :func:`pandas.read_json`, which reads the file then.

        Raises:
            ValueError: as :meth:`from_pandas`; the file is no such JSON.
            FileNotFoundError: there is no such file.

        Examples:
            >>> import os, tempfile
            >>> path = os.path.join(tempfile.mkdtemp(), "data.json")
            >>> td = TensorDict(a=torch.zeros(2, 3), s=["x", "7"], batch_size=[2])
            >>> td.to_json(path, lines=True)
            >>> back = TensorDict.from_json(path, lines=True)
            >>> back["a"].shape, list(back["s"])
            (torch.Size([2, 3]), ['x', '7'])
        """
        asked = table_options(
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
        return _engine("json").read(cls, asked, path, lines, kwargs)

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
        """Read a file of Parquet: an entry for each column.

        Columns become what :func:`from_arrow` makes of them; timestamps without a time
        zone become int64 nanoseconds, unless :meth:`to_parquet` wrote them.

        Args:
            path: the path of the file or of a folder of them, or an open file.
            auto_batch_size: see :meth:`from_pandas`.
            batch_dims: see :meth:`from_pandas`.
            device: see :meth:`from_pandas`.
            batch_size: see :meth:`from_pandas`.
            separator: see :meth:`from_pandas`.
            dtype: see :meth:`from_pandas`.
            columns: which columns, in which order. Default: all.
            nulls: see :meth:`from_pandas`.
            mask_key: see :meth:`from_pandas`.
            **kwargs: for ``pyarrow.parquet.read_table``, such as ``filters``.

        Raises:
            ValueError: as :meth:`from_pandas`.
            FileNotFoundError: there is no such file.
            ImportError: neither pyarrow nor pandas is installed.

        Examples:
            >>> import os, tempfile
            >>> path = os.path.join(tempfile.mkdtemp(), "data.parquet")
            >>> td = TensorDict(a=torch.zeros(2, 3), n={"b": torch.ones(2)}, batch_size=[2])
            >>> td.to_parquet(path, separator=".")
            >>> TensorDict.from_parquet(path, separator=".", columns=["n.b"])["n", "b"]
            tensor([1., 1.])
        """
        asked = table_options(
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
        return _engine("parquet").read(cls, asked, path, columns, kwargs)

    def to_pandas(self, *, separator: str | None = None) -> pd.DataFrame:
        """Make a data frame of pandas: a column for each leaf, a row for each element.

        Tensors are ``[N]``, and copied. Values of non-tensor data are those of the rows,
        or the one of all.

        Args:
            separator: joins nested keys to names of columns: with ``"."``, the entry
                ``("obs", "x")`` is the column ``"obs.x"``. Without it a nested
                tensorclass is a column of objects.

        Raises:
            ValueError: there are nested tensordicts and no separator; a tensor has more
                dims; two entries have one name.
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
        """Make a data frame of polars: a column for each leaf, a row for each element.

        Leaves with dims of features, ``[N, *F]``, become arrays, jagged ones lists. The
        frame shares the memory of tensors that are contiguous.

        Args:
            separator: see :meth:`to_pandas`.

        Raises:
            ValueError: there are nested tensordicts and no separator; two entries have
                one name.
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
        """Write a file of comma-separated values: a column for each leaf.

        The columns are those of :meth:`to_pandas`. The file appears whole, or stays as it
        was.

        Args:
            path: the path of the file, or an open file.
            separator: see :meth:`to_pandas`.
            **kwargs: for :meth:`pandas.DataFrame.to_csv`.

        Raises:
            ValueError: as :meth:`to_pandas`; texts would be read as numbers or as missing.
            TypeError: values are of a kind that no text in a file is read as.
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
        """Write a file of JSON, an array of records: a field for each leaf.

        Numbers are exact; NaN and None are null. The file appears whole, or stays as it
        was.

        Args:
            path: the path of the file, or an open file.
            separator: see :meth:`to_pandas`.
            lines: whether a record is a line, and there is no array.
            **kwargs: for :meth:`pandas.DataFrame.to_json`, which writes the file then.

        Raises:
            ValueError: as :meth:`to_pandas`; a number is infinite.
            TypeError: JSON lacks a dtype, or the class of a value.

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
        """Write a file of Parquet: a column for each leaf.

        Leaves with dims of features, ``[N, *F]``, are tensors of Arrow, jagged ones lists.
        The file appears whole, or stays as it was.

        Args:
            path: the path of the file, or an open file.
            separator: see :meth:`to_pandas`.
            **kwargs: for ``pyarrow.parquet.write_table``, such as ``compression``.

        Raises:
            ValueError: there are nested tensordicts and no separator; two entries have
                one name.
            TypeError: Arrow lacks a dtype, or a type for values.
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
        """Give the rows to a package that reads Arrow's C stream, such as polars.

        The columns are those of :func:`to_arrow`, which share the memory of tensors that
        are contiguous.

        Raises:
            ValueError: there is not one batch dim.
            ImportError: pyarrow is not installed.

        Examples:
            >>> import pyarrow as pa
            >>> pa.table(TensorDict(a=torch.arange(2), batch_size=[2])).column_names
            ['a']
        """
        return _engine("arrow").stream(self, requested_schema)
