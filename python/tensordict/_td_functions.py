"""Established import path: functions that make, join and save tensordicts."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.containers.lazy import lazy_stack
from tensordict.ops.factories import from_pytree, fromkeys
from tensordict.ops.joining import cat, maybe_dense_stack, stack
from tensordict.ops.modules import from_module, from_modules
from tensordict.storage.functions import load, load_memmap, memmap, save

__all__ = [
    "cat",
    "from_module",
    "from_modules",
    "from_pytree",
    "fromkeys",
    "lazy_stack",
    "load",
    "load_memmap",
    "maybe_dense_stack",
    "memmap",
    "save",
    "stack",
]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
