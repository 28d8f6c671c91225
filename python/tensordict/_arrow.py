"""Established import path: tables of Apache Arrow."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.interop.tables.arrow import from_arrow, to_arrow

__all__ = ["from_arrow", "to_arrow"]

if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
