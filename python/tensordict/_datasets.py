"""Established import path: MosaicML datasets."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.interop.mds import to_mds

__all__ = ["to_mds"]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
