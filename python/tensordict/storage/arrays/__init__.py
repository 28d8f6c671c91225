"""Files of arrays in formats of other libraries: HDF5 and Zarr.

A file is a tree of groups that contain arrays. :mod:`.interface` defines groups and arrays;
:mod:`.hdf5` and :mod:`.zarr` implement them with h5py and zarr. :mod:`.values` converts non-tensor
data to arrays, and :mod:`.selection` reads the part of an array at an index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict.storage.arrays.interface import ArrayFile

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BACKENDS", "ArrayFile", "backend_of"]

BACKENDS = ("h5", "zarr")

MSG_BACKEND = "Unknown backend {!r}: pass one of {}."


def backend_of(name: str) -> type[ArrayFile]:
    """Return the class of files of a backend.

    Raises:
        ImportError: the library of the backend is not installed.
        NotImplementedError: the backend is unknown.
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
    """Open a file with a backend. See :meth:`ArrayFile.open`."""
    return backend_of(backend).open(filename, mode, dict(options or {}))
