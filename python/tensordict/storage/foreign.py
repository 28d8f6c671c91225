"""Recognise files of other programs, to say what they are and what to do with them."""

from __future__ import annotations

import os
import zipfile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MSG_NO_LAYOUT", "explain"]

MSG_NO_LAYOUT: Final = (
    "Neither an archive, nor a safetensors or consolidated file. One that was cut off is "
    "not recognised either."
)

OF_TORCH: Final = (
    "It was written by torch.save: read it with torch.load(path, weights_only=True), "
    "and save what that gives, TensorDict(state_dict).unflatten_keys('.').save(...), "
    "to use it here."
)
OF_NUMPY: Final = (
    "It was written by NumPy: read it with numpy.load, and save what that gives, "
    "TensorDict({key: array}).save(...), to use it here."
)
OF_HDF5: Final = (
    "It is an HDF5 file: read it with h5py, and save its arrays, "
    "TensorDict({key: array}).save(...), to use them here."
)
OF_PICKLE: Final = (
    "It is a pickle: if you trust who wrote it, read it with pickle.load, or with "
    "torch.load."
)

# The first bytes of files. torch.save without zip begins with a pickle of its own number.
BEGINNINGS: Final = (
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", OF_TORCH),
    (b"\x93NUMPY", OF_NUMPY),
    (b"\x89HDF\r\n\x1a\n", OF_HDF5),
    *((bytes([0x80, protocol]), OF_PICKLE) for protocol in range(2, 6)),
)


def explain(path: str | Path) -> str | None:
    """Say what another program's file is, and how to go on; None if it is not known.

    Examples:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/x.pt"
        >>> torch.save({"a": torch.zeros(3)}, path)
        >>> explain(path)
        "It was written by torch.save: read it with torch.load(...)..."
    """
    if not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as file:
            beginning = file.read(16)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return _explain_zip(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return None
    # A safetensors file that was cut off: a length, of any bytes, and a header of JSON.
    if beginning[8:9] == b"{":
        return None
    for start, explanation in BEGINNINGS:
        if beginning.startswith(start):
            return explanation
    return None


def _explain_zip(names: list[str]) -> str | None:
    if "meta.json" in names:
        return None
    if any(name.endswith("/data.pkl") for name in names):
        return OF_TORCH
    if names and all(name.endswith(".npy") for name in names):
        return OF_NUMPY
    return None
