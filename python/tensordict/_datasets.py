"""Established import path: datasets of MosaicML."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.interop.mds import to_mds

__all__ = ["to_mds"]

if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
