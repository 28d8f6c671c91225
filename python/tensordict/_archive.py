"""Established import path: archives of saved tensordicts."""

from typing import TYPE_CHECKING

from tensordict._established import established_names
from tensordict.storage.layouts.archive import (
    is_memmap_archive,
    pack_memmap,
    refresh_archive_checksums,
    unpack_memmap,
)

__all__ = [
    "is_memmap_archive",
    "pack_memmap",
    "refresh_archive_checksums",
    "unpack_memmap",
]

if not TYPE_CHECKING:  # so that type checkers find unknown names
    __getattr__ = established_names(__name__)
