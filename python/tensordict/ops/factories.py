"""The classmethods that make a :class:`TensorDict`, as functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from tensordict.ops.construct import ConstructOps
from tensordict.ops.tables import TablesOps
from tensordict.primitives import classes
from tensordict.primitives.signatures import with_parameters_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from tensordict.containers.dense import TensorDict

    Nulls = Literal["raise", "fill", "mask"]

__all__ = [
    "from_any",
    "from_csv",
    "from_dict",
    "from_json",
    "from_namedtuple",
    "from_pandas",
    "from_parquet",
    "from_polars",
    "from_pytree",
    "from_struct_array",
    "from_tuple",
    "fromkeys",
]


def from_dict(
    d: Mapping[Any, Any],
    *,
    auto_batch_size: bool | None = None,
    batch_dims: int | None = None,
    device: torch.device | None = None,
    batch_size: Sequence[int] | None = None,
    names: Sequence[str | None] | None = None,
) -> TensorDict:
    """Make a :class:`TensorDict` of a mapping: :meth:`TensorDict.from_dict`.

    Examples:
        >>> from_dict({"a": torch.zeros(3)}, auto_batch_size=True).batch_size
        torch.Size([3])
    """
    return classes.TensorDict.from_dict(
        d,
        auto_batch_size=auto_batch_size,
        batch_dims=batch_dims,
        device=device,
        batch_size=batch_size,
        names=names,
    )


@with_parameters_of(ConstructOps.from_any)
def from_any(*args: Any, **kwargs: Any) -> Any:
    """Make a :class:`TensorDict` if possible: see :meth:`TensorDict.from_any`.

    Examples:
        >>> from_any({"a": 1})["a"]
        tensor(1)
    """
    return classes.TensorDict.from_any(*args, **kwargs)


@with_parameters_of(ConstructOps.from_tuple)
def from_tuple(*args: Any, **kwargs: Any) -> TensorDict:
    """Make a :class:`TensorDict` of a tuple: :meth:`TensorDict.from_tuple`.

    Examples:
        >>> from_tuple((torch.zeros(2), 3))["1"]
        tensor(3)
    """
    return classes.TensorDict.from_tuple(*args, **kwargs)


@with_parameters_of(ConstructOps.from_namedtuple)
def from_namedtuple(*args: Any, **kwargs: Any) -> TensorDict:
    """Make a :class:`TensorDict` of a named tuple: :meth:`TensorDict.from_namedtuple`.

    Examples:
        >>> from collections import namedtuple
        >>> from_namedtuple(namedtuple("pair", "a b")(1, 2))["b"]
        tensor(2)
    """
    return classes.TensorDict.from_namedtuple(*args, **kwargs)


@with_parameters_of(ConstructOps.from_struct_array)
def from_struct_array(*args: Any, **kwargs: Any) -> TensorDict:
    """Make a :class:`TensorDict` of a structured array.

    See :meth:`TensorDict.from_struct_array`.

    Examples:
        >>> import numpy as np
        >>> from_struct_array(np.zeros(2, dtype=[("a", "f4")])).batch_size
        torch.Size([2])
    """
    return classes.TensorDict.from_struct_array(*args, **kwargs)


@with_parameters_of(ConstructOps.from_pytree)
def from_pytree(*args: Any, **kwargs: Any) -> Any:
    """Make a :class:`TensorDict` of nested dictionaries, lists and tuples.

    See :meth:`TensorDict.from_pytree`.

    Examples:
        >>> from_pytree(3)
        tensor(3)
    """
    return classes.TensorDict.from_pytree(*args, **kwargs)


@with_parameters_of(ConstructOps.fromkeys)
def fromkeys(*args: Any, **kwargs: Any) -> TensorDict:
    """Make a :class:`TensorDict` with the same value under each key.

    Examples:
        >>> fromkeys(["a", "b"], 1)["b"]
        tensor(1)
    """
    return classes.TensorDict.fromkeys(*args, **kwargs)


@with_parameters_of(TablesOps.from_csv)
def from_csv(*args: Any, **kwargs: Any) -> TensorDict:
    """Make a :class:`TensorDict` of a CSV file: see :meth:`TensorDict.from_csv`.

    Examples:
        >>> import io
        >>> text = "1,x" + chr(10) + "2,y"
        >>> from_csv(io.StringIO(text), names=["a", "b"])["a"]
        tensor([1, 2])
    """
    return classes.TensorDict.from_csv(*args, **kwargs)


@with_parameters_of(TablesOps.from_json)
def from_json(*args: Any, **kwargs: Any) -> TensorDict:
    """Make a :class:`TensorDict` of a JSON file: see :meth:`TensorDict.from_json`.

    Examples:
        >>> import io
        >>> from_json(io.StringIO('[{"a": 1}, {"a": 2}]'))["a"]
        tensor([1, 2])
    """
    return classes.TensorDict.from_json(*args, **kwargs)


@with_parameters_of(TablesOps.from_pandas)
def from_pandas(*args: Any, **kwargs: Any) -> TensorDict:
    """Make a :class:`TensorDict` of a data frame: see :meth:`TensorDict.from_pandas`.

    Examples:
        >>> import pandas as pd
        >>> from_pandas(pd.DataFrame({"a": [1, 2]}))["a"]
        tensor([1, 2])
    """
    return classes.TensorDict.from_pandas(*args, **kwargs)


@with_parameters_of(TablesOps.from_parquet)
def from_parquet(*args: Any, **kwargs: Any) -> TensorDict:
    """Make a :class:`TensorDict` of a Parquet file: :meth:`TensorDict.from_parquet`.

    Examples:
        >>> import io
        >>> file = io.BytesIO()
        >>> TensorDict(a=torch.arange(2), batch_size=[2]).to_parquet(file)
        >>> from_parquet(file)["a"]
        tensor([0, 1])
    """
    return classes.TensorDict.from_parquet(*args, **kwargs)


@with_parameters_of(TablesOps.from_polars)
def from_polars(*args: Any, **kwargs: Any) -> TensorDict:
    """Make a :class:`TensorDict` of a data frame: see :meth:`TensorDict.from_polars`.

    Examples:
        >>> import polars as pl
        >>> from_polars(pl.DataFrame({"a": [1, 2]}))["a"]
        tensor([1, 2])
    """
    return classes.TensorDict.from_polars(*args, **kwargs)


for _function in (
    from_any,
    from_csv,
    from_dict,
    from_json,
    from_namedtuple,
    from_pandas,
    from_parquet,
    from_polars,
    from_struct_array,
    from_tuple,
):
    _function.__module__ = "tensordict.base"
from_pytree.__module__ = fromkeys.__module__ = "tensordict._td"
