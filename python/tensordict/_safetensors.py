"""Established import path: safetensors files."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.storage.functions import from_safetensors, to_safetensors

__all__ = ["from_safetensors", "to_safetensors"]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
