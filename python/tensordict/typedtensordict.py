"""Established import path: ``TypedTensorDict``."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.containers.typed import TypedTensorDict

__all__ = ["TypedTensorDict"]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
