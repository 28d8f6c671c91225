"""Established import path: communication between processes."""

from typing import TYPE_CHECKING

from tensordict._established import established_names

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
