"""Established import path: indices."""

from typing import TYPE_CHECKING

from tensordict._deprecated_utils import (
    _convert_ellipsis_to_idx as convert_ellipsis_to_idx,
)
from tensordict._established import established_names

__all__ = ["convert_ellipsis_to_idx"]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
