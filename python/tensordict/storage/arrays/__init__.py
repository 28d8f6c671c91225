"""Files of arrays that others write, too: HDF5 and Zarr.

A file is a tree of groups with arrays in them. :mod:`.interface` says what a group and an
array can do, :mod:`.hdf5` and :mod:`.zarr` do it with the field's own libraries,
:mod:`.values` says how values that are no tensors are arrays, and :mod:`.selection`
which part of an array an index reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.storage.arrays.interface import ArrayFile

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BACKENDS", "ArrayFile", "backend_of"]

BACKENDS = ("h5", "zarr")

MSG_BACKEND = "Unknown backend {!r}: it is one of {}."


def backend_of(name: str) -> type[ArrayFile]:
    """The class of files of a backend.

    Raises:
        ImportError: its library is not installed.
        NotImplementedError: there is no backend of that name.
    """
    if name == "h5":
        from tensordict.storage.arrays.hdf5 import Hdf5File

        return Hdf5File
    if name == "zarr":
        from tensordict.storage.arrays.zarr import ZarrFile

        return ZarrFile
    raise NotImplementedError(MSG_BACKEND.format(name, ", ".join(map(repr, BACKENDS))))


def open_file(
    backend: str, filename: object, mode: str, options: Mapping[str, Any] | None = None
) -> ArrayFile:
    """Open a file of a backend. See :meth:`ArrayFile.open`."""
    return backend_of(backend).open(filename, mode, dict(options or {}))
