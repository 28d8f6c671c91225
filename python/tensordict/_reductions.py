"""Established import path, used by pickles: reductions of tensordicts."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.storage.out_of_band import _rebuild_leaf
from tensordict.storage.pickles import (
    _make_td,
    _rebuild_tensordict_files_consolidated,
    _reduce_td,
)

__all__: list[str] = []

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
