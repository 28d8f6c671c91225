"""Established import path: functions that make tensordicts of Python objects."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.ops.arrays import from_h5, from_zarr
from tensordict.ops.factories import (
    from_any,
    from_csv,
    from_dict,
    from_json,
    from_namedtuple,
    from_pandas,
    from_parquet,
    from_struct_array,
    from_tuple,
)

__all__ = [
    "from_any",
    "from_csv",
    "from_dict",
    "from_h5",
    "from_json",
    "from_namedtuple",
    "from_pandas",
    "from_parquet",
    "from_struct_array",
    "from_tuple",
    "from_zarr",
]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
