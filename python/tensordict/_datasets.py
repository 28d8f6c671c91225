"""Established import path: datasets of MosaicML."""

from typing import TYPE_CHECKING

from tensordict import _later
from tensordict._established import established_names

__all__ = ["to_mds"]

to_mds = _later.function("to_mds")

if not TYPE_CHECKING:  # which is to find names that there are not
    __getattr__ = established_names(__name__)
