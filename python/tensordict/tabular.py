"""Deprecated import path: tables of other libraries."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.primitives.deprecation import warn_deprecated

warn_deprecated(
    "tensordict.tabular",
    "TensorDict.from_pandas, from_csv, from_parquet, from_json, to_pandas, to_csv, "
    "to_parquet and to_json",
)

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
