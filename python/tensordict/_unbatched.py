"""Established import path, used by pickles: tensors without batch dims."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.entries.unbatched import UnbatchedTensor

__all__ = ["UnbatchedTensor"]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
