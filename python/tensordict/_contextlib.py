"""Established import path: tensordicts as context managers."""

from typing import TYPE_CHECKING, TypeVar

from torch.utils._contextlib import context_decorator

from tensordict._established import established_names

__all__ = ["context_decorator"]

F = TypeVar("F")

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
