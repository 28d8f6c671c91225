"""Established import path: the layout of packed leaves."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.ops.packing import PackLayout

__all__ = ["PackLayout"]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
