"""Established import path: Apache Arrow tables."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.interop.tables.arrow import from_arrow, to_arrow

__all__ = ["from_arrow", "to_arrow"]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
