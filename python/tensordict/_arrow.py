"""Established import path: tables of Apache Arrow."""

from tensordict.interop.arrow import from_arrow, to_arrow

__all__ = ["from_arrow", "to_arrow"]
